//! The one error for input that is refused: which field, which value, which bound.

/// A value that came from outside and cannot be accepted.
///
/// Its text reads `chunk_tokens = 0: must be at least 1`, so a caller can find the field that
/// was wrong and the bound it broke without reading our source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} = {value}: must be {bound}")]
pub struct Refusal {
    /// The name of the field as the caller wrote it.
    pub field: String,
    /// The value that was seen, shortened when it is long.
    pub value: String,
    /// What would have been accepted.
    pub bound: String,
}

impl Refusal {
    /// `field` had `value`; the value must be `bound` ("at least 1", "f32 or bf16").
    pub fn new(
        field: impl Into<String>,
        value: impl std::fmt::Display,
        bound: impl Into<String>,
    ) -> Self {
        let mut value = value.to_string();
        if value.chars().count() > 80 {
            value = value.chars().take(77).chain("...".chars()).collect();
        }
        Self { field: field.into(), value, bound: bound.into() }
    }

    /// Refuses `value` unless `low <= value <= high`.
    pub fn unless_within<T: PartialOrd + std::fmt::Display>(
        field: &str,
        value: T,
        low: T,
        high: T,
    ) -> Result<T, Self> {
        if value >= low && value <= high {
            Ok(value)
        } else {
            Err(Self::new(field, value, format!("between {low} and {high}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_field_the_value_and_the_bound() {
        let refusal = Refusal::unless_within("chunk_tokens", 0, 1, 8).unwrap_err();
        assert_eq!(refusal.to_string(), "chunk_tokens = 0: must be between 1 and 8");
        assert_eq!(Refusal::unless_within("chunk_tokens", 8, 1, 8), Ok(8));
        assert!(Refusal::unless_within("top_p", f32::NAN, 0.0, 1.0).is_err());
    }

    #[test]
    fn shortens_a_long_value() {
        let refusal = Refusal::new("prompt", "é".repeat(500), "shorter");
        assert_eq!(refusal.value.chars().count(), 80);
    }
}

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

/// An error and what caused it, in one line: the text of the outermost often says nothing.
pub fn described(error: &(dyn std::error::Error + 'static)) -> String {
    joined(chain(error).map(ToString::to_string))
}

/// An error, what caused it, and so on.
pub fn chain<'e>(
    error: &'e (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'e (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// The texts of an error and its causes, outermost first, in one line. Many an error repeats what
/// is beneath it; what has been said is not said again.
pub fn joined(texts: impl IntoIterator<Item = String>) -> String {
    let mut line = String::new();
    for text in texts {
        if line.contains(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    line
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
    fn what_was_said_is_not_said_again() {
        let check = |texts: &[&str], want: &str| {
            assert_eq!(joined(texts.iter().map(|&text| text.to_owned())), want);
        };
        check(&[], "");
        check(&["", "refused"], "refused");
        let connect = "tcp connect error";
        check(
            &["transport error", connect, connect, "refused"],
            "transport error: tcp connect error: refused",
        );
        let expired = ["invalid peer certificate: expired", "expired"];
        check(&expired, expired[0]);
        let refusal = Refusal::new("workers", 0, "at least 1");
        let wrapped = std::io::Error::other(Wrapped(refusal.clone()));
        assert_eq!(described(&wrapped), format!("no start: {refusal}"));
    }

    #[derive(Debug, thiserror::Error)]
    #[error("no start")]
    struct Wrapped(#[source] Refusal);

    #[test]
    fn shortens_a_long_value() {
        let refusal = Refusal::new("prompt", "é".repeat(500), "shorter");
        assert_eq!(refusal.value.chars().count(), 80);
    }
}

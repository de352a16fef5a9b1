//! What bends the logits of a request before a token is drawn from them.

use crate::{Refusal, TokenId, limits};

/// What a caller asks of tokens by name, beyond how likely they are.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Steering {
    /// Added to the logits of these tokens; ascending by token, each once.
    pub bias: Vec<(TokenId, f32)>,
}

impl Steering {
    /// Steers by `bias`, whose tokens may come in any order.
    pub fn by_bias(bias: impl IntoIterator<Item = (TokenId, f32)>) -> Self {
        let mut bias: Vec<_> = bias.into_iter().collect();
        bias.sort_by_key(|(token, _)| *token);
        Self { bias }
    }

    /// Checks every field against its bound, and tokens against a vocabulary of `vocab`.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn validate(&self, vocab: u32) -> Result<(), Refusal> {
        let entries = self.bias.len();
        Refusal::unless_within("logit_bias entries", entries, 0, limits::LOGIT_BIAS_MAX)?;
        for (token, bias) in &self.bias {
            if *token >= vocab {
                let bound = format!("tokens below vocab = {vocab}");
                return Err(Refusal::new("logit_bias", token, bound));
            }
            let most = limits::LOGIT_BIAS_MOST;
            Refusal::unless_within(&format!("logit_bias[{token}]"), *bias, -most, most)?;
        }
        match self.bias.array_windows().find(|[(a, _), (b, _)]| a >= b) {
            Some([_, (token, _)]) => Err(Refusal::new("logit_bias", token, "each token once")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_by_field() {
        let check = |bias: &[(TokenId, f32)], want: &str| {
            let refused = Steering::by_bias(bias.iter().copied()).validate(10);
            let text = refused.map_err(|refusal| refusal.to_string()).err().unwrap_or_default();
            assert_eq!(text, want);
        };
        check(&[(9, -100.0), (1, 100.0)], "");
        check(&[(10, 1.0)], "logit_bias = 10: must be tokens below vocab = 10");
        check(&[(3, 100.5)], "logit_bias[3] = 100.5: must be between -100 and 100");
        check(&[(3, f32::NAN)], "logit_bias[3] = NaN: must be between -100 and 100");
        check(&[(3, 1.0), (3, 2.0)], "logit_bias = 3: must be each token once");
        let many = limits::LOGIT_BIAS_MAX + 1;
        let refused = Steering { bias: vec![(0, 0.0); many] }.validate(10).unwrap_err();
        assert_eq!(
            (refused.field.as_str(), refused.value),
            ("logit_bias entries", many.to_string())
        );
    }
}

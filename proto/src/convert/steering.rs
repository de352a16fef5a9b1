//! What bends logits before a token is drawn.

use aqueduct_core::{Refusal, Steering, limits};

use super::bounded;
use crate::v1;

impl From<Steering> for v1::Steering {
    fn from(steering: Steering) -> Self {
        let bias = steering.bias.into_iter();
        Self { bias: bias.map(|(token, bias)| v1::TokenBias { token, bias }).collect() }
    }
}

impl TryFrom<v1::Steering> for Steering {
    type Error = Refusal;

    fn try_from(wire: v1::Steering) -> Result<Self, Refusal> {
        bounded("logit_bias", &wire.bias, limits::LOGIT_BIAS_MAX)?;
        let bias = wire.bias.into_iter().map(|entry| (entry.token, entry.bias));
        let steering = Self::by_bias(bias);
        steering.validate(limits::VOCAB_MAX)?;
        Ok(steering)
    }
}

#[cfg(test)]
mod tests {
    use super::super::arbitrary;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_by_field() {
        let check = |token: u32, bias: f32, field: &str| {
            let wire = v1::Steering { bias: vec![v1::TokenBias { token, bias }; 1] };
            assert_eq!(Steering::try_from(wire).unwrap_err().field, field);
        };
        check(u32::MAX, 1.0, "logit_bias");
        check(1, f32::NAN, "logit_bias[1]");
        check(1, 101.0, "logit_bias[1]");
        let wire = v1::Steering { bias: vec![v1::TokenBias::default(); 2] };
        assert_eq!(Steering::try_from(wire).unwrap_err().field, "logit_bias");
    }

    proptest! {
        #[test]
        fn survives_the_wire(steering in arbitrary::steering()) {
            let wire = v1::Steering::from(steering.clone());
            prop_assert_eq!(Steering::try_from(wire), Ok(steering));
        }
    }
}

//! What stands between the products of feed-forward parts.

use aqueduct_kernels::{Activation, Ungated};

use super::Config;
use crate::load::decoder::Family;

/// What families without gates are served with.
const UNGATED: &str = "gelu, gelu_new, gelu_pytorch_tanh, relu or relu2";

impl Config {
    /// As the file has it, or else the family.
    ///
    /// # Errors
    /// Another one than the family is served with: its name, and which would do.
    pub(super) fn activation(&self, family: Family) -> Result<Activation, (&str, &'static str)> {
        let usual = family.activation();
        let (given, served): (_, &[_]) = match family {
            // "gelu" is what its first files say and do not mean.
            Family::Gemma => (&self.hidden_act, &["gelu_pytorch_tanh", "gelu"]),
            Family::Gemma2 | Family::Gemma3 | Family::Gemma4 | Family::VaultGemma => {
                (&self.hidden_activation, &["gelu_pytorch_tanh"])
            }
            Family::Apertus => (&self.hidden_act, &["xielu"]),
            Family::BitNet => (&self.hidden_act, &["relu2"]),
            _ => (&self.hidden_act, &["silu"]),
        };
        let Some(name) = given.as_deref() else { return Ok(usual) };
        match usual {
            Activation::Ungated(ungated) if !matches!(ungated, Ungated::Xielu(_)) => {
                named(name).map(Activation::Ungated).ok_or((name, UNGATED))
            }
            _ if served.contains(&name) => Ok(usual),
            _ => Err((name, served[0])),
        }
    }
}

/// As transformers calls them.
fn named(name: &str) -> Option<Ungated> {
    Some(match name {
        "gelu" | "gelu_python" => Ungated::Gelu,
        "gelu_new" | "gelu_fast" | "gelu_accurate" | "gelu_pytorch_tanh" => Ungated::GeluTanh,
        "relu" => Ungated::Relu,
        "relu2" => Ungated::ReluSquared,
        _ => return None,
    })
}

//! What differs between layers in GGUF metadata.

use aqueduct_core::{ModelShape, Refusal};
use aqueduct_gguf::{Field, Value};

use super::config::{Architecture, Config, Keys};
use crate::error::LoadError;
use crate::load::decoder::{
    ALTERNATE_LAYERS, FULL_LAYER_INTERVAL, OLMO3_FULL_LAYER_INTERVAL, STILL_LAYER_INTERVAL,
    all_but_every,
};

const PATTERN: &str = "attention.sliding_window_pattern";

/// Positions that rows of Llama 4 see at most where they rotate; of so many its queries grow, where
/// they do not.
pub(super) const LLAMA4_BLOCK: u32 = 8192;

/// The window of models whose files do not say which they have.
fn unsaid_window(architecture: Architecture) -> Option<u32> {
    match architecture {
        Architecture::Gemma2 => Some(4096), // as llama.cpp has it
        Architecture::GptOss => Some(128),
        Architecture::Llama4 => Some(LLAMA4_BLOCK),
        Architecture::StarCoder2 => Some(4096), // all its models; no converter says so
        _ => None,
    }
}

impl Config<'_, '_> {
    /// `[layers]`.
    pub(super) fn windows(
        &self,
        architecture: Architecture,
        keys: &Keys<'_, '_>,
        shape: &ModelShape,
    ) -> Result<Vec<Option<u32>>, LoadError> {
        if matches!(architecture, Architecture::Cohere2 | Architecture::Afmoe) {
            // Without it nobody knows whether a layer has one, and so whether it rotates.
            keys.required("attention.sliding_window").map_err(|err| self.malformed(err))?;
        }
        let window = keys.get("attention.sliding_window", Field::u32);
        let window = window.map_err(|err| self.malformed(err))?.or(unsaid_window(architecture));
        let window = window.filter(|&window| window > 0);
        // Whatever a file says of it, unless it says that there are none: as llama.cpp has it.
        let is_llama4 = architecture == Architecture::Llama4;
        let window = if is_llama4 { window.map(|_| LLAMA4_BLOCK) } else { window };
        let interval = match architecture {
            Architecture::Gemma2 | Architecture::GptOss => ALTERNATE_LAYERS,
            Architecture::Gemma3 | Architecture::Gemma4 => FULL_LAYER_INTERVAL,
            Architecture::Llama4 => STILL_LAYER_INTERVAL,
            Architecture::Olmo2 | Architecture::Exaone4 | Architecture::ExaoneMoe => {
                OLMO3_FULL_LAYER_INTERVAL
            }
            Architecture::Cohere2 | Architecture::Afmoe => OLMO3_FULL_LAYER_INTERVAL,
            // Qwen's configurations, dots.llm1's and Nemotron-H's name a window that none of their
            // models uses.
            Architecture::Qwen2
            | Architecture::Qwen3
            | Architecture::Qwen2Moe
            | Architecture::Qwen2Vl
            | Architecture::Qwen3Vl
            | Architecture::Qwen3VlMoe
            | Architecture::Qwen3Next
            | Architecture::Qwen35
            | Architecture::Qwen35Moe
            | Architecture::Dots1
            | Architecture::NemotronH
            | Architecture::NemotronHMoe
            | Architecture::Qwen3Moe => return Ok(vec![None; shape.layers as usize]),
            _ => return Ok(vec![window; shape.layers as usize]),
        };
        let slides = self.slides(keys, shape.layers, interval)?.into_iter();
        Ok(slides.map(|slides| window.filter(|_| slides)).collect())
    }

    /// `[layers]`: whether each has a window. Files say it of each, or that one of so many has
    /// none, or nothing.
    fn slides(
        &self,
        keys: &Keys<'_, '_>,
        layers: u32,
        interval: usize,
    ) -> Result<Vec<bool>, LoadError> {
        let refused = |refusal| LoadError::refused(self.path, refusal);
        let given = keys.get(PATTERN, |field| match field.value {
            Value::Array(_) => field.bools().map(Ok),
            Value::Scalar(..) | Value::Str(_) => field.u32().map(Err),
        });
        match given.map_err(|err| self.malformed(err))? {
            Some(Ok(slides)) => {
                let count = layers as usize;
                Refusal::unless_within(&format!("{PATTERN} count"), slides.len(), count, count)
                    .map_err(refused)?;
                Ok(slides)
            }
            Some(Err(interval)) => {
                Refusal::unless_within(PATTERN, interval, 1, u32::MAX).map_err(refused)?;
                Ok(all_but_every(interval as usize, layers))
            }
            None => Ok(all_but_every(interval, layers)),
        }
    }

    /// `[layers]`: whether each rotates.
    pub(super) fn rotates(
        &self,
        architecture: Architecture,
        keys: &Keys<'_, '_>,
        windows: &[Option<u32>],
    ) -> Result<Vec<bool>, LoadError> {
        Ok(match architecture {
            _ if architecture.family().first_position().is_some() => vec![false; windows.len()],
            Architecture::Granite | Architecture::GraniteMoe | Architecture::GraniteHybrid => {
                // Its switch, whatever the key is called.
                let switch = keys.get("rope.scaling.finetuned", Field::bool);
                let switch = switch.map_err(|err| self.malformed(err))?;
                vec![switch.unwrap_or(true); windows.len()]
            }
            Architecture::NemotronH | Architecture::NemotronHMoe => vec![false; windows.len()],
            Architecture::Bloom | Architecture::Mpt => vec![false; windows.len()],
            // No key says it.
            Architecture::SmolLm3 => all_but_every(STILL_LAYER_INTERVAL, windows.len() as u32),
            // Layers that see all positions do not, if there are any with a window.
            Architecture::Exaone4 | Architecture::ExaoneMoe
                if windows.iter().any(Option::is_some) =>
            {
                windows.iter().map(Option::is_some).collect()
            }
            Architecture::Cohere2 | Architecture::Afmoe => {
                windows.iter().map(Option::is_some).collect()
            }
            Architecture::Llama4 if windows.iter().any(Option::is_some) => {
                windows.iter().map(Option::is_some).collect()
            }
            _ => vec![true; windows.len()],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converters_leave_some_windows_out() {
        let check = |architecture, want| assert_eq!(unsaid_window(architecture), want);
        check(Architecture::StarCoder2, Some(4096));
        check(Architecture::GptOss, Some(128));
        check(Architecture::Llama, None);
    }
}

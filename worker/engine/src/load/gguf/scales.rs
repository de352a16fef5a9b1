//! What multiplies what in GGUF metadata, and what keeps logits within bounds.

use aqueduct_core::{ModelShape, Refusal};
use aqueduct_gguf::Field;

use super::config::{Architecture, Config, Keys};
use super::latent;
use crate::error::LoadError;
use crate::load::decoder::{Scales, Softcaps};

/// By which llama.cpp tells Gemma 2 27B and Gemma 3 27B from the others.
const GEMMA2_27B_LAYERS: u32 = 46;
const GEMMA3_27B_LAYERS: u32 = 62;

/// The key of the cap of tokens' logits.
const TOKENS_CAP: &str = "final_logit_softcapping";

impl Config<'_, '_> {
    /// Gemma 2's, which has them where a file does not say; 0 is none. Gemma 3 and 4 may have the
    /// one of tokens' logits, and no other is served with any.
    pub(super) fn softcaps(
        &self,
        architecture: Architecture,
        keys: &Keys<'_, '_>,
    ) -> Result<Softcaps, LoadError> {
        let get = |key| {
            let cap = keys.get(key, Field::f32).map_err(|err| self.malformed(err))?;
            match architecture {
                Architecture::Gemma2 => Ok(cap),
                Architecture::Gemma3 | Architecture::Gemma4 if key == TOKENS_CAP => {
                    Ok(cap.or(Some(0.0)))
                }
                _ => match cap.filter(|&cap| cap != 0.0) {
                    Some(cap) => {
                        let refusal = Refusal::new(key, cap, "absent");
                        Err(LoadError::refused(self.path, refusal))
                    }
                    None => Ok(Some(0.0)),
                },
            }
        };
        let or = |cap: Option<f32>, usual| Some(cap.unwrap_or(usual)).filter(|&cap| cap != 0.0);
        let attention = or(get("attn_logit_softcapping")?, 50.0);
        let tokens = or(get(TOKENS_CAP)?, 30.0);
        let softcaps = Softcaps { attention, tokens }.checked();
        softcaps.map_err(|refusal| LoadError::refused(self.path, refusal))
    }

    /// Granite's keys; elsewhere they mean other things, or nothing. 0 stands for the usual. What
    /// Gemma has no key says.
    pub(super) fn scales(
        &self,
        architecture: Architecture,
        keys: &Keys<'_, '_>,
        shape: &ModelShape,
    ) -> Result<Scales, LoadError> {
        let mut usual = Scales::usual(shape.head_dim);
        match architecture {
            Architecture::Granite | Architecture::GraniteMoe | Architecture::GraniteHybrid => {}
            // Its first files do not say what its later ones do.
            Architecture::MiniCpm => usual = latent::minicpm_scales(shape),
            // The largest have fewer elements in a head than their widths would give them.
            Architecture::Gemma2 if shape.layers == GEMMA2_27B_LAYERS => {
                return Ok(Scales::gemma(shape.width, (shape.width / shape.heads) as f32));
            }
            Architecture::Gemma3 if shape.layers == GEMMA3_27B_LAYERS => {
                return Ok(Scales::gemma(shape.width, (shape.width / shape.heads) as f32));
            }
            Architecture::Gemma4 => return Ok(Scales::gemma(shape.width, 1.0)),
            // Whether models were made so, which no file says: as llama.cpp has it.
            Architecture::Afmoe => return Ok(Scales::gemma(shape.width, shape.head_dim as f32)),
            Architecture::Gemma | Architecture::Gemma2 | Architecture::Gemma3 => {
                return Ok(Scales::gemma(shape.width, shape.head_dim as f32));
            }
            Architecture::CommandR | Architecture::Cohere2 => {
                let scale = keys.required("logit_scale").and_then(Field::f32);
                let scale = scale.map_err(|err| self.malformed(err))?;
                let scale = if scale == 0.0 { 1.0 } else { scale }; // as llama.cpp has it
                return Ok(Scales { logits: 1.0 / scale, ..usual });
            }
            Architecture::DeepSeek2 => return self.latent_scales(keys, shape),
            Architecture::MiniCpm3 => return Ok(latent::minicpm_scales(shape)),
            _ => return Ok(usual),
        }
        let or = |key: &str, usual: f32| -> Result<f32, LoadError> {
            let given = keys.get(key, Field::f32).map_err(|err| self.malformed(err))?;
            Ok(given.filter(|&scale| scale != 0.0).unwrap_or(usual))
        };
        Ok(Scales {
            embed: or("embedding_scale", usual.embed)?,
            residual: or("residual_scale", usual.residual)?,
            attention: or("attention.scale", usual.attention)?,
            logits: or("logit_scale", usual.logits)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_core::{WideHeads, WindowedLayers};
    use aqueduct_gguf::Gguf;
    use aqueduct_gguf::write::Writer;

    use super::*;

    #[test]
    fn minicpm_scales_as_it_says_or_as_it_is_built() {
        let shape = ModelShape {
            vocab: 32,
            layers: 4,
            width: 512,
            heads: 4,
            kv_heads: 4,
            head_dim: 128,
            ffn: 48,
            max_positions: 64,
            recurrent_layers: 0,
            state_bytes: 0,
            wide: WideHeads::NONE,
            kv_shared_layers: 0,
            windowed: WindowedLayers::NONE,
        };
        let check = |file: Writer, [embed, residual, logits]: [f32; 3]| {
            let bytes = file.finish();
            let gguf = Gguf::parse(&bytes).unwrap();
            let config = Config { path: "file", gguf: &gguf };
            let keys = Keys { gguf: &gguf, architecture: Architecture::MiniCpm };
            let seen = config.scales(Architecture::MiniCpm, &keys, &shape).unwrap();
            assert_eq!(seen, Scales { embed, residual, logits, ..Scales::usual(128) });
        };
        check(Writer::new(), [12.0, 0.7, 2.0]);
        let said = Writer::new()
            .f32("minicpm.embedding_scale", 10.0)
            .f32("minicpm.residual_scale", 0.5)
            .f32("minicpm.logit_scale", 4.0);
        check(said, [10.0, 0.5, 4.0]);
    }
}

//! What multiplies what, and what keeps logits within bounds.

use aqueduct_core::{ModelShape, Refusal};

use super::Config;
use crate::load::decoder::{Family, Scales, Softcaps};

impl Config {
    pub(super) fn norm_eps(&self, family: Family) -> Result<f32, Refusal> {
        let (field, given) = match family {
            Family::Olmo | Family::Dbrx => ("layer_norm_eps", None), // which no file says
            Family::Phimoe => ("rms_norm_eps", self.rms_norm_eps),   // which its are not
            Family::StarCoder2 => ("norm_epsilon", self.norm_epsilon),
            Family::Nemotron => ("norm_eps", self.norm_eps),
            Family::Lfm2 | Family::Lfm2Moe | Family::Lfm3 => ("norm_eps", self.norm_eps),
            _ if self.layer_norms(family).is_some() => ("layer_norm_eps", self.layer_norm_eps),
            _ => ("rms_norm_eps", self.rms_norm_eps),
        };
        Refusal::unless_within(field, given.unwrap_or(family.norm_eps()), 0.0, 1.0)
    }

    /// Gemma 2's, and what Gemma 3's file has for tokens: its attention has none in transformers,
    /// whatever a file says.
    pub(super) fn softcaps(&self, family: Family) -> Result<Softcaps, Refusal> {
        let [attention, tokens] = [self.attn_logit_softcapping, self.final_logit_softcapping];
        match family {
            Family::Gemma2 | Family::VaultGemma => Softcaps {
                attention: attention.unwrap_or(Some(50.0)),
                tokens: tokens.unwrap_or(Some(30.0)),
            }
            .checked(),
            Family::NanoChat => {
                Softcaps { attention: None, tokens: tokens.unwrap_or(Some(15.0)) }.checked()
            }
            Family::Gemma3 | Family::Gemma4 => {
                Softcaps { attention: None, tokens: tokens.flatten() }.checked()
            }
            _ => Ok(Softcaps::default()),
        }
    }

    /// `sharper` is what yarn multiplies attention's dot products by, in families that do it.
    /// Mistral 4 is none of them, whatever `mscale_all_dim` its config.json has: Mistral's own
    /// params.json says `apply_scale: false`.
    pub(super) fn scales(
        &self,
        family: Family,
        shape: &ModelShape,
        sharper: f64,
    ) -> Result<Scales, Refusal> {
        let mut scales = self.scales_of(family, shape)?;
        if family.is_latent() && family != Family::Mistral4 {
            scales.attention = (f64::from(scales.attention) * sharper) as f32;
        }
        scales.checked()
    }

    fn scales_of(&self, family: Family, shape: &ModelShape) -> Result<Scales, Refusal> {
        match family {
            Family::MiniCpm | Family::MiniCpm3 => self.minicpm_scales(family, shape),
            family if family.is_granite() => Scales {
                embed: self.embedding_multiplier,
                residual: self.residual_multiplier,
                attention: self.attention_multiplier.unwrap_or(1.0),
                logits: self.logits_scaling,
            }
            .checked(),
            Family::HyperClovaX => {
                let usual = Scales::usual(shape.head_dim);
                let scaling = self.logits_scaling;
                Refusal::unless_within("logits_scaling", scaling, 1e-6, 1e6)?;
                Scales {
                    embed: self.embedding_multiplier,
                    residual: self.residual_multiplier,
                    attention: self.attention_multiplier.unwrap_or(usual.attention),
                    logits: 1.0 / scaling, // which multiplies them, unlike Granite's
                }
                .checked()
            }
            Family::Afmoe if self.newer.mup_enabled == Some(true) => {
                let embed = (shape.width as f32).sqrt();
                Scales { embed, ..Scales::usual(shape.head_dim) }.checked()
            }
            Family::FalconH1 => self.falcon_h1_scales(shape),
            Family::Gemma => Scales::gemma(shape.width, shape.head_dim as f32).checked(),
            Family::Gemma4 => Scales::gemma(shape.width, 1.0).checked(),
            Family::Mpt => self.mpt_scales(shape.head_dim),
            Family::GptNeo => Ok(Scales { attention: 1.0, ..Scales::usual(shape.head_dim) }),
            Family::Gemma2 | Family::Gemma3 | Family::VaultGemma => {
                let divisor = self.query_pre_attn_scalar.unwrap_or(256.0);
                Scales::gemma(shape.width, divisor).checked()
            }
            Family::Cohere | Family::Cohere2 | Family::Cohere2Moe | Family::CohereCompass => {
                let unsaid = if family == Family::CohereCompass { 1.0 } else { 0.0625 };
                let scale = self.logit_scale.unwrap_or(unsaid);
                let scale = Refusal::unless_within("logit_scale", scale, 1e-6, 1e6)?;
                Scales { logits: 1.0 / scale, ..Scales::usual(shape.head_dim) }.checked()
            }
            _ => Ok(Scales::usual(shape.head_dim)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::load::hf::config::tests::config;

    #[test]
    fn yarn_grows_the_scale_of_deepseek_and_not_of_mistral() {
        let check = |family, want: f32| {
            let config = config(json!({}));
            let shape = config.shape(family).unwrap();
            let seen = config.scales(family, &shape, 2.0).unwrap().attention;
            let usual = Scales::usual(shape.head_dim).attention;
            assert_eq!(seen / usual, want, "{family:?}");
        };
        check(Family::DeepSeekV2, 2.0);
        check(Family::DeepSeekV3, 2.0);
        check(Family::Mistral4, 1.0);
        check(Family::Llama, 1.0);
    }
}

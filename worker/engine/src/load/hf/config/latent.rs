//! Keys and values of a few numbers in config.json (multi-head latent attention).

use aqueduct_core::{ModelShape, Refusal};
use serde::Deserialize;

use super::{Config, present};
use crate::load::decoder::{Family, HeadOrder, Latents, Scales};

/// The fields about them, and MiniCPM 3's own scales.
#[derive(Deserialize)]
pub(super) struct LatentFields {
    /// Absent: as the family has it; null: queries come of the stream.
    #[serde(default, deserialize_with = "present")]
    q_lora_rank: Option<Option<u32>>,
    kv_lora_rank: Option<u32>,
    qk_nope_head_dim: Option<u32>,
    qk_rope_head_dim: Option<u32>,
    v_head_dim: Option<u32>,
    /// Null: they do not.
    #[serde(default, deserialize_with = "present")]
    rope_interleave: Option<Option<bool>>,
    scale_emb: Option<f32>,
    /// Absent: as published; null: nothing is scaled.
    #[serde(default, deserialize_with = "present")]
    scale_depth: Option<Option<f32>>,
    #[serde(default, deserialize_with = "present")]
    dim_model_base: Option<Option<f32>>,
}

/// What transformers takes where a file does not say.
struct Unsaid {
    queries: u32,
    keys: u32,
    still: u32,
    rotated: u32,
    value: u32,
}

impl Family {
    fn unsaid_latents(self) -> Unsaid {
        match self {
            Self::MiniCpm3 => Unsaid { queries: 768, keys: 256, still: 64, rotated: 32, value: 0 },
            Self::Mistral4 => {
                Unsaid { queries: 1024, keys: 256, still: 64, rotated: 64, value: 128 }
            }
            Self::Glm4MoeLite => {
                Unsaid { queries: 768, keys: 512, still: 192, rotated: 64, value: 256 }
            }
            _ => Unsaid { queries: 1536, keys: 512, still: 128, rotated: 64, value: 128 },
        }
    }
}

impl Config {
    /// Elements of a head of keys, and how many of them are rotated.
    pub(super) fn latent_head(&self, family: Family) -> Result<[u32; 2], Refusal> {
        let (fields, unsaid) = (&self.latent, family.unsaid_latents());
        let still = fields.qk_nope_head_dim.unwrap_or(unsaid.still);
        let rotated = fields.qk_rope_head_dim.unwrap_or(unsaid.rotated);
        Refusal::unless_within("qk_nope_head_dim", still, 2, 1 << 16)?;
        Refusal::unless_within("qk_rope_head_dim", rotated, 2, 1 << 16)?;
        match still.is_multiple_of(2) && rotated.is_multiple_of(2) {
            true => Ok([still + rotated, rotated]),
            false => Err(Refusal::new("qk_rope_head_dim", rotated, "even, as the others")),
        }
    }

    /// What keys and values come of; `None` in families where that is the stream.
    pub(super) fn latents(
        &self,
        family: Family,
        shape: &ModelShape,
        order: HeadOrder,
    ) -> Result<Option<Latents>, Refusal> {
        if !family.is_latent() {
            return Ok(None);
        }
        if self.attention_bias == Some(true) {
            return Err(Refusal::new("attention_bias", true, "false"));
        }
        let (fields, unsaid) = (&self.latent, family.unsaid_latents());
        let value = match family {
            Family::MiniCpm3 => shape.width / shape.heads,
            _ => unsaid.value,
        };
        let latents = Latents {
            queries: fields.q_lora_rank.unwrap_or(Some(unsaid.queries)),
            keys: fields.kv_lora_rank.unwrap_or(unsaid.keys),
            value_dim: fields.v_head_dim.unwrap_or(value),
        };
        latents.checked(shape.head_dim, order.rotary_dim).map(Some)
    }

    /// Whether rotated elements stand beside each other.
    pub(super) fn neighbours(&self, family: Family) -> bool {
        let deepseek = matches!(family, Family::DeepSeekV3 | Family::AxK1 | Family::Glm4MoeLite);
        let may_say = deepseek || matches!(family, Family::Youtu | Family::Mistral4);
        let said = self.latent.rope_interleave.filter(|_| may_say);
        said.map_or(family.neighbours(), Option::unwrap_or_default)
    }

    /// MiniCPM's; the first of them has no scales where a file does not say them.
    pub(super) fn minicpm_scales(
        &self,
        family: Family,
        shape: &ModelShape,
    ) -> Result<Scales, Refusal> {
        let (fields, layers) = (&self.latent, shape.layers as f32);
        let usual = match family {
            Family::MiniCpm => [1.0; 3],
            _ => [12.0, 1.4, 256.0],
        };
        let depth = fields.scale_depth.unwrap_or(Some(usual[1]));
        let base = fields.dim_model_base.unwrap_or(Some(usual[2]));
        Scales {
            embed: fields.scale_emb.unwrap_or(usual[0]),
            residual: depth.map_or(1.0, |depth| depth / layers.sqrt()),
            logits: base.map_or(1.0, |base| shape.width as f32 / base),
            ..Scales::usual(shape.head_dim)
        }
        .checked()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::load::hf::config::tests::config;

    fn latents(family: Family, changes: Value) -> Result<(u32, Latents), Refusal> {
        let config = config(changes);
        let (shape, [_, rotary_dim]) = (config.shape(family)?, config.latent_head(family)?);
        let order = HeadOrder { rotary_dim, neighbours: true, by_head: false };
        let latents = config.latents(family, &shape, order)?;
        Ok((shape.head_dim, latents.expect("the family has them")))
    }

    #[test]
    fn what_is_absent_is_what_transformers_takes() {
        let check = |family, changes, head_dim, (queries, keys, value_dim)| {
            let want = Latents { queries, keys, value_dim };
            assert_eq!(latents(family, changes), Ok((head_dim, want)), "{family:?}");
        };
        for family in [Family::DeepSeekV2, Family::DeepSeekV3, Family::AxK1, Family::Youtu] {
            check(family, json!({}), 192, (Some(1536), 512, 128));
        }
        check(Family::Glm4MoeLite, json!({}), 256, (Some(768), 512, 256));
        check(Family::MiniCpm3, json!({}), 96, (Some(768), 256, 8));
        check(Family::Mistral4, json!({}), 128, (Some(1024), 256, 128));
        let lite = json!({ "q_lora_rank": null, "kv_lora_rank": 64, "v_head_dim": 32 });
        check(Family::DeepSeekV2, lite, 192, (None, 64, 32));
        assert_eq!(config(json!({})).shape(Family::DeepSeekV3).unwrap().kv_heads, 4);
    }

    #[test]
    fn heads_that_make_no_sense_are_refused() {
        let check = |changes: Value, field: &str| {
            assert_eq!(latents(Family::DeepSeekV3, changes).unwrap_err().field, field);
        };
        check(json!({ "qk_rope_head_dim": 0 }), "qk_rope_head_dim");
        check(json!({ "qk_rope_head_dim": 7 }), "qk_rope_head_dim");
        check(json!({ "qk_nope_head_dim": u32::MAX }), "qk_nope_head_dim");
        check(json!({ "v_head_dim": 193 }), "v_head_dim");
        check(json!({ "v_head_dim": 0 }), "v_head_dim");
        check(json!({ "kv_lora_rank": 0 }), "kv_lora_rank");
        check(json!({ "q_lora_rank": 0 }), "q_lora_rank");
        check(json!({ "attention_bias": true }), "attention_bias");
    }

    #[test]
    fn only_some_files_may_say_where_rotated_elements_stand() {
        let halves = || config(json!({ "rope_interleave": false }));
        assert!(!halves().neighbours(Family::DeepSeekV3));
        assert!(halves().neighbours(Family::DeepSeekV2));
        assert!(config(json!({})).neighbours(Family::DeepSeekV3));
        assert!(!config(json!({ "rope_interleave": null })).neighbours(Family::DeepSeekV3));
        assert!(!config(json!({})).neighbours(Family::MiniCpm3));
    }

    #[test]
    fn minicpm_3_scales_by_its_depth_and_width() {
        let scales = |changes| {
            let config = config(changes);
            let shape = config.shape(Family::MiniCpm3).unwrap();
            config.scales(Family::MiniCpm3, &shape, 1.0).unwrap()
        };
        let published = scales(json!({}));
        assert_eq!((published.embed, published.logits), (12.0, 0.125));
        assert!((published.residual - 0.808_29).abs() < 1e-5, "{published:?}");
        let none = scales(json!({ "scale_emb": 1, "scale_depth": null, "dim_model_base": null }));
        assert_eq!(none, Scales::usual(96));
    }
}

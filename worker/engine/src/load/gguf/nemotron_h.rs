//! Parts of layers that are numbered one by one, in GGUF metadata.

use aqueduct_core::{ModelShape, Refusal, limits};
use aqueduct_gguf::Field;
use aqueduct_kernels::experts::Scoring;

use super::config::{Architecture, Config, Keys};
use super::recurrent::KV_HEADS;
use crate::error::LoadError;
use crate::load::checkpoint::Checkpoint;
use crate::load::decoder::{Biases, ManyExperts};
use crate::load::folded::{Folded, Part, part_sides};

/// 0 for what is no feed-forward part.
pub(super) const FEEDS: &str = "feed_forward_length";

/// Which maps add biases: one that does tells it of all of a kind.
pub(super) fn biases(checkpoint: &Checkpoint<'_>) -> Biases {
    let has = |name: &str| checkpoint.has_some(&format!(".{name}.bias"));
    Biases {
        qkv: has("attn_q") || has("attn_qkv"),
        out: has("attn_output"),
        gate_up: has("ffn_up"),
        down: has("ffn_down"),
    }
}

impl Architecture {
    /// Its files number parts of layers.
    pub(super) fn numbers_parts(self) -> bool {
        matches!(self, Self::NemotronH | Self::NemotronHMoe)
    }
}

impl Config<'_, '_> {
    /// Which parts each layer has, in architectures whose layers are not those of files.
    pub(super) fn folded(&self, keys: &Keys<'_, '_>) -> Result<Option<Folded>, LoadError> {
        if keys.architecture == Architecture::FalconH1 {
            let blocks = keys.u32("block_count").map_err(|err| self.malformed(err))?;
            let blocks = Refusal::unless_within("block_count", blocks, 1, limits::LAYERS_MAX / 2)
                .map_err(|refusal| LoadError::refused(self.path, refusal))?;
            return Ok(Some(Folded::of_sides(blocks as usize)));
        }
        self.folded_parts(keys)
    }

    /// The same of those whose files number parts: what has a width is a feed-forward part, and of
    /// others what has no KV heads remembers in a state.
    fn folded_parts(&self, keys: &Keys<'_, '_>) -> Result<Option<Folded>, LoadError> {
        if !keys.architecture.numbers_parts() {
            return Ok(None);
        }
        let refused = |refusal| LoadError::refused(self.path, refusal);
        let latent = keys.get("moe_latent_size", Field::u32).map_err(|err| self.malformed(err))?;
        Refusal::unless_within("moe_latent_size", latent.unwrap_or(0), 0, 0).map_err(refused)?;
        let blocks = keys.u32("block_count").map_err(|err| self.malformed(err))? as usize;
        let of_each = |key: &str| -> Result<Vec<u32>, LoadError> {
            let all = keys.required(key).and_then(Field::u32s);
            let all = all.map_err(|err| self.malformed(err))?;
            Refusal::unless_within(&format!("{key} count"), all.len(), blocks, blocks)
                .map_err(refused)?;
            Ok(all)
        };
        let (kv_heads, widths) = (of_each(KV_HEADS)?, of_each(FEEDS)?);
        // Blocks that predict further tokens stand behind the others, and have no part in these.
        let predicting = keys.get("nextn_predict_layers", Field::u32);
        let predicting = predicting.map_err(|err| self.malformed(err))?.unwrap_or(0) as usize;
        let count = blocks.saturating_sub(predicting);
        let each = || kv_heads.iter().copied().zip(widths.iter().copied()).take(count);
        if let Some(block) = each().position(|(kv_heads, width)| kv_heads > 0 && width > 0) {
            let (field, bound) = (format!("{FEEDS}[{block}]"), format!("0, as {KV_HEADS} is not"));
            return Err(refused(Refusal::new(field, widths[block], bound)));
        }
        let feed = match keys.architecture {
            Architecture::NemotronHMoe => Part::Experts,
            _ => Part::Dense,
        };
        let part = |(kv_heads, width): (u32, u32)| match (kv_heads, width) {
            (0, 0) => Part::State,
            (_, 0) => Part::Attention,
            _ => feed,
        };
        Ok(Some(Folded::new(each().map(part).collect())))
    }

    /// The same, with layers that mix nothing counted in `shape`.
    pub(super) fn counted(
        &self,
        keys: &Keys<'_, '_>,
        shape: &mut ModelShape,
    ) -> Result<Option<Folded>, LoadError> {
        let folded = self.folded(keys)?;
        if let Some(folded) = &folded {
            folded.add_still(shape);
            shape.validate().map_err(|refusal| LoadError::refused(self.path, refusal))?;
        }
        Ok(folded)
    }

    /// `experts` as these architectures have them, which say no scoring: it is always the same.
    pub(super) fn as_nemotron_h(
        &self,
        keys: &Keys<'_, '_>,
        experts: ManyExperts,
    ) -> Result<ManyExperts, LoadError> {
        let Some(folded) = self.folded(keys)? else { return Ok(experts) };
        let malformed = |err| self.malformed(err);
        // All have what tokens share, and so have to say its size.
        let shared = keys.get("expert_shared_feed_forward_length", Field::u32);
        let normalises = keys.get("expert_weights_norm", Field::bool).map_err(malformed)?;
        let scale = keys.get("expert_weights_scale", Field::f32).map_err(malformed)?;
        Ok(ManyExperts {
            shared_ffn: Some(shared.map_err(malformed)?.unwrap_or(0)),
            scoring: Scoring::Sigmoid,
            bias: true,
            normalises: normalises.unwrap_or(false),
            scale: scale.filter(|&scale| scale != 0.0).unwrap_or(1.0),
            layers: folded.experts(),
            ..experts
        })
    }

    /// Gives tensors the numbers of layers, where files number parts of these.
    pub(super) fn number_layers(
        &self,
        architecture: Architecture,
        checkpoint: &mut Checkpoint<'_>,
    ) -> Result<(), LoadError> {
        if architecture == Architecture::FalconH1 {
            part_sides(checkpoint, "blk", ["attn_norm.weight", "ssm_"]);
        } else if let Some(folded) = self.folded(&Keys { gguf: self.gguf, architecture })? {
            folded.number(checkpoint, "blk", ["attn_norm.weight", "ffn_norm.weight"]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_gguf::Gguf;
    use aqueduct_gguf::write::Writer;

    use super::*;
    use crate::load::folded::Fold;

    /// A file of five parts.
    fn folded(
        architecture: Architecture,
        (kv_heads, widths): (&[i32], &[i32]),
        more: impl Fn(Writer, &str) -> Writer,
    ) -> Result<Option<Folded>, String> {
        let name = architecture.name();
        let file = Writer::new()
            .u32(&format!("{name}.block_count"), 5)
            .i32s(&format!("{name}.{KV_HEADS}"), kv_heads)
            .i32s(&format!("{name}.{FEEDS}"), widths);
        let bytes = more(file, name).finish();
        let gguf = Gguf::parse(&bytes).unwrap();
        let config = Config { path: "file", gguf: &gguf };
        config.folded(&Keys { gguf: &gguf, architecture }).map_err(|error| error.to_string())
    }

    const PARTS: (&[i32], &[i32]) = (&[0, 0, 2, 0, 0], &[0, 48, 0, 48, 48]);

    #[test]
    fn parts_are_told_by_what_they_have() {
        let dense = folded(Architecture::NemotronH, PARTS, |file, _| file).unwrap().unwrap();
        let fold = |mixer, feed| Fold { mixer, feed };
        let want = [fold(Some(0), Some(1)), fold(Some(2), Some(3)), fold(None, Some(4))];
        assert_eq!(dense.layers, want);
        assert_eq!(dense.states(), [true, false, false]);
        assert_eq!(dense.experts(), [false; 3]);
        let many = folded(Architecture::NemotronHMoe, PARTS, |file, _| file).unwrap().unwrap();
        assert_eq!(many.experts(), [true; 3]);
        assert_eq!(folded(Architecture::Nemotron, PARTS, |file, _| file), Ok(None));
    }

    #[test]
    fn what_is_not_served_is_refused() {
        let latent = |file: Writer, name: &str| file.u32(&format!("{name}.moe_latent_size"), 16);
        let refused = folded(Architecture::NemotronHMoe, PARTS, latent).unwrap_err();
        assert!(refused.contains("moe_latent_size = 16"), "{refused}");
        let none = |file: Writer, name: &str| file.u32(&format!("{name}.moe_latent_size"), 0);
        assert!(folded(Architecture::NemotronHMoe, PARTS, none).is_ok());
        let few: (&[i32], &[i32]) = (&[0, 2], PARTS.1);
        let refused = folded(Architecture::NemotronH, few, |file, _| file).unwrap_err();
        assert!(refused.contains("head_count_kv count = 2"), "{refused}");
    }
}

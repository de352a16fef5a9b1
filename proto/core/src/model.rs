//! The shape of a decoder, as far as the cluster needs to know it.

use crate::{KvDtype, Refusal, limits};

/// Shape of a decoder-only transformer. Every field is a count of elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelShape {
    /// Tokens in the vocabulary; logits have this many columns.
    pub vocab: u32,
    /// Decoder layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub width: u32,
    /// Query heads.
    pub heads: u32,
    /// KV heads; query head h belongs to KV head h / (heads / kv_heads).
    pub kv_heads: u32,
    /// Elements of one head; need not be width / heads.
    pub head_dim: u32,
    /// Width of the feed-forward layer.
    pub ffn: u32,
    /// Positions that the model was made for; 0 when the model does not say.
    pub max_positions: u32,
    /// So many of the layers remember in a state of fixed size, and have no keys.
    pub recurrent_layers: u32,
    /// Bytes of the states of all these.
    pub state_bytes: u64,
    /// Layers whose heads are of another shape.
    pub wide: WideHeads,
    /// So many layers, behind all others, attend to keys of earlier ones and remember nothing
    /// themselves (Google 2025, Gemma 3n); fewer than have keys.
    pub kv_shared_layers: u32,
    /// Layers whose rows do not see far.
    pub windowed: WindowedLayers,
}

/// Layers of a model whose rows see few of the tokens before them, or fewer than all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowedLayers {
    /// How many of those whose heads are not [wide](WideHeads); 0, as what follows, where there are
    /// none, or none is known of.
    pub layers: u32,
    /// Rows behind a chunk see at most so many of its keys in each of them: its last ones.
    pub tokens: u32,
}

impl WindowedLayers {
    /// None.
    pub const NONE: Self = Self { layers: 0, tokens: 0 };
}

/// Some layers of a model have as many query heads, but other KV heads than the rest, of more
/// elements each perhaps (Google 2026, Gemma 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WideHeads {
    /// How many; 0, as all that follows, where there are none.
    pub layers: u32,
    /// KV heads of each.
    pub kv_heads: u32,
    /// Elements of one head: those of the other layers times 1, 2, 4, 8 or 16, so that the same
    /// pages are full of both.
    pub head_dim: u32,
}

impl WideHeads {
    /// None.
    pub const NONE: Self = Self { layers: 0, kv_heads: 0, head_dim: 0 };

    fn validate(self, shape: &ModelShape) -> Result<(), Refusal> {
        Refusal::unless_within("wide.layers", self.layers, 0, shape.kv_layers())?;
        if self.layers == 0 {
            Refusal::unless_within("wide.kv_heads", self.kv_heads, 0, 0)?;
            return Refusal::unless_within("wide.head_dim", self.head_dim, 0, 0).map(drop);
        }
        Refusal::unless_within("wide.kv_heads", self.kv_heads, 1, shape.heads)?;
        if !shape.heads.is_multiple_of(self.kv_heads) {
            let bound = format!("a divisor of heads = {}", shape.heads);
            return Err(Refusal::new("wide.kv_heads", self.kv_heads, bound));
        }
        Refusal::unless_within("wide.head_dim", self.head_dim, 2, limits::HEAD_DIM_MAX)?;
        if ![1, 2, 4, 8, 16].iter().any(|times| shape.head_dim * times == self.head_dim) {
            let bound = format!("1, 2, 4, 8 or 16 times head_dim = {}", shape.head_dim);
            return Err(Refusal::new("wide.head_dim", self.head_dim, bound));
        }
        if (self.kv_heads, self.head_dim) == (shape.kv_heads, shape.head_dim) {
            return Err(Refusal::new(
                "wide.layers",
                self.layers,
                "0 where heads are those of others",
            ));
        }
        Ok(())
    }
}

impl ModelShape {
    /// Query heads that share one KV head.
    pub const fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    /// Layers that remember something, all before those that do not.
    pub const fn memory_layers(&self) -> u32 {
        self.layers - self.kv_shared_layers
    }

    /// Layers that have keys of their own.
    pub const fn kv_layers(&self) -> u32 {
        self.memory_layers() - self.recurrent_layers
    }

    /// Bytes of K and V of `tokens` remembered keys over all layers and KV heads.
    pub const fn kv_bytes(&self, tokens: u64, dtype: KvDtype) -> u64 {
        let wide = self.wide.layers as u64;
        let others = (self.kv_layers() as u64).saturating_sub(wide);
        let elements = others * self.kv_heads as u64 * self.head_dim as u64
            + wide * self.wide.kv_heads as u64 * self.wide.head_dim as u64;
        2 * elements * tokens * dtype.bytes() as u64
    }

    /// The same of the layers whose rows do not see far.
    pub const fn windowed_bytes(&self, tokens: u64, dtype: KvDtype) -> u64 {
        let elements = self.windowed.layers as u64 * self.kv_heads as u64 * self.head_dim as u64;
        2 * elements * tokens * dtype.bytes() as u64
    }

    /// Checks every count against its limit and the counts against each other.
    ///
    /// # Errors
    /// The first field that is out of bounds, by name.
    pub fn validate(&self) -> Result<(), Refusal> {
        Refusal::unless_within("vocab", self.vocab, 1, limits::VOCAB_MAX)?;
        Refusal::unless_within("layers", self.layers, 1, limits::LAYERS_MAX)?;
        Refusal::unless_within("width", self.width, 1, limits::WIDTH_MAX)?;
        Refusal::unless_within("heads", self.heads, 1, limits::HEADS_MAX)?;
        Refusal::unless_within("kv_heads", self.kv_heads, 1, self.heads)?;
        Refusal::unless_within("head_dim", self.head_dim, 2, limits::HEAD_DIM_MAX)?;
        Refusal::unless_within("ffn", self.ffn, 1, limits::WIDTH_MAX)?;
        Refusal::unless_within("recurrent_layers", self.recurrent_layers, 0, self.layers)?;
        let most = (self.layers - self.recurrent_layers).saturating_sub(1);
        Refusal::unless_within("kv_shared_layers", self.kv_shared_layers, 0, most)?;
        let most = if self.recurrent_layers == 0 { 0 } else { limits::STATE_BYTES_MAX };
        Refusal::unless_within("state_bytes", self.state_bytes, 0, most)?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            let bound = format!("a divisor of heads = {}", self.heads);
            return Err(Refusal::new("kv_heads", self.kv_heads, bound));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(Refusal::new("head_dim", self.head_dim, "even, for rotary embedding"));
        }
        self.wide.validate(self)?;
        let most = self.kv_layers() - self.wide.layers;
        Refusal::unless_within("windowed.layers", self.windowed.layers, 0, most)?;
        let most = if self.windowed.layers == 0 { 0 } else { u32::MAX };
        Refusal::unless_within("windowed.tokens", self.windowed.tokens, 0, most).map(drop)
    }
}

/// Positions of a model that was made for `positions` and whose rotary embedding is `scaling`:
/// YaRN is `factor` times as long as `original`, what it was before; linear scaling `factor` times
/// as long as it was made for. Other kinds say themselves how long they are. A file may tell the
/// length before or after scaling, so it is never less than what it tells; 0 is no bound.
pub fn scaled_positions(positions: u32, scaling: &str, factor: f64, original: Option<f64>) -> u32 {
    let scaled = match scaling {
        "yarn" => original.unwrap_or(positions.into()) * factor,
        "linear" => f64::from(positions) * factor,
        _ => return positions,
    };
    let most = limits::PROMPT_TOKENS_MAX + limits::OUTPUT_TOKENS_MAX;
    // What is no number becomes 0.
    if positions == 0 { 0 } else { positions.max((scaled.round() as u32).min(most)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validates_counts_and_relations() {
        let good = ModelShape {
            vocab: 4096,
            layers: 6,
            width: 256,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            ffn: 640,
            max_positions: 65_536,
            recurrent_layers: 0,
            state_bytes: 0,
            wide: WideHeads::NONE,
            kv_shared_layers: 0,
            windowed: WindowedLayers::NONE,
        };
        assert_eq!(good.validate(), Ok(()));
        assert_eq!(good.group(), 2);
        assert_eq!(good.kv_bytes(10, KvDtype::Bf16), 2 * 6 * 2 * 64 * 10 * 2);
        let check = |bad: ModelShape, field: &str| {
            assert_eq!(bad.validate().unwrap_err().field, field);
        };
        check(ModelShape { kv_heads: 3, ..good.clone() }, "kv_heads");
        check(ModelShape { kv_heads: 0, ..good.clone() }, "kv_heads");
        check(ModelShape { head_dim: 7, ..good.clone() }, "head_dim");
        check(ModelShape { vocab: 0, ..good.clone() }, "vocab");
        let sharing = ModelShape { kv_shared_layers: 4, ..good.clone() };
        assert_eq!(sharing.validate(), Ok(()));
        assert_eq!((sharing.memory_layers(), sharing.kv_layers()), (2, 2));
        assert_eq!(sharing.kv_bytes(10, KvDtype::Bf16), 2 * 2 * 2 * 64 * 10 * 2);
        check(ModelShape { kv_shared_layers: 6, ..good.clone() }, "kv_shared_layers");
        check(ModelShape { recurrent_layers: 2, ..sharing }, "kv_shared_layers");
        let all = ModelShape { recurrent_layers: 6, state_bytes: 96, ..good.clone() };
        assert_eq!((all.validate(), all.kv_bytes(10, KvDtype::Bf16)), (Ok(()), 0));
        check(ModelShape { recurrent_layers: 7, ..all }, "recurrent_layers");
        let wide = WideHeads { layers: 2, kv_heads: 1, head_dim: 128 };
        let with = |wide| ModelShape { wide, ..good.clone() };
        assert_eq!(with(wide).validate(), Ok(()));
        assert_eq!(with(wide).kv_bytes(10, KvDtype::Bf16), 2 * (4 * 2 * 64 + 2 * 128) * 10 * 2);
        check(with(WideHeads { layers: 7, ..wide }), "wide.layers");
        check(with(WideHeads { layers: 0, ..wide }), "wide.kv_heads");
        check(with(WideHeads { kv_heads: 3, ..wide }), "wide.kv_heads");
        check(with(WideHeads { head_dim: 192, ..wide }), "wide.head_dim");
        check(with(WideHeads { head_dim: 32, ..wide }), "wide.head_dim");
        check(with(WideHeads { kv_heads: 2, head_dim: 64, ..wide }), "wide.layers");
        let with = |windowed| ModelShape { wide, windowed, ..good.clone() };
        let windowed = WindowedLayers { layers: 3, tokens: 127 };
        assert_eq!(with(windowed).validate(), Ok(()));
        assert_eq!(with(windowed).windowed_bytes(10, KvDtype::Bf16), 2 * 3 * 2 * 64 * 10 * 2);
        check(with(WindowedLayers { layers: 5, ..windowed }), "windowed.layers");
        check(with(WindowedLayers { layers: 0, ..windowed }), "windowed.tokens");
        check(ModelShape { layers: u32::MAX, ..good }, "layers");
    }

    #[test]
    fn positions_are_scaled_within_bounds() {
        let check = |positions, scaling, factor, original, want| {
            assert_eq!(scaled_positions(positions, scaling, factor, original), want, "{scaling}");
        };
        check(40_960, "yarn", 4.0, Some(32_768.0), 131_072);
        check(131_072, "yarn", 4.0, Some(32_768.0), 131_072);
        check(4096, "linear", 2.0, None, 8192);
        check(4096, "llama3", 8.0, Some(1024.0), 4096);
        check(0, "linear", 2.0, None, 0);
        for factor in [f64::NAN, f64::NEG_INFINITY, -1.0, 0.0] {
            check(4096, "linear", factor, None, 4096);
        }
        let most = limits::PROMPT_TOKENS_MAX + limits::OUTPUT_TOKENS_MAX;
        check(4096, "linear", f64::INFINITY, None, most);
    }
}

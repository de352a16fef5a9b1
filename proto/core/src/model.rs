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
}

impl ModelShape {
    /// Query heads that share one KV head.
    pub const fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    /// Bytes of K and V of `tokens` remembered keys over all layers and KV heads.
    pub const fn kv_bytes(&self, tokens: u64, dtype: KvDtype) -> u64 {
        2 * self.layers as u64
            * self.kv_heads as u64
            * self.head_dim as u64
            * tokens
            * dtype.bytes() as u64
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
        if !self.heads.is_multiple_of(self.kv_heads) {
            let bound = format!("a divisor of heads = {}", self.heads);
            return Err(Refusal::new("kv_heads", self.kv_heads, bound));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(Refusal::new("head_dim", self.head_dim, "even, for rotary embedding"));
        }
        Ok(())
    }
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
        check(ModelShape { layers: u32::MAX, ..good }, "layers");
    }
}

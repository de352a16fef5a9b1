//! How the past reaches a block's queries: the memory travels to them, or it stays where it was
//! computed and they travel to it.

use crate::work::Peer;
use crate::{Epoch, KvDtype, MemoryPolicy, ModelShape, Refusal};

/// What a caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Exchange {
    /// Keys travel to the queries.
    Move,
    /// Queries travel to the keys; partial states `(m, l, o)` come back and are merged.
    Stay,
    /// Whichever moves fewer bytes.
    #[default]
    Auto,
}

/// What travels in a request whose keys stay with the workers that computed them. It changes
/// no bit of the answer: states over the same shards are merged in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Carry {
    /// Queries go out, states come back.
    Queries,
    /// Keys come, are attended to, and are forgotten.
    Keys,
    /// For each block and holder whichever is fewer bytes ([`queries_bytes`], [`keys_bytes`]), or
    /// keys where they are at most a twentieth more.
    Fewest,
}

/// Elements of queries and outputs on the wire, and of f32 keys and values that are handed off;
/// m, l, log-sum-exps and scores are f32 always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WireDtype {
    /// Four bytes: exact.
    #[default]
    F32,
    /// Two bytes, 8 bits of mantissa.
    Bf16,
    /// Two bytes, 11 bits of mantissa, at most 65504.
    F16,
}

/// Where the keys of all chunks before one are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Workers that hold any.
    pub holders: Vec<Peer>,
    /// Per chunk, ascending from chunk 0: index into `holders`, and the epoch in which the
    /// chunk was assigned there.
    pub shards: Vec<(u32, Epoch)>,
    /// What travels.
    pub carry: Carry,
    /// How.
    pub wire: WireDtype,
}

impl Exchange {
    /// The name that users write.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Move => "move",
            Self::Stay => "stay",
            Self::Auto => "auto",
        }
    }

    /// Checks what is asked for against the model.
    ///
    /// # Errors
    /// `stay` for a model of which some layer has no keys of its own that could stay.
    pub fn validate(self, shape: &ModelShape) -> Result<(), Refusal> {
        let why = match (shape.recurrent_layers, shape.kv_shared_layers) {
            _ if self != Self::Stay => return Ok(()),
            (0, 0) => return Ok(()),
            (0, some) => format!("{some} layers of this model attend to keys of earlier layers"),
            (some, _) => format!(
                "{some} layers of this model remember in a state, which goes from chunk to chunk"
            ),
        };
        Err(Refusal::new("exchange", self, format!("auto or move: {why}")))
    }

    /// What a request does: `None` where memory sets are handed from chunk to chunk, otherwise
    /// keys stay in shards. Facts of the request alone decide, never the cluster, so that the
    /// answer does not depend on how many workers there are.
    ///
    /// A policy without a bound always keeps its keys in shards. For one with a bound, `auto`
    /// compares a hand-off of the whole budget with one holder's share of the two rounds. Where a
    /// layer remembers in a state, memory sets are handed on under any policy: a state is of all
    /// tokens before it and has to go from chunk to chunk, and so may the keys beside it. They are
    /// handed on too where layers attend to keys of earlier ones, which holders would be asked for
    /// again by each, after they had given some of them up.
    pub fn resolve(
        self,
        policy: &MemoryPolicy,
        chunk_tokens: u32,
        model: (&ModelShape, KvDtype),
        wire: WireDtype,
    ) -> Option<Carry> {
        if model.0.recurrent_layers > 0 || model.0.kv_shared_layers > 0 {
            return None;
        }
        let Some(budget_tokens) = policy.budget_tokens() else {
            return Some(match self {
                Self::Move => Carry::Keys,
                Self::Stay => Carry::Queries,
                Self::Auto => Carry::Fewest,
            });
        };
        let moved = keys_bytes((model.0, wire.of_keys(model.1)), budget_tokens);
        let stayed = queries_bytes(model.0, wire, chunk_tokens, 1);
        match self {
            Self::Move => None,
            Self::Auto if moved <= stayed => None,
            Self::Stay | Self::Auto => Some(Carry::Queries),
        }
    }
}

/// Bytes in one layer when `keys_tokens` keys travel with scores, votes and positions:
/// G N (2 D b + 12), b bytes an element.
pub fn keys_bytes((shape, kv): (&ModelShape, KvDtype), keys_tokens: u32) -> u64 {
    let row = 2 * u64::from(shape.head_dim) * kv.bytes() as u64 + 12;
    u64::from(shape.kv_heads) * u64::from(keys_tokens) * row
}

/// Bytes in one layer when the queries of `block_tokens` rows go to one holder and `states`
/// partial states come back: H T (D w + S (D w + 8)), w bytes an element of the wire.
pub fn queries_bytes(shape: &ModelShape, wire: WireDtype, block_tokens: u32, states: u32) -> u64 {
    let row = u64::from(shape.head_dim) * wire.bytes() as u64;
    u64::from(shape.heads) * u64::from(block_tokens) * (row + u64::from(states) * (row + 8))
}

/// The largest error that an audit of merged states may show (see
/// [`MergeAudit`](crate::work::MergeAudit)): of f32 arithmetic, or of the roundings that a
/// backend may do beside bf16 keys and that two bytes on the wire do.
pub fn merge_error_bound(kv: KvDtype, wire: WireDtype) -> f64 {
    match (kv, wire) {
        (KvDtype::F32, WireDtype::F32) => 1e-5,
        (KvDtype::F32, WireDtype::F16) => 1e-2,
        (KvDtype::Bf16, _) | (_, WireDtype::Bf16) => 5e-2,
    }
}

impl WireDtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// How as many bytes as these take would store keys that are stored as `kv`: what is stored
    /// in two bytes an element travels as it is.
    pub const fn of_keys(self, kv: KvDtype) -> KvDtype {
        match self {
            Self::F32 => kv,
            Self::Bf16 | Self::F16 => KvDtype::Bf16,
        }
    }

    /// The greatest magnitude that is not rounded to infinity.
    pub const fn most(self) -> f32 {
        match self {
            Self::F32 => f32::MAX,
            Self::Bf16 => f32::from_bits(0x7f7f_7fff),
            Self::F16 => 65_519.996,
        }
    }

    /// The name that users write.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

impl std::fmt::Display for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::fmt::Display for WireDtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Exchange {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        match text {
            "move" => Ok(Self::Move),
            "stay" => Ok(Self::Stay),
            "auto" => Ok(Self::Auto),
            _ => Err(Refusal::new("exchange", text, "move, stay or auto")),
        }
    }
}

impl std::str::FromStr for WireDtype {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        match text {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "f16" => Ok(Self::F16),
            _ => Err(Refusal::new("wire", text, "f32, bf16 or f16")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{WideHeads, WindowedLayers};

    const SHAPE: ModelShape = ModelShape {
        vocab: 100,
        layers: 2,
        width: 64,
        heads: 8,
        kv_heads: 2,
        head_dim: 16,
        ffn: 16,
        max_positions: 0,
        recurrent_layers: 0,
        state_bytes: 0,
        wide: WideHeads::NONE,
        kv_shared_layers: 0,
        windowed: WindowedLayers::NONE,
    };

    #[test]
    fn bytes_by_hand() {
        assert_eq!(keys_bytes((&SHAPE, KvDtype::Bf16), 100), 2 * 100 * (2 * 16 * 2 + 12));
        assert_eq!(queries_bytes(&SHAPE, WireDtype::F32, 4, 3), 8 * 4 * (64 + 3 * 72));
        assert_eq!(queries_bytes(&SHAPE, WireDtype::F16, 4, 1), 8 * 4 * (32 + 40));
    }

    #[test]
    fn facts_of_the_request_decide() {
        let check = |exchange: Exchange, policy: MemoryPolicy, want: Option<Carry>| {
            let got = exchange.resolve(&policy, 64, (&SHAPE, KvDtype::Bf16), WireDtype::F32);
            assert_eq!(got, want, "{exchange} {policy:?}");
        };
        check(Exchange::Move, MemoryPolicy::dense(), Some(Carry::Keys));
        check(Exchange::Stay, MemoryPolicy::dense(), Some(Carry::Queries));
        check(Exchange::Auto, MemoryPolicy::dense(), Some(Carry::Fewest));
        check(Exchange::Auto, MemoryPolicy::h2o(4, 16, 16), None);
        check(Exchange::Auto, MemoryPolicy::h2o(10_000, 16, 16), Some(Carry::Queries));
        check(Exchange::Move, MemoryPolicy::h2o(10_000, 16, 16), None);
        check(Exchange::Stay, MemoryPolicy::window(4, 16), Some(Carry::Queries));
    }

    #[test]
    fn states_and_shared_keys_are_handed_on_and_so_are_the_keys_beside_them() {
        let check = |shape: ModelShape| {
            for policy in [MemoryPolicy::dense(), MemoryPolicy::h2o(10_000, 16, 16)] {
                for exchange in [Exchange::Move, Exchange::Auto] {
                    let model = (&shape, KvDtype::Bf16);
                    assert_eq!(exchange.resolve(&policy, 64, model, WireDtype::F32), None);
                    assert_eq!(exchange.validate(&shape), Ok(()));
                }
            }
            let refusal = Exchange::Stay.validate(&shape).unwrap_err().to_string();
            assert!(refusal.starts_with("exchange = stay: must be auto or move: 1 layers"));
        };
        check(ModelShape { recurrent_layers: 1, state_bytes: 96, ..SHAPE });
        check(ModelShape { kv_shared_layers: 1, ..SHAPE });
        assert_eq!(Exchange::Stay.validate(&SHAPE), Ok(()));
    }

    #[test]
    fn keys_that_travel_in_two_bytes_are_counted_so() {
        let check = |wire: WireDtype, kv: KvDtype, want: Option<Carry>| {
            let policy = MemoryPolicy::h2o(4, 98, 98);
            assert_eq!(Exchange::Auto.resolve(&policy, 64, (&SHAPE, kv), wire), want, "{wire}");
        };
        check(WireDtype::F32, KvDtype::F32, None); // 56,000 bytes of keys, 69,632 of queries
        check(WireDtype::Bf16, KvDtype::F32, None); // 30,400 and 36,864
        assert_eq!(WireDtype::F16.of_keys(KvDtype::F32), KvDtype::Bf16);
        assert_eq!(WireDtype::Bf16.of_keys(KvDtype::Bf16), KvDtype::Bf16);
    }

    #[test]
    fn names_are_read_back() {
        for exchange in [Exchange::Move, Exchange::Stay, Exchange::Auto] {
            assert_eq!(exchange.to_string().parse(), Ok(exchange));
        }
        for wire in [WireDtype::F32, WireDtype::Bf16, WireDtype::F16] {
            assert_eq!(wire.to_string().parse(), Ok(wire));
        }
        assert_eq!("push".parse::<Exchange>().unwrap_err().field, "exchange");
        assert_eq!("int8".parse::<WireDtype>().unwrap_err().field, "wire");
    }
}

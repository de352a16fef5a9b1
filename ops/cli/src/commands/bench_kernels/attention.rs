//! Attention over own and remembered keys, and what is done with its results.

use std::sync::Arc;

use aqueduct_kernels::backend::Scope;
use aqueduct_kernels::cpu::peak::Factors;
use aqueduct_kernels::{
    Array, AttentionOps, AttentionState, BackendError, Cpu, Heads, Keys, KvDtype, KvHeads, Leaves,
    MemorySet, Queries, Ranking, Selection, SelectionOps,
};

use super::case::{Case, PLAIN, Work, copies_of, noise, timed};
use super::layer::{HEAD_DIM, HEADS, KV_HEADS};

/// T of a chunk.
const CHUNK: usize = 1024;
/// Keys that the default policy keeps.
const KEPT: usize = 516;
const SCALE: f32 = 0.088;

/// Over which keys.
#[derive(Clone, Copy)]
enum Over {
    /// The block's own.
    Own,
    /// So many remembered ones.
    Past(usize),
}

/// What is asked of the keys.
#[derive(Clone, Copy, PartialEq)]
enum Ask {
    Attend,
    Weigh,
    /// Output and masses in one pass, over own keys too.
    All,
}

/// `attend`, `weigh` and `attend_all` of a chunk and of a decode step.
pub(super) fn over_keys(cpu: &Cpu) -> Vec<Case> {
    let chunk = [Over::Own, Over::Past(KEPT), Over::Past(8192)].map(|over| (CHUNK, over));
    let decode = [KEPT, 8192, 32_768].map(|keys| (1, Over::Past(keys)));
    let mut cases = Vec::new();
    for (tokens, over) in chunk.into_iter().chain(decode) {
        for ask in [Ask::Attend, Ask::Weigh] {
            cases.push(attention(cpu, ask, tokens, (over, KvDtype::Bf16)));
        }
    }
    cases.push(attention(cpu, Ask::Attend, CHUNK, (Over::Past(KEPT), KvDtype::F32)));
    for (tokens, keys) in [(CHUNK, KEPT), (1, KEPT), (1, 8192), (1, 32_768)] {
        cases.push(attention(cpu, Ask::All, tokens, (Over::Past(keys), KvDtype::Bf16)));
    }
    cases
}

fn attention(cpu: &Cpu, ask: Ask, tokens: usize, (over, kv): (Over, KvDtype)) -> Case {
    let (keys, start) = match over {
        Over::Own => (tokens, 0),
        Over::Past(keys) => (keys, keys),
    };
    let prepare = move |_: &Cpu| -> Result<Work, BackendError> {
        let q = queries(tokens);
        let own = own_keys(tokens, start as u32);
        let keys = make_keys(keys, kv);
        let copies = vec![keys.clone(); copies_of(keys.k.bytes() + keys.v.bytes())];
        let (lse, weights) = (vec![6.0; HEADS * tokens], vec![1.0; tokens]);
        let mut turn = 0;
        Ok(Box::new(move |cpu| {
            turn += 1;
            let keys = &copies[turn % copies.len()];
            let queries = Queries {
                q: &q,
                start: start as u32,
                scale: SCALE,
                window: None,
                softcap: None,
                slopes: None,
            };
            match ask {
                Ask::Attend => timed(|| cpu.attend(queries, keys)),
                Ask::Weigh => timed(|| cpu.weigh(queries, keys, &lse, &weights)),
                Ask::All => {
                    let scope = Scope {
                        past: keys,
                        leaves: Leaves::ONE,
                        own: &own,
                        row_weights: Some(&weights),
                        sinks: None,
                        outputs: tokens,
                        rounded: true,
                    };
                    timed(|| cpu.attend_all(queries, scope))
                }
            }
        }))
    };
    let causal = tokens * (tokens + 1) / 2;
    let pairs = match over {
        Over::Own => causal,
        Over::Past(keys) => tokens * keys,
    };
    let (factors, element) = match kv {
        KvDtype::F32 => (Factors::F32, 4),
        KvDtype::Bf16 => (Factors::Bf16, 2),
    };
    let read = |keys| KV_HEADS * keys * HEAD_DIM * element;
    let rows = 4 * HEADS * tokens * HEAD_DIM;
    let (kernel, flop, bytes) = match ask {
        Ask::Attend => ("attend", 4 * pairs, 2 * read(keys) + 2 * rows),
        Ask::Weigh => ("weigh", 2 * pairs, read(keys) + rows),
        Ask::All => ("attend_all", 4 * (pairs + causal), 2 * read(keys + tokens) + 2 * rows),
    };
    Case {
        kernel,
        path: cpu.attention_path(factors),
        shape: match over {
            Over::Own => format!("T={tokens} own"),
            Over::Past(keys) => format!("T={tokens} past {keys}"),
        },
        flop: (flop * HEADS * HEAD_DIM) as u64,
        bytes: bytes as u64,
        prepare: Box::new(prepare),
    }
}

fn queries(tokens: usize) -> Heads {
    let data = noise(HEADS * tokens * HEAD_DIM);
    Heads { heads: HEADS, tokens, head_dim: HEAD_DIM, data: data.into() }
}

fn make_keys(count: usize, kv: KvDtype) -> Keys {
    let data = noise(KV_HEADS * count * HEAD_DIM);
    let array = || KvHeads::from_f32(KV_HEADS, count, HEAD_DIM, &data, kv);
    let positions: Vec<u32> = (0..count as u32).collect();
    Keys::new(positions.repeat(KV_HEADS), array(), array())
}

/// Merging states, and choosing what is remembered.
pub(super) fn bookkeeping() -> Vec<Case> {
    vec![merge(), select_after_chunk(), select_after_token()]
}

fn merge() -> Case {
    let prepare = |_: &Cpu| -> Result<Work, BackendError> {
        let state = AttentionState {
            heads: HEADS,
            tokens: CHUNK,
            head_dim: HEAD_DIM,
            m: noise(HEADS * CHUNK).into(),
            l: vec![1.0; HEADS * CHUNK].into(),
            o: noise(HEADS * CHUNK * HEAD_DIM).into(),
        };
        let other = AttentionState { m: vec![0.0; HEADS * CHUNK].into(), ..state.clone() };
        Ok(Box::new(move |_| {
            let state = state.clone();
            timed(|| Ok(state.merge(&other)))
        }))
    };
    let elements = HEADS * CHUNK * HEAD_DIM;
    Case {
        kernel: "merge",
        path: PLAIN,
        shape: format!("T={CHUNK}"),
        flop: 3 * elements as u64,
        bytes: 12 * elements as u64,
        prepare: Box::new(prepare),
    }
}

/// The default policy.
const SELECTION: Selection = Selection {
    keep_all: false,
    sinks: 4,
    local: 256,
    heavy: 256,
    ranking: Ranking { decay: 1.0, window: 0, age_normalised: false },
    window: None,
};

/// What the default policy remembers before the measured block.
fn memory() -> MemorySet {
    let keys = make_keys(KEPT, KvDtype::Bf16);
    let score = noise(KV_HEADS * KEPT).iter().map(|x| x.abs()).collect();
    MemorySet {
        keys,
        score,
        votes: vec![1.0; KV_HEADS * KEPT].into(),
        state: Array::default(),
        end: KEPT as u32,
    }
}

/// `count` keys that follow `end`.
fn own_keys(count: usize, end: u32) -> Keys {
    let mut keys = make_keys(count, KvDtype::Bf16);
    keys.positions.iter_mut().for_each(|position| *position += end);
    keys
}

fn masses(keys: usize) -> Array<f32> {
    noise(KV_HEADS * keys).iter().map(|x| x.abs()).collect()
}

fn select_after_chunk() -> Case {
    let prepare = |_: &Cpu| -> Result<Work, BackendError> {
        let (past, own) = (memory(), own_keys(CHUNK, KEPT as u32));
        let (past_mass, own_mass) = (masses(KEPT), masses(CHUNK));
        Ok(Box::new(move |cpu| {
            let past = Arc::new(past.clone());
            timed(|| cpu.select(past, &own, (&past_mass, &own_mass), &SELECTION))
        }))
    };
    select(CHUNK, 4 * KEPT, Box::new(prepare))
}

fn select_after_token() -> Case {
    let prepare = |_: &Cpu| -> Result<Work, BackendError> {
        let (mut past, mut own) = (Arc::new(memory()), own_keys(1, KEPT as u32));
        let (past_mass, own_mass) = (masses(KEPT), masses(1));
        Ok(Box::new(move |cpu| {
            own.positions.fill(past.end);
            let taken = std::mem::replace(
                &mut past,
                Arc::new(MemorySet::empty(KV_HEADS, HEAD_DIM, KvDtype::Bf16)),
            );
            let mut next = None;
            let took = timed(|| {
                next = Some(cpu.select(taken, &own, (&past_mass, &own_mass), &SELECTION)?);
                Ok(())
            });
            past = Arc::new(next.expect("a step that went well has a result").memory);
            took
        }))
    };
    select(1, 4, Box::new(prepare))
}

/// `moved` keys, with their values, are read or written at least.
fn select(tokens: usize, moved: usize, prepare: super::case::Prepare) -> Case {
    Case {
        kernel: "select",
        path: PLAIN,
        shape: format!("T={tokens} past {KEPT}"),
        flop: 0,
        bytes: (KV_HEADS * moved * HEAD_DIM * 2) as u64,
        prepare,
    }
}

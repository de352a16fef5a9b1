//! What is timed, and the least that it could take on an H100 SXM.
//!
//! 989 TFLOP/s of bf16 by the datasheet, 798 in products of 8192 on random data; 3.0 TB/s when
//! copying, 3.24 TB/s when reading. With C rows, M remembered keys and Hq heads of d:
//! pairs = C (C + 1) / 2 + C M; attention is 4 d Hq pairs FLOP, masses 2 d Hq pairs.

use std::sync::Arc;

use aqueduct_kernels::cuda::Cuda;
use aqueduct_kernels::{Attended, AttentionOps, BackendError, Keys, LayerOps, MemorySet, Scope};

use super::scene::{
    CHUNK, DEPTH, FFN, HEAD_DIM, HEADS, KV_HEADS, MEMORY, SELECTION, Scene, WIDTH, queries,
};

const PEAK: f64 = 989e12;
const PRODUCTS: f64 = 798e12;
const COPY: f64 = 3.0e12;
const READ: f64 = 3.24e12;

const PAIRS: f64 = (CHUNK * (CHUNK + 1) / 2 + CHUNK * MEMORY) as f64;
const ATTENTION_FLOP: f64 = 4.0 * (HEAD_DIM * HEADS) as f64 * PAIRS;
const MASSES_FLOP: f64 = ATTENTION_FLOP / 2.0;
/// Of qkv, out, gate, up and down.
const LAYER_FLOP: f64 = 2.0
    * (CHUNK * WIDTH) as f64
    * ((HEADS + 2 * KV_HEADS) * HEAD_DIM + HEADS * HEAD_DIM + 3 * FFN) as f64;
/// Keys and values of a memory set, read and written.
const GATHER_BYTES: f64 = (2 * 2 * KV_HEADS * MEMORY * HEAD_DIM * 2) as f64;
/// Keys and values that a decode step reads.
const DEPTH_BYTES: f64 = (2 * KV_HEADS * DEPTH * HEAD_DIM * 2) as f64;

/// One thing to time.
pub(super) struct Case<'a> {
    pub(super) kernel: &'static str,
    pub(super) bound: &'static str,
    pub(super) floor_us: f64,
    pub(super) target_us: f64,
    pub(super) flop: f64,
    pub(super) bytes: f64,
    pub(super) work: Box<dyn FnMut() -> Result<(), BackendError> + 'a>,
}

/// Every case.
///
/// # Errors
/// What the device says to the operations that prepare others.
pub(super) fn all<'a>(cuda: &'a Cuda, scene: &'a Scene) -> Result<Vec<Case<'a>>, BackendError> {
    let mut cases = prefill(cuda, scene)?;
    cases.extend(decode(cuda, scene)?);
    cases.extend(whole(cuda, scene)?);
    Ok(cases)
}

fn scope<'a>(past: &'a Keys, own: &'a Keys, row_weights: Option<&'a [f32]>) -> Scope<'a> {
    Scope { past, own, row_weights }
}

fn select(cuda: &Cuda, scene: &Scene, attended: &Attended) -> Result<(), BackendError> {
    let masses = (&attended.past_mass, &attended.own_mass);
    cuda.select(scene.memory.clone(), &scene.qkv.keys, masses, &SELECTION).map(|_| ())
}

fn prefill<'a>(cuda: &'a Cuda, scene: &'a Scene) -> Result<Vec<Case<'a>>, BackendError> {
    const WEIGHTS: &[f32] = &[1.0; CHUNK];
    let (past, own) = (&scene.memory.keys, &scene.qkv.keys);
    let block = || queries(&scene.qkv, MEMORY);
    let own_state = cuda.attend(block(), own)?;
    let attended = cuda.attend_all(block(), scope(past, own, Some(WEIGHTS)))?;
    Ok(vec![
        Case {
            kernel: "attention, past and own",
            bound: "206 GFLOP at 989 TFLOP/s; target 420 TFLOP/s",
            floor_us: ATTENTION_FLOP / PEAK * 1e6,
            target_us: ATTENTION_FLOP / 420e12 * 1e6,
            flop: ATTENTION_FLOP,
            bytes: 89e6,
            work: Box::new(move || cuda.attend_all(block(), scope(past, own, None)).map(|_| ())),
        },
        Case {
            kernel: "attention, past behind own",
            bound: "1/3 of the pairs: 69 GFLOP at 989 TFLOP/s; target 420 TFLOP/s",
            floor_us: past_flop() / PEAK * 1e6,
            target_us: past_flop() / 420e12 * 1e6,
            flop: past_flop(),
            bytes: 89e6,
            work: Box::new(move || {
                cuda.attend_rest(block(), scope(past, own, None), &own_state).map(|_| ())
            }),
        },
        Case {
            kernel: "attention and masses",
            bound: "309 GFLOP at 989 TFLOP/s; target 420 TFLOP/s and 260 us",
            floor_us: (ATTENTION_FLOP + MASSES_FLOP) / PEAK * 1e6,
            target_us: ATTENTION_FLOP / 420e12 * 1e6 + 260.0,
            flop: ATTENTION_FLOP + MASSES_FLOP,
            bytes: 134e6,
            work: Box::new(move || {
                cuda.attend_all(block(), scope(past, own, Some(WEIGHTS))).map(|_| ())
            }),
        },
        Case {
            kernel: "select and gather",
            bound: "8 MB at 3.0 TB/s; target 20 us",
            floor_us: GATHER_BYTES / COPY * 1e6,
            target_us: 20.0,
            flop: 0.0,
            bytes: GATHER_BYTES,
            work: Box::new(move || select(cuda, scene, &attended)),
        },
    ])
}

fn past_flop() -> f64 {
    4.0 * (HEAD_DIM * HEADS * CHUNK * MEMORY) as f64
}

fn decode<'a>(cuda: &'a Cuda, scene: &'a Scene) -> Result<Vec<Case<'a>>, BackendError> {
    const WEIGHTS: &[f32] = &[1.0];
    let (past, own) = (&scene.deep, &scene.step.keys);
    let step = || queries(&scene.step, DEPTH);
    let floor_us = DEPTH_BYTES / READ * 1e6;
    let case = |kernel, bound, target_us, weights: Option<&'static [f32]>| Case {
        kernel,
        bound,
        floor_us,
        target_us,
        flop: 4.0 * (HEAD_DIM * HEADS * DEPTH) as f64,
        bytes: DEPTH_BYTES,
        work: Box::new(move || cuda.attend_all(step(), scope(past, own, weights)).map(|_| ())),
    };
    Ok(vec![
        case("decode attention", "134 MB at 3.24 TB/s; target 80 %", floor_us / 0.8, None),
        case(
            "decode attention and scores",
            "134 MB at 3.24 TB/s; target 80 % and 6 % for the scores",
            floor_us / 0.8 * 1.06,
            Some(WEIGHTS),
        ),
        one_token(cuda, scene)?,
    ])
}

/// A set that nobody else holds, one key after the other.
fn one_token<'a>(cuda: &'a Cuda, scene: &'a Scene) -> Result<Case<'a>, BackendError> {
    let row = &scene.step.keys;
    let ones = |count: usize| cuda.here(&vec![1.0; KV_HEADS * count].into());
    let (past_mass, own_mass) = (ones(MEMORY)?, ones(1)?);
    let mut set = MemorySet { keys: scene.memory.keys.clone(), ..(*scene.memory).clone() };
    let work = move || {
        let own = Keys::new(vec![set.end; KV_HEADS], row.k.clone(), row.v.clone());
        let empty = MemorySet::empty(KV_HEADS, HEAD_DIM, row.k.dtype());
        let past = Arc::new(std::mem::replace(&mut set, empty));
        set = cuda.select(past, &own, (&past_mass, &own_mass), &SELECTION)?.memory;
        Ok(())
    };
    Ok(Case {
        kernel: "select, one token",
        bound: "one launch; no floor but its 3 us; target 20 us",
        floor_us: 3.0,
        target_us: 20.0,
        flop: 0.0,
        bytes: (KV_HEADS * MEMORY * 6 * 4) as f64,
        work: Box::new(work),
    })
}

fn whole<'a>(cuda: &'a Cuda, scene: &'a Scene) -> Result<Vec<Case<'a>>, BackendError> {
    const WEIGHTS: &[f32] = &[1.0; CHUNK];
    let (layer, x, angles) = (&scene.layer, &scene.x, &scene.angles);
    let attended = cuda.attend_all(
        queries(&scene.qkv, MEMORY),
        scope(&scene.memory.keys, &scene.qkv.keys, None),
    )?;
    let all_flop = LAYER_FLOP + ATTENTION_FLOP + MASSES_FLOP;
    Ok(vec![
        Case {
            kernel: "project and finish",
            bound: "1787 GFLOP at 798 TFLOP/s; target 85 %",
            floor_us: LAYER_FLOP / PRODUCTS * 1e6,
            target_us: LAYER_FLOP / PRODUCTS / 0.85 * 1e6,
            flop: LAYER_FLOP,
            bytes: 0.0,
            work: Box::new(move || {
                cuda.project(layer, x, MEMORY as u32, angles)?;
                cuda.finish(layer, x.clone(), &attended.output).map(|_| ())
            }),
        },
        Case {
            kernel: "one layer of a prefill",
            bound: "2096 GFLOP at 989 TFLOP/s; target 50 % of it without the masses",
            floor_us: all_flop / PEAK * 1e6,
            target_us: (LAYER_FLOP + ATTENTION_FLOP) / PEAK / 0.5 * 1e6,
            flop: all_flop,
            bytes: 0.0,
            work: Box::new(move || {
                let qkv = cuda.project(layer, x, MEMORY as u32, angles)?;
                let scope = scope(&scene.memory.keys, &qkv.keys, Some(WEIGHTS));
                let attended = cuda.attend_all(queries(&qkv, MEMORY), scope)?;
                select(cuda, scene, &attended)?;
                cuda.finish(layer, x.clone(), &attended.output).map(|_| ())
            }),
        },
    ])
}

//! The same bits, however many threads computed them.

use std::sync::Arc;

use crate::array::Array;
use crate::backend::Backend;
use crate::compare::identical;
use crate::memory::MemorySet;
use crate::tensor::{KvDtype, Rows};

use super::chains::H2O;
use super::layers::{angles, rows};
use super::plain::PlainLayer;
use super::scene::Shape;

/// Every operation on shapes wide enough to be divided, with one thread and with each of `others`.
pub fn results_do_not_depend_on_thread_count<B: Backend>(one: &B, others: &[B]) {
    let expected = arrays(one);
    for other in others {
        for ((name, expected), (_, seen)) in expected.iter().zip(arrays(other)) {
            identical(name, &seen, expected).unwrap();
        }
    }
}

/// Results by name.
fn arrays(backend: &dyn Backend) -> Vec<(&'static str, Array<f32>)> {
    let mut arrays = layer(backend, &PlainLayer::shared());
    arrays.extend(layer(backend, &PlainLayer::olmo()));
    arrays.extend(layer(backend, &PlainLayer::latent()));
    arrays.extend(layer(backend, &PlainLayer::beside()));
    for kv in [KvDtype::F32, KvDtype::Bf16] {
        for tokens in [1, 130] {
            arrays.extend(attention(backend, Shape { heads: 6, kv, ..Shape::default() }, tokens));
        }
    }
    for (name, layer) in super::recurrent::layers() {
        let x = rows(23, 40, layer.columns());
        let recurred = backend.recur(&layer, &x, Array::default()).expect("fits");
        arrays.push((name, recurred.output.into_vec().into()));
        arrays.push((name, recurred.state));
    }
    arrays
}

fn layer(backend: &dyn Backend, plain: &PlainLayer) -> Vec<(&'static str, Array<f32>)> {
    let packed = plain.pack(backend);
    let spec = packed.spec;
    let mut arrays = Vec::new();
    for tokens in [1, 2, 130] {
        let x = rows(21, tokens, plain.width());
        let angles = angles(7, tokens, spec.head_dim);
        let qkv = backend.project(&packed, &x, (7, &angles), x.rows()).expect("fits");
        let heads = |of: &crate::tensor::KvHeads| -> Vec<f32> {
            (0..spec.kv_heads).flat_map(|g| of.head_f32(g)).collect()
        };
        arrays.push(("q", qkv.q.data));
        arrays.push(("k", heads(&qkv.keys.k).into()));
        arrays.push(("v", heads(&qkv.keys.v).into()));
        arrays.push(("linear", backend.linear(&x, &packed.qkv).expect("fits").into_vec().into()));
        let weight = vec![0.5; plain.width()].into();
        arrays.push(("norm", backend.norm(&x, &weight, spec.norm_eps).into_vec().into()));
        let attention: Rows = rows(22, tokens, spec.heads * spec.head_dim);
        let finished = backend.finish(&packed, &x, &attention).expect("fits");
        arrays.push(("finish", finished.into_vec().into()));
    }
    arrays
}

fn attention(
    backend: &dyn Backend,
    shape: Shape,
    tokens: usize,
) -> Vec<(&'static str, Array<f32>)> {
    const PAST: usize = 300;
    let block = shape.block(2 * PAST as u32, tokens);
    let none = Array::from(vec![0.0; shape.kv_heads * PAST]);
    let past = MemorySet {
        keys: shape.past(PAST),
        score: none.clone(),
        votes: none,
        state: Array::default(),
        end: 2 * PAST as u32,
    };
    let queries = block.queries();
    let own = backend.attend(queries, &block.keys).expect("fits");
    let state = backend.attend(queries, &past.keys).expect("fits").merge(&own);
    let (lse, weights) = (state.lse(), vec![1.0; tokens]);
    let past_mass = backend.weigh(queries, &past.keys, &lse, &weights).expect("fits");
    let own_mass = backend.weigh(queries, &block.keys, &lse, &weights).expect("fits");
    let masses = (&past_mass, &own_mass);
    let kept = backend.select(Arc::new(past), &block.keys, masses, &H2O).expect("fits").memory;
    let positions = kept.keys.positions.iter().map(|&position| position as f32).collect();
    vec![
        ("m", state.m),
        ("l", state.l),
        ("o", state.o),
        ("past mass", past_mass),
        ("own mass", own_mass),
        ("kept positions", positions),
        ("kept scores", kept.score),
    ]
}

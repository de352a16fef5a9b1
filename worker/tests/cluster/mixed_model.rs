//! The tiny decoder with layers that remember in a state.

use std::sync::Arc;

use aqueduct_engine::Model;
use aqueduct_kernels::{Delta, GroupNorm, KvDtype, Recurrent, Reference, Rule, Scan};

use crate::tiny_model::{Weights, made};

/// Eight layers, of which two have keys, and the others a state: of every rule one at least,
/// also in the first and in the last layer.
pub(crate) fn mixed(kv: KvDtype) -> Arc<Model> {
    made(("mixed", 8), kv, Arc::new(Reference), |idx, weights| match idx % 4 {
        0 => Some(delta(weights)),
        2 => Some(weights.recurrent(3, 20, Rule::Gated)),
        3 => Some(scan(weights)),
        _ => None,
    })
}

fn delta(weights: &mut Weights) -> Recurrent {
    let (rate, shift) = (vec![0.5, 0.1, 1.0, 0.2].into(), weights.numbers(4));
    let delta = Delta {
        key_heads: 2,
        value_heads: 4,
        tiled: false,
        key_dim: 5,
        value_dim: 6,
        rate,
        shift,
        steps: 1.0,
        norm: vec![1.0; 6].into(),
        norm_eps: 1e-6,
    };
    weights.recurrent(4, delta.channels(), Rule::Delta(delta))
}

fn scan(weights: &mut Weights) -> Recurrent {
    let (rate, shift, skip) = (vec![0.3, 0.05].into(), weights.numbers(2), weights.numbers(2));
    let norm = Some(GroupNorm { weights: vec![1.0; 14].into(), groups: 1, eps: 1e-6 });
    let limits = [0.0, f32::INFINITY];
    let (heads, head_dim, groups, state_dim) = (2, 7, 1, 3);
    let (dt_scale, x_scale) = (1.0, 1.0);
    let scan = Scan {
        heads,
        head_dim,
        groups,
        state_dim,
        rate,
        shift,
        skip,
        dt_scale,
        x_scale,
        limits,
        norm,
    };
    weights.recurrent(2, scan.channels(), Rule::Scan(scan))
}

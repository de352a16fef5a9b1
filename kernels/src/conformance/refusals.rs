//! What does not fit is one clear error, never a panic and never plausible numbers.

use std::sync::Arc;

use crate::array::Array;
use crate::backend::{Backend, BackendError};
use crate::latent::Latent;
use crate::memory::{Keys, MemorySet};
use crate::tensor::{KvDtype, Rows};
use crate::weights::{Beside, FeedForward, LayerInput, LayerWeights, Linear, Matrix, MatrixData};

use super::chains::H2O;
use super::layers::{angles, rows};
use super::plain::PlainLayer;
use super::scene::Shape;

fn refused<T>(result: Result<T, BackendError>, op: &str) {
    match result {
        Err(BackendError::Shape { op: named, what }) => {
            assert_eq!(named, op);
            assert!(!what.is_empty());
        }
        Err(other) => panic!("{op}: refused as {other}"),
        Ok(_) => panic!("{op}: accepted shapes that do not belong together"),
    }
}

fn not_finite<T>(result: Result<T, BackendError>, op: &str) {
    match result {
        Err(BackendError::NotFinite { op: named, .. }) => assert_eq!(named, op),
        Err(other) => panic!("{op}: refused as {other}"),
        Ok(_) => panic!("{op}: accepted a value that is not finite"),
    }
}

/// Every operation refuses shapes that do not belong together, by its own name.
pub fn wrong_shapes_are_named(backend: &dyn Backend) {
    attention_shapes(backend);
    selection_shapes(backend);
    layer_shapes(backend);
    latent_shapes(backend);
    beside_shapes(backend);
    borrowed_shapes(backend);
    input_shapes(backend);
}

fn attention_shapes(backend: &dyn Backend) {
    let shape = Shape::default();
    let block = shape.block(20, 3);
    let queries = block.queries();
    let past = shape.past(10);
    let other_dim = Shape { head_dim: 8, ..shape }.past(10);
    let other_heads = Shape { kv_heads: 3, ..shape }.past(10);
    refused(backend.attend(queries, &other_dim), "attend");
    for scale in [0.0, -0.5, f32::NAN, f32::INFINITY] {
        refused(backend.attend(crate::Queries { scale, ..queries }, &past), "attend");
    }
    for slopes in [&[0.5; 3][..], &[0.5, 0.5, 0.5, f32::NAN], &[-0.5; 4]] {
        let slopes = Some(slopes);
        refused(backend.attend(crate::Queries { slopes, ..queries }, &past), "attend");
    }
    refused(backend.attend(queries, &other_heads), "attend");
    let mut torn = past.clone();
    torn.positions.make_mut().pop();
    refused(backend.attend(queries, &torn), "attend");
    let far = crate::Queries { start: u32::MAX, ..queries };
    refused(backend.attend(far, &past), "attend");
    let lse = [0.0; 12];
    refused(backend.weigh(queries, &other_dim, &lse, &[1.0; 3]), "weigh");
    refused(backend.weigh(queries, &past, &lse[1..], &[1.0; 3]), "weigh");
    refused(backend.weigh(queries, &past, &lse, &[1.0; 2]), "weigh");
}

fn selection_shapes(backend: &dyn Backend) {
    let shape = Shape::default();
    let none = Array::from(vec![0.0; 20]);
    let past = MemorySet {
        keys: shape.past(10),
        score: none.clone(),
        votes: none,
        state: Array::default(),
        end: 20,
    };
    let past = Arc::new(past);
    let (past_mass, own_mass) = (Array::from(vec![0.0; 20]), Array::from(vec![0.0; 6]));
    let (masses, nothing) = ((&past_mass, &own_mass), &Array::default());
    let own = shape.block(20, 3).keys;
    let select = |own: &Keys, masses: (&Array<f32>, &Array<f32>)| {
        backend.select(past.clone(), own, masses, &H2O)
    };
    assert!(select(&own, masses).is_ok());
    refused(select(&own, (nothing, nothing)), "select");
    refused(select(&own, (masses.0, nothing)), "select");
    refused(select(&Shape { kv: KvDtype::Bf16, ..shape }.block(20, 3).keys, masses), "select");
    refused(select(&Shape { head_dim: 8, ..shape }.block(20, 3).keys, masses), "select");
    refused(select(&shape.block(19, 3).keys, masses), "select");
    refused(select(&shape.block(21, 3).keys, masses), "select");
}

fn layer_shapes(backend: &dyn Backend) {
    let plain = PlainLayer::shared();
    let layer = plain.pack(backend);
    let (spec, width) = (layer.spec, plain.width());
    let (x, wide) = (rows(1, 3, width), rows(1, 3, width + 1));
    let angles = |tokens, head_dim| angles(0, tokens, head_dim);
    refused(backend.linear(&wide, &layer.qkv), "linear");
    refused(backend.project(&layer, &wide, (0, &angles(3, spec.head_dim)), wide.rows()), "project");
    refused(backend.project(&layer, &x, (0, &angles(2, spec.head_dim)), x.rows()), "project");
    refused(backend.project(&layer, &x, (0, &angles(3, spec.head_dim + 2)), x.rows()), "project");
    let mut torn = angles(3, spec.head_dim);
    torn.cos = [&*torn.cos, &[1.0]].concat().into();
    refused(backend.project(&layer, &x, (0, &torn), x.rows()), "project");
    torn.sin = [&*torn.sin, &[0.0]].concat().into();
    refused(backend.project(&layer, &x, (0, &torn), x.rows()), "project");
    let mut of_all = PlainLayer::olmo().pack(backend);
    of_all.norms_last = true;
    refused(backend.project(&of_all, &x, (0, &angles(3, spec.head_dim)), x.rows()), "project");
    for (most, norms_last) in [(0.0, false), (f32::NAN, false), (f32::INFINITY, false), (1.0, true)]
    {
        let cut = LayerWeights { clip: Some(most), norms_last, ..plain.pack(backend) };
        refused(backend.project(&cut, &x, (0, &angles(3, spec.head_dim)), x.rows()), "project");
    }
    let attention = rows(2, 3, spec.heads * spec.head_dim);
    refused(backend.finish(&layer, &wide, &attention), "finish");
    refused(backend.finish(&layer, &rows(1, 2, width), &attention), "finish");
    refused(backend.finish(&layer, &x, &x), "finish");
    let mut ends = PlainLayer::ending().pack(backend);
    assert!(backend.finish(&ends, &x, &attention).is_ok());
    ends.ffn_norm = layer.ffn_norm.clone();
    refused(backend.finish(&ends, &x, &attention), "finish");
    for plain in [plain, PlainLayer::ending()] {
        let hidden_norm = Some(layer.ffn_norm.clone().expect("there is one"));
        let inside = LayerWeights { hidden_norm, ..plain.pack(backend) };
        refused(backend.finish(&inside, &x, &attention), "finish");
    }
    refused(backend.embed(&layer.qkv, &[0, layer.qkv.outputs as u32], 1.0), "embed");
    let torn =
        |elements| Matrix { outputs: 2, inputs: 3, data: MatrixData::F32(vec![0.0; elements]) };
    refused(backend.pack(torn(5), None), "pack");
    refused(backend.pack(torn(6), Some(vec![0.0; 3])), "pack");
}

fn borrowed_shapes(backend: &dyn Backend) {
    let plain = PlainLayer::borrowing();
    let (x, angles) = (rows(1, 3, plain.width()), angles(0, 3, plain.spec.head_dim));
    let project = |layer: &LayerWeights| backend.project(layer, &x, (0, &angles), 3);
    assert!(project(&plain.pack(backend)).is_ok());
    let changes: [fn(&mut LayerWeights); 4] = [
        |layer| layer.k_norm = layer.q_norm.clone(),
        |layer| layer.v_norm = layer.q_norm.clone(),
        |layer| layer.qkv.outputs += layer.spec.head_dim,
        |layer| layer.keys_of = None,
    ];
    for change in changes {
        let mut layer = plain.pack(backend);
        change(&mut layer);
        refused(project(&layer), "project");
    }
}

fn input_shapes(backend: &dyn Backend) {
    let layer = PlainLayer::shared().pack(backend);
    let pack = |outputs: usize, inputs: usize| {
        let data = MatrixData::F32(vec![0.5; outputs * inputs]);
        backend.pack(Matrix { outputs, inputs, data }, None).expect("fits")
    };
    let own = |[gate, up, norm]: [(usize, usize); 3]| LayerInput {
        gate: pack(gate.0, gate.1),
        up: pack(up.0, up.1),
        norm: vec![1.0; norm.0].into(),
        scale: None,
    };
    let (x, input) = (rows(1, 2, 6), rows(2, 2, 4));
    let take = |own: &LayerInput, input: &Rows| backend.take(&layer, own, &x, input);
    let good = [(4, 6), (6, 4), (6, 1)];
    assert!(take(&own(good), &input).is_ok());
    refused(take(&own(good), &rows(2, 1, 4)), "take");
    refused(take(&own(good), &rows(2, 2, 5)), "take");
    refused(take(&own([(4, 7), good[1], good[2]]), &input), "take");
    refused(take(&own([(5, 6), good[1], good[2]]), &input), "take");
    refused(take(&own([good[0], (6, 5), good[2]]), &input), "take");
    refused(take(&own([good[0], (7, 4), good[2]]), &input), "take");
    refused(take(&own([good[0], good[1], (7, 1)]), &input), "take");
}

fn latent_shapes(backend: &dyn Backend) {
    let plain = PlainLayer::latent();
    let (x, angles) = (rows(1, 3, plain.width()), angles(0, 3, plain.spec.head_dim));
    let attention = rows(2, 3, plain.attended());
    let project = |layer: &LayerWeights| backend.project(layer, &x, (0, &angles), x.rows());
    assert!(project(&plain.pack(backend)).is_ok());
    let changes: [fn(&mut Latent); 6] = [
        |latent| latent.shared = 5,
        |latent| latent.shared = 16,
        |latent| latent.value_dim = 0,
        |latent| latent.value_dim = 17,
        |latent| latent.queries = None,
        |latent| latent.keys.norm = [1.0; 3].into(),
    ];
    for change in changes {
        let mut layer = plain.pack(backend);
        layer.latent.as_mut().into_iter().for_each(change);
        refused(project(&layer), "project");
    }
    let mut layer = plain.pack(backend);
    layer.k_norm = Some(vec![1.0; plain.spec.head_dim].into());
    refused(project(&layer), "project");
    layer.latent.as_mut().into_iter().for_each(|latent| latent.value_dim += 1);
    refused(backend.finish(&layer, &x, &attention), "finish");
    let mut layer = plain.pack(backend);
    let broken = |latent: &mut Latent| {
        latent.keys.norm = vec![f32::NAN; latent.keys.norm.len()].into();
    };
    layer.latent.as_mut().into_iter().for_each(broken);
    not_finite(project(&layer), "project");
}

fn beside_shapes(backend: &dyn Backend) {
    let plain = PlainLayer::beside();
    let (x, attention) = (rows(1, 3, plain.width()), rows(2, 3, plain.attended()));
    let finish = |layer: &LayerWeights| backend.finish(layer, &x, &attention);
    assert!(finish(&plain.pack(backend)).is_ok());
    let changes: [fn(&mut Beside); 9] = [
        |both| both.dense_post_norm = [1.0; 3].into(),
        |both| both.experts_norm = [1.0; 3].into(),
        |both| both.router_norm = [1.0; 3].into(),
        |both| both.experts_post_norm = [1.0; 3].into(),
        |both| both.dense.down.outputs += 1,
        |both| both.experts.shared = Some(both.dense.clone()),
        |both| both.experts.shared_gate = Some(both.experts.router.clone()),
        |both| both.experts.routing.factors = Some([1.0; 3].into()),
        |both| both.experts.routing.chosen = 0,
    ];
    for change in changes {
        let mut layer = plain.pack(backend);
        if let FeedForward::Beside(both) = &mut layer.ffn {
            change(both);
        }
        refused(finish(&layer), "finish");
    }
}

/// A weight that this backend did not pack.
pub fn foreign_weights_are_refused(backend: &dyn Backend) {
    let foreign = Linear {
        outputs: 2,
        inputs: 3,
        bias: None,
        rounds: false,
        bytes: 0,
        packed: Arc::new("elsewhere"),
    };
    let is_foreign = |result: Result<Rows, BackendError>| {
        assert!(matches!(result, Err(BackendError::ForeignWeight { .. })), "{result:?}");
    };
    is_foreign(backend.linear(&Rows::zeros(1, 3), &foreign));
    is_foreign(backend.embed(&foreign, &[1], 1.0));
}

/// NaN and infinity in weights, activations, keys and values.
pub fn broken_numbers_are_refused(backend: &dyn Backend) {
    for broken in [f32::NAN, f32::INFINITY] {
        let matrix =
            Matrix { outputs: 2, inputs: 2, data: MatrixData::F32(vec![1.0, 1.0, 1.0, broken]) };
        let weight = backend.pack(matrix, None).expect("a pack does not look at values");
        let ones = Rows::from_vec(1, 2, vec![1.0; 2]);
        not_finite(backend.linear(&ones, &weight), "linear");

        let plain = PlainLayer::shared();
        let mut layer = plain.pack(backend);
        let spec = layer.spec;
        let attention = rows(2, 3, spec.heads * spec.head_dim);
        let mut x = rows(1, 3, plain.width());
        layer.k_norm = Some(vec![broken; spec.head_dim].into());
        let angles = angles(0, 3, spec.head_dim);
        not_finite(backend.project(&layer, &x, (0, &angles), x.rows()), "project");
        layer.k_norm = Some(vec![broken; spec.kv_heads * spec.head_dim].into());
        not_finite(backend.project(&layer, &x, (0, &angles), x.rows()), "project");
        x.row_mut(1)[0] = f32::NAN;
        not_finite(backend.project(&plain.pack(backend), &x, (0, &angles), x.rows()), "project");
        not_finite(backend.finish(&layer, &x, &attention), "finish");
        broken_keys(backend, broken);
    }
}

fn broken_keys(backend: &dyn Backend, broken: f32) {
    let shape = Shape::default();
    let block = shape.block(20, 2);
    let lifted = shape.lifted_past(10, |g, _| if g == 1 { broken } else { 0.0 });
    not_finite(backend.attend(block.queries(), &lifted), "attend");
    let swapped = Keys::new(lifted.positions, lifted.v, lifted.k);
    not_finite(backend.attend(block.queries(), &swapped), "attend");
}

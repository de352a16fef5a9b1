//! Everything of a layer that is not attention, against plain f64 loops.

use std::sync::Arc;

use half::bf16;

use crate::backend::{Backend, BackendError, Qkv};
use crate::compare::{Tolerance, close, identical};
use crate::tensor::{KvDtype, Rows};
use crate::weights::{Angles, LayerInput};

use super::near::{Near, close_to, gated, given, normed, sum};
use super::plain::{Held, Look, PLAIN, Plain, PlainLayer, UNGATED, widened};
use super::scene::Random;

const SUMS: Tolerance = Tolerance::new(2e-5, 2e-5);

/// `[rows, cols]` of normal numbers.
pub(super) fn rows(seed: u64, rows: usize, cols: usize) -> Rows {
    Rows::from_vec(rows, cols, Random::new(seed).normals(rows * cols))
}

/// Angles of positions `start..`, theta 1e4.
pub(super) fn angles(start: u32, tokens: usize, head_dim: usize) -> Angles {
    let angle = |i: usize| {
        let (t, pair) = (i / (head_dim / 2), i % (head_dim / 2));
        f64::from(start + t as u32) * 1e4_f64.powf(-2.0 * pair as f64 / head_dim as f64)
    };
    let of = |f: fn(f64) -> f64| -> Arc<[f32]> {
        (0..tokens * head_dim / 2).map(|i| f(angle(i)) as f32).collect()
    };
    Angles { tokens, half: head_dim / 2, cos: of(f64::cos), sin: of(f64::sin) }
}

/// The same where queries are scaled, by another number in each row.
fn scaling(angles: &Angles) -> Angles {
    let of = |keys: &[f32]| -> Arc<[f32]> {
        let scaled = |(i, x): (usize, &f32)| x * (1.25 + 0.25 * (i / angles.half) as f32);
        keys.iter().copied().chain(keys.iter().enumerate().map(scaled)).collect()
    };
    let Angles { tokens, half, cos, sin } = angles;
    Angles { tokens: *tokens, half: *half, cos: of(cos), sin: of(sin) }
}

/// x Wᵀ + bias for every size around a tile, whatever the weights are held as.
pub fn linear_matches_f64(backend: &dyn Backend) {
    let mut random = Random::new(5);
    let outputs_and_inputs =
        [(1, 1), (5, 8), (16, 40), (48, 65), (130, 256), (33, 1000), (300, 17)];
    for shape in outputs_and_inputs {
        for (held, bias) in Held::ALL.into_iter().flat_map(|held| [(held, false), (held, true)]) {
            let plain = Plain::new(&mut random, shape, Look { held, bias, ..PLAIN });
            let packed = plain.pack(backend);
            for count in [0, 1, 2, 3, 7, 16, 33] {
                let x = rows(9, count, shape.1);
                let y = backend.linear(&x, &packed).expect("fits");
                assert_eq!((y.rows(), y.cols()), (count, shape.0));
                let want: Vec<Near> =
                    (0..count).flat_map(|i| plain.apply(&given(x.row(i)))).collect();
                let name = format!("{count} rows through {packed:?}, {held:?}");
                assert!(want.iter().all(|want| want.slack == 0.0), "{name}: nothing is uncertain");
                close_to(&name, y.data(), &want, SUMS).unwrap();
            }
        }
    }
}

/// x / sqrt(mean of x² + eps) * weight, for tiny and huge rows too.
pub fn norm_matches_f64(backend: &dyn Backend) {
    for cols in [1, 8, 65, 256] {
        let weight: Arc<[f32]> = Random::new(2).normals(cols).into();
        for size in [1.0, 1e-6, 1e6] {
            let mut x = rows(4, 5, cols);
            x.data_mut().iter_mut().for_each(|x| *x *= size);
            let want: Vec<Near> =
                (0..5).flat_map(|i| normed(&given(x.row(i)), &weight, 1e-6_f32.into())).collect();
            let name = format!("norm of {cols} columns of size {size}");
            close_to(&name, backend.norm(&x, &weight, 1e-6).data(), &want, SUMS).unwrap();
        }
    }
    let zero = backend.norm(&Rows::zeros(2, 8), &Arc::from([1.0; 8]), 1e-6);
    identical("norm of zeros", zero.data(), &[0.0; 16]).unwrap();
}

/// Rows of the table, first and last and repeated, with no arithmetic but the scale.
pub fn embed_widens_exactly(backend: &dyn Backend) {
    for held in Held::ALL {
        let table = Plain::new(&mut Random::new(6), (37, 20), Look { held, ..PLAIN });
        let tokens = [0, 36, 5, 5, 17];
        let table_of = table.pack(backend);
        for scale in [1.0, 54.545_456] {
            let x = backend.embed(&table_of, &tokens, scale).expect("fits");
            let rows = tokens.iter().flat_map(|&token| table.row(token as usize));
            let want: Vec<f32> = rows.map(|x| x as f32 * scale).collect();
            identical("embedding", x.data(), &want).unwrap();
        }
        assert_eq!(backend.embed(&table_of, &[], 1.0).expect("fits").rows(), 0);
    }
}

/// Norm, QKV with and without bias and QK norm, what is cut off, rotation at far positions,
/// rounding.
pub fn project_matches_f64(backend: &dyn Backend) {
    for (bias, qk_norm) in [(false, false), (true, false), (false, true), (true, true)] {
        for kv in [KvDtype::F32, KvDtype::Bf16] {
            for start in [0, 65_536] {
                for held in [Held::Bf16, Held::Int8] {
                    for (olmo, last) in [(false, false), (true, false), (false, true)] {
                        let look = Look { held, bias, qk_norm, kv, olmo, last, ..PLAIN };
                        check_project(backend, &PlainLayer::new(look), start);
                        let clip = Look { clip: !last, apart: last || !olmo, last: false, ..look };
                        check_project(backend, &PlainLayer::new(clip), start);
                    }
                    for latent in [Some(false), Some(true)] {
                        let look = Look { held, bias, kv, latent, ..PLAIN };
                        check_project(backend, &PlainLayer::new(look), start);
                    }
                }
            }
        }
    }
}

fn check_project(backend: &dyn Backend, layer: &PlainLayer, start: u32) {
    const TOKENS: usize = 9;
    let angles = angles(start, TOKENS, layer.spec.head_dim);
    check_projected(backend, layer, (start, &angles));
    if !layer.norms_last {
        check_projected(backend, layer, (start, &scaling(&angles)));
    }
}

fn check_projected(backend: &dyn Backend, layer: &PlainLayer, (start, angles): (u32, &Angles)) {
    let tokens = angles.tokens;
    let (spec, x) = (layer.spec, rows(8, tokens, layer.width()));
    let d = spec.head_dim;
    let qkv = backend.project(&layer.pack(backend), &x, (start, angles), x.rows()).expect("fits");
    let positions: Vec<u32> = (start..).take(tokens).collect();
    let kv_heads = qkv.keys.kv_heads();
    assert_eq!(kv_heads, if layer.borrows { 0 } else { spec.kv_heads });
    assert_eq!(qkv.keys.positions, positions.repeat(kv_heads));
    assert_eq!((qkv.keys.k.dtype(), qkv.keys.v.dtype()), (spec.kv, spec.kv));
    let stored = match spec.kv {
        KvDtype::F32 => SUMS,
        KvDtype::Bf16 => Tolerance::new(2e-5, 1.0 / 256.0),
    };
    // Beside bf16 keys a backend may round queries before they are multiplied; who keeps them in
    // f32 is held to it.
    let rounded = qkv.q.data.iter().all(|&q| bf16::from_f32(q).to_f32() == q);
    let q_stored = if rounded { stored } else { SUMS };
    for t in 0..tokens {
        let of_row = |row: usize| -> Vec<(f64, f64)> {
            let span = row * angles.half..(row + 1) * angles.half;
            let (cos, sin) = (widened(&angles.cos[span.clone()]), widened(&angles.sin[span]));
            cos.into_iter().zip(sin).collect()
        };
        let (of_queries, of_keys) = (of_row(t + angles.queries_from()), of_row(t));
        let [q, k, v] = layer.project(&given(x.row(t)), [&of_queries, &of_keys]);
        for (h, want) in q.chunks(d).enumerate() {
            close_to("q", qkv.q.row(h, t), want, q_stored).unwrap();
        }
        for g in 0..kv_heads {
            let row = t * d..(t + 1) * d;
            let head = g * d..(g + 1) * d;
            close_to("k", &qkv.keys.k.head_f32(g)[row.clone()], &k[head.clone()], stored).unwrap();
            close_to("v", &qkv.keys.v.head_f32(g)[row], &v[head], stored).unwrap();
        }
    }
}

/// Output projection, residual, norm, gates, residual, with and without norms behind.
pub fn finish_matches_f64(backend: &dyn Backend) {
    let looks = |held| {
        let sizes = [100, 112].map(|ffn| Look { held, ffn, ..PLAIN });
        sizes.into_iter().flat_map(|look| {
            let gemma = Look { gemma: true, ..look };
            let olmo = Look { olmo: true, ..look };
            let oss = Look { oss: true, bias: true, ..look };
            let parallel = Look { parallel: true, ..look };
            let latent = Look { latent: Some(true), ..look };
            let ends = [look, gemma].map(|look| Look { ends: true, ..look });
            let ungated = UNGATED.map(|ungated| Look { ungated: Some(ungated), ..look });
            let all = [look, gemma, olmo, oss, parallel, latent].into_iter().chain(ungated);
            let fed = all.flat_map(|look| [look, Look { experts: true, ..look }]);
            let inside = [Look { bitnet: true, ..look }, Look { bitnet: true, olmo: true, ..look }];
            fed.chain(ends).chain(inside).collect::<Vec<_>>()
        })
    };
    Held::ALL.into_iter().flat_map(looks).for_each(|look| check_finish(backend, look));
}

fn check_finish(backend: &dyn Backend, look: Look) {
    let layer = PlainLayer::new(look);
    let packed = layer.pack(backend);
    for count in [0, 1, 2, 17] {
        let x = rows(1, count, layer.width());
        let attention = rows(2, count, layer.attended());
        let y = backend.finish(&packed, &x, &attention).expect("fits");
        let row = |i: usize| layer.finish(&given(x.row(i)), &given(attention.row(i)));
        let want: Vec<Near> = (0..count).flat_map(row).collect();
        close_to("finish", y.data(), &want, Tolerance::new(5e-5, 5e-5)).unwrap();
    }
}

/// Experts beside a dense part, each with its norms and expert with its factor; and the bits of a
/// row are the same in any company.
pub fn experts_beside_a_dense_part(backend: &dyn Backend) {
    for held in Held::ALL {
        let look = Look { held, beside: true, gemma: true, ..PLAIN };
        let sizes = [37, 100, 112].map(|ffn| Look { ffn, ..look });
        let nothing_behind = Look { gemma: false, ..look };
        let nothing_before = Look { olmo: true, ..look };
        let parallel = Look { parallel: true, ..look };
        for look in sizes.into_iter().chain([nothing_behind, nothing_before, parallel]) {
            check_finish(backend, look);
            check_rows_alone(backend, look);
        }
    }
}

/// Experts of which weights multiply what they are given.
pub fn experts_of_weighed_rows(backend: &dyn Backend) {
    for held in Held::ALL {
        let look = Look { held, experts: true, before: true, ..PLAIN };
        check_finish(backend, look);
        check_rows_alone(backend, look);
    }
}

/// Queries alone, and their bits in any company.
pub fn queries_beside_keys_of_another_layer(backend: &dyn Backend) {
    for held in Held::ALL {
        for qk_norm in [false, true] {
            let borrowing = Look { held, qk_norm, bias: true, borrows: true, ..PLAIN };
            let olmo = Look { olmo: true, ..borrowing };
            let whole = Look { head_dim: 64, kv: KvDtype::Bf16, ..borrowing };
            for look in [borrowing, olmo, whole, Look { head_dim: 20, ..borrowing }] {
                check_project(backend, &PlainLayer::new(look), 65_536);
                check_rows_alone(backend, look);
                check_each_alone(backend, look);
            }
        }
    }
}

fn check_each_alone(backend: &dyn Backend, look: Look) {
    let layer = PlainLayer::new(look);
    let (packed, x) = (layer.pack(backend), rows(1, 3, layer.width()));
    let positions = [7, 0, 90];
    let angles = angles(0, 3, layer.spec.head_dim); // of whatever positions
    let each = backend.project_each(&packed, &x, &positions, &angles).expect("fits");
    let all = backend.project(&packed, &x, (0, &angles), 3).expect("fits");
    for (t, one) in each.iter().enumerate() {
        assert_eq!((one.q.tokens, one.keys.kv_heads()), (1, 0));
        identical("each", &row_bits(one, 0), &row_bits(&all, t)).unwrap();
    }
}

/// norm(W_up (activation(W_gate x) · input)), added to the stream, and what multiplies that.
pub fn layers_take_inputs_of_their_own(backend: &dyn Backend) {
    let oss = Look { oss: true, ..PLAIN };
    for look in [PLAIN, Look { gemma: true, ..PLAIN }, oss] {
        let layer = PlainLayer::new(look);
        let (packed, width) = (layer.pack(backend), layer.width());
        for (held, inputs) in Held::ALL.into_iter().zip([8, 32, 41]) {
            let random = &mut Random::new(23);
            let of = |random: &mut Random, shape| Plain::new(random, shape, Look { held, ..PLAIN });
            let (gate, up) = (of(random, (inputs, width)), of(random, (width, inputs)));
            let norm: Arc<[f32]> = random.normals(width).into();
            let (x, input) = (rows(3, 19, width), rows(4, 19, inputs));
            for scale in [None, Some(0.3)] {
                let (gate_of, up_of) = (gate.pack(backend), up.pack(backend));
                let own = LayerInput { gate: gate_of, up: up_of, norm: norm.clone(), scale };
                let y = backend.take(&packed, &own, &x, &input).expect("fits");
                let factor = f64::from(scale.unwrap_or(1.0));
                let row = |i: usize| -> Vec<Near> {
                    let (x, input) = (given(x.row(i)), given(input.row(i)));
                    let gates = gate.apply(&x).into_iter().zip(input);
                    let gated = gates.map(|(gate, up)| gated(layer.spec.activation, gate, up));
                    let made = up.apply(&gated.collect::<Vec<_>>());
                    let y = sum(&x, &normed(&made, &norm, layer.spec.norm_eps.into()));
                    y.iter().map(|y| Near::computed(factor * y.value, factor * y.slack)).collect()
                };
                let want: Vec<Near> = (0..19).flat_map(row).collect();
                close_to("take", y.data(), &want, Tolerance::new(5e-5, 5e-5)).unwrap();
                let of_last = |rows: &Rows| rows.clone().of_last(2).expect("there are some");
                let last = backend.take(&packed, &own, &of_last(&x), &of_last(&input));
                identical("take", last.expect("fits").data(), of_last(&y).data()).unwrap();
            }
        }
    }
}

/// Logits far below their cap, about it and far beyond.
pub fn caps_match_f64(backend: &dyn Backend) {
    for (cap, spread) in [(30.0, 1.0), (3.0, 2.0), (0.5, 100.0)] {
        let logits = Random::new(7).normals(3 * 53).iter().map(|x| spread * x).collect();
        let logits = Rows::from_vec(3, 53, logits);
        let capped = backend.cap(&logits, cap).expect("fits");
        let cap = f64::from(cap);
        let want: Vec<f64> =
            logits.data().iter().map(|&z| cap * (f64::from(z) / cap).tanh()).collect();
        close("capped logits", capped.data(), &want, Tolerance::new(1e-6, 2e-6)).unwrap();
    }
}

/// The bits of a row are the same alone, in any company and at any place.
pub fn a_row_does_not_depend_on_its_neighbours(backend: &dyn Backend) {
    for held in Held::ALL {
        let look = Look { held, bias: true, qk_norm: true, ffn: 112, ..PLAIN };
        check_rows_alone(backend, look);
        // Keys begin within a panel of sixteen outputs.
        check_rows_alone(backend, Look { head_dim: 20, gemma: true, ..look });
        check_rows_alone(backend, Look { experts: true, ..look });
        check_rows_alone(backend, Look { parallel: true, ..look });
        check_rows_alone(backend, Look { ends: true, ..look });
        check_rows_alone(backend, Look { olmo: true, ..look });
        check_rows_alone(backend, Look { last: true, ..look });
        check_rows_alone(backend, Look { head_dim: 64, last: true, ..look });
        check_rows_alone(backend, Look { head_dim: 20, olmo: true, ..look });
        for head_dim in [20, 64] {
            let apart = Look { head_dim, apart: true, clip: true, ..look };
            check_project(backend, &PlainLayer::new(apart), 7);
            check_rows_alone(backend, apart);
        }
        check_rows_alone(backend, Look { oss: true, experts: true, ..look });
        for latent in [Some(false), Some(true)] {
            check_rows_alone(backend, Look { latent, ..look });
            check_rows_alone(backend, Look { latent, head_dim: 20, kv: KvDtype::Bf16, ..look });
        }
        // What stands between two products does not depend on what they multiply, and where the
        // processor has no products of bytes each of them takes microseconds.
        let some = if held == Held::Int8 { &UNGATED[..1] } else { &UNGATED[..] };
        for &ungated in some {
            check_rows_alone(backend, Look { ungated: Some(ungated), ..look });
            check_rows_alone(backend, Look { ungated: Some(ungated), ffn: 100, ..look });
        }
    }
}

fn check_rows_alone(backend: &dyn Backend, look: Look) {
    const TOKENS: usize = 37;
    let layer = PlainLayer::new(look);
    let packed = layer.pack(backend);
    let x = rows(1, TOKENS, layer.width());
    let attention = rows(2, TOKENS, layer.attended());
    let some = |of: &Rows, from: usize, to: usize| {
        Rows::from_vec(to - from, of.cols(), of.data()[from * of.cols()..to * of.cols()].to_vec())
    };
    let compute = |from: usize, to: usize| {
        let (x, attention) = (some(&x, from, to), some(&attention, from, to));
        let angles = angles(from as u32, to - from, layer.spec.head_dim);
        let qkv = backend.project(&packed, &x, (from as u32, &angles), x.rows()).expect("fits");
        let linear = backend.linear(&x, &packed.qkv).expect("fits");
        (linear, qkv, backend.finish(&packed, &x, &attention).expect("fits"))
    };
    let (linear, qkv, finished) = compute(0, TOKENS);
    for (from, to) in [(0, 1), (36, 37), (5, 12), (12, 28), (3, 36), (16, 17)] {
        let (few_linear, few_qkv, few_finished) = compute(from, to);
        identical("linear", few_linear.data(), some(&linear, from, to).data()).unwrap();
        identical("finish", few_finished.data(), some(&finished, from, to).data()).unwrap();
        for t in from..to {
            identical("project", &row_bits(&few_qkv, t - from), &row_bits(&qkv, t)).unwrap();
        }
    }
    let plain = angles(0, TOKENS, layer.spec.head_dim);
    let angles = if look.last { plain } else { scaling(&plain) };
    let project_last = |queries| backend.project(&packed, &x, (0, &angles), queries);
    let qkv = project_last(TOKENS).expect("fits");
    // As above.
    let counts = if look.held == Held::Int8 { &[0, 17][..] } else { &[0, 1, 17, 36, TOKENS] };
    for &queries in counts {
        let last = project_last(queries).expect("fits");
        let want = qkv.q.clone().of_last(queries).expect("it can be read");
        assert_eq!(last.q, want, "the last {queries} of {TOKENS}");
        assert_eq!(last.keys, qkv.keys, "beside {queries} queries");
    }
    let too_many = project_last(TOKENS + 1);
    assert!(matches!(too_many, Err(BackendError::Shape { op: "project", .. })), "{too_many:?}");
}

/// Queries, keys and values of row `t`, one after the other.
pub(super) fn row_bits(qkv: &Qkv, t: usize) -> Vec<f32> {
    let d = qkv.q.head_dim;
    let mut bits: Vec<f32> = (0..qkv.q.heads).flat_map(|h| qkv.q.row(h, t).to_vec()).collect();
    for g in 0..qkv.keys.kv_heads() {
        bits.extend_from_slice(&qkv.keys.k.head_f32(g)[t * d..(t + 1) * d]);
        bits.extend_from_slice(&qkv.keys.v.head_f32(g)[t * d..(t + 1) * d]);
    }
    bits
}

//! Everything of a layer that is not attention, against plain f64 loops.

use std::sync::Arc;

use half::bf16;

use crate::backend::{Backend, BackendError, Qkv};
use crate::compare::{Tolerance, identical};
use crate::int8::Int8Rows;
use crate::tensor::{KvDtype, Rows};
use crate::weights::{Activation, Angles, LayerSpec, LayerWeights, Linear, Matrix, MatrixData};

use super::near::{Near, close_to, dot, gated, given, normed, quantised, rotated, sum};
use super::scene::Random;

const SUMS: Tolerance = Tolerance::new(2e-5, 2e-5);

/// A weight before it is packed.
struct Plain {
    matrix: Matrix,
    bias: Option<Vec<f32>>,
}

impl Plain {
    fn new(random: &mut Random, (outputs, inputs): (usize, usize), look: Look) -> Self {
        let size = 1.0 / (inputs as f32).sqrt();
        let values: Vec<f32> = (0..outputs * inputs).map(|_| size * random.normal()).collect();
        let data = match look.held {
            Held::F32 => MatrixData::F32(values),
            Held::Bf16 => MatrixData::Bf16(values.into_iter().map(bf16::from_f32).collect()),
            Held::Int8 => MatrixData::Int8(Int8Rows::from_f32(&values, inputs)),
        };
        let bias = look.bias.then(|| random.normals(outputs));
        Self { matrix: Matrix { outputs, inputs, data }, bias }
    }

    fn pack(&self, backend: &dyn Backend) -> Linear {
        backend.pack(self.matrix.clone(), self.bias.clone()).expect("fits")
    }

    fn row(&self, o: usize) -> Vec<f64> {
        let span = o * self.matrix.inputs..(o + 1) * self.matrix.inputs;
        match &self.matrix.data {
            MatrixData::F32(data) => data[span].iter().map(|&x| x.into()).collect(),
            MatrixData::Bf16(data) => data[span].iter().map(|x| x.to_f64()).collect(),
            MatrixData::Int8(data) => {
                let mut row = vec![0.0; self.matrix.inputs];
                data.read(o, &mut row);
                widened(&row)
            }
        }
    }

    fn apply(&self, x: &[Near]) -> Vec<Near> {
        let x: Vec<Near> = match &self.matrix.data {
            MatrixData::F32(_) => x.to_vec(),
            MatrixData::Bf16(_) => x.iter().map(|x| x.rounded()).collect(),
            MatrixData::Int8(_) => quantised(x),
        };
        let bias = |o: usize| self.bias.as_ref().map_or(0.0, |bias| bias[o].into());
        (0..self.matrix.outputs).map(|o| dot(&x, &self.row(o), bias(o))).collect()
    }
}

/// What a weight is held as.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Held {
    F32,
    Bf16,
    Int8,
}

impl Held {
    const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];
}

/// What varies between weights.
#[derive(Debug, Clone, Copy)]
struct Look {
    held: Held,
    bias: bool,
    qk_norm: bool,
    kv: KvDtype,
    head_dim: usize,
    /// F: whole panels of gate and up may be multiplied side by side.
    ffn: usize,
    /// GELU, and norms behind what is added to the stream.
    gemma: bool,
}

const PLAIN: Look = Look {
    held: Held::F32,
    bias: false,
    qk_norm: false,
    kv: KvDtype::F32,
    head_dim: 16,
    ffn: 100,
    gemma: false,
};

/// A layer before it is packed.
pub(super) struct PlainLayer {
    spec: LayerSpec,
    norms: [Vec<f32>; 2],
    qk_norms: Option<[Vec<f32>; 2]>,
    post_norms: Option<[Vec<f32>; 2]>,
    qkv: Plain,
    out: Plain,
    gate_up: Plain,
    down: Plain,
}

impl PlainLayer {
    /// The layer that checks across backends share.
    pub(super) fn shared() -> Self {
        let look = Look { bias: true, qk_norm: true, ffn: 112, ..PLAIN };
        Self::new(Look { held: Held::Bf16, kv: KvDtype::Bf16, ..look })
    }

    pub(super) fn width(&self) -> usize {
        self.qkv.matrix.inputs
    }

    fn new(look: Look) -> Self {
        let random = &mut Random::new(17);
        let (heads, kv_heads, width) = (6, 2, 72);
        let Look { head_dim, ffn, .. } = look;
        let activation = if look.gemma { Activation::GeluTanh } else { Activation::Silu };
        let norm =
            |random: &mut Random, n| random.normals(n).iter().map(|x| 1.0 + 0.1 * x).collect();
        Self {
            spec: LayerSpec { heads, kv_heads, head_dim, norm_eps: 1e-5, activation, kv: look.kv },
            norms: [norm(random, width), norm(random, width)],
            qk_norms: look.qk_norm.then(|| [norm(random, head_dim), norm(random, head_dim)]),
            qkv: Plain::new(random, ((heads + 2 * kv_heads) * head_dim, width), look),
            out: Plain::new(random, (width, heads * head_dim), Look { bias: false, ..look }),
            gate_up: Plain::new(random, (2 * ffn, width), Look { bias: false, ..look }),
            down: Plain::new(random, (width, ffn), Look { bias: false, ..look }),
            post_norms: look.gemma.then(|| [norm(random, width), norm(random, width)]),
        }
    }

    pub(super) fn pack(&self, backend: &dyn Backend) -> LayerWeights {
        let shared = |norm: &[f32]| Arc::from(norm);
        let each = |norms: &Option<[Vec<f32>; 2]>| {
            [0, 1].map(|i| norms.as_ref().map(|norms| shared(&norms[i])))
        };
        let [q_norm, k_norm] = each(&self.qk_norms);
        let [attn_post_norm, ffn_post_norm] = each(&self.post_norms);
        LayerWeights {
            spec: self.spec,
            attn_norm: shared(&self.norms[0]),
            qkv: self.qkv.pack(backend),
            q_norm,
            k_norm,
            out: self.out.pack(backend),
            attn_post_norm,
            ffn_norm: shared(&self.norms[1]),
            gate_up: self.gate_up.pack(backend),
            down: self.down.pack(backend),
            ffn_post_norm,
        }
    }

    /// Queries, keys and values of one row, each `[heads, head_dim]`.
    fn project(&self, x: &[Near], cos_sin: &[(f64, f64)]) -> [Vec<Near>; 3] {
        let (d, spec) = (self.spec.head_dim, &self.spec);
        let eps = f64::from(spec.norm_eps);
        let all = self.qkv.apply(&normed(x, &self.norms[0], eps));
        let (q, kv) = all.split_at(spec.heads * d);
        let (k, v) = kv.split_at(spec.kv_heads * d);
        let turned = |heads: &[Near], i: usize| -> Vec<Near> {
            let one = |head: &[Near]| match &self.qk_norms {
                Some(norms) => rotated(&normed(head, &norms[i], eps), cos_sin),
                None => rotated(head, cos_sin),
            };
            heads.chunks(d).flat_map(one).collect()
        };
        [turned(q, 0), turned(k, 1), v.to_vec()]
    }

    fn finish(&self, x: &[Near], attention: &[Near]) -> Vec<Near> {
        let LayerSpec { norm_eps, activation, .. } = self.spec;
        let norm = |x: &[Near], weight: &[f32]| normed(x, weight, norm_eps.into());
        let behind = |y: Vec<Near>, i: usize| match &self.post_norms {
            Some(norms) => norm(&y, &norms[i]),
            None => y,
        };
        let x = sum(x, &behind(self.out.apply(attention), 0));
        let gate_up = self.gate_up.apply(&norm(&x, &self.norms[1]));
        let (gate, up) = gate_up.split_at(gate_up.len() / 2);
        let gates = gate.iter().zip(up);
        let hidden: Vec<Near> = gates.map(|(&gate, &up)| gated(activation, gate, up)).collect();
        sum(&x, &behind(self.down.apply(&hidden), 1))
    }
}

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

fn widened(row: &[f32]) -> Vec<f64> {
    row.iter().map(|&x| x.into()).collect()
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

/// Norm, QKV with and without bias and QK norm, rotation at far positions, rounding.
pub fn project_matches_f64(backend: &dyn Backend) {
    for (bias, qk_norm) in [(false, false), (true, false), (false, true), (true, true)] {
        for kv in [KvDtype::F32, KvDtype::Bf16] {
            for start in [0, 65_536] {
                for held in [Held::Bf16, Held::Int8] {
                    let layer = PlainLayer::new(Look { held, bias, qk_norm, kv, ..PLAIN });
                    check_project(backend, &layer, start);
                }
            }
        }
    }
}

fn check_project(backend: &dyn Backend, layer: &PlainLayer, start: u32) {
    const TOKENS: usize = 9;
    let (spec, x) = (layer.spec, rows(8, TOKENS, layer.width()));
    let d = spec.head_dim;
    let angles = angles(start, TOKENS, d);
    let qkv = backend.project(&layer.pack(backend), &x, (start, &angles), x.rows()).expect("fits");
    let positions: Vec<u32> = (start..).take(TOKENS).collect();
    assert_eq!(qkv.keys.positions, positions.repeat(spec.kv_heads));
    assert_eq!((qkv.keys.k.dtype(), qkv.keys.v.dtype()), (spec.kv, spec.kv));
    let stored = match spec.kv {
        KvDtype::F32 => SUMS,
        KvDtype::Bf16 => Tolerance::new(2e-5, 1.0 / 256.0),
    };
    // Beside bf16 keys a backend may round queries before they are multiplied; who keeps them in
    // f32 is held to it.
    let rounded = qkv.q.data.iter().all(|&q| bf16::from_f32(q).to_f32() == q);
    let q_stored = if rounded { stored } else { SUMS };
    for t in 0..TOKENS {
        let span = t * angles.half..(t + 1) * angles.half;
        let (cos, sin) = (widened(&angles.cos[span.clone()]), widened(&angles.sin[span]));
        let cos_sin: Vec<_> = cos.into_iter().zip(sin).collect();
        let [q, k, v] = layer.project(&given(x.row(t)), &cos_sin);
        for (h, want) in q.chunks(d).enumerate() {
            close_to("q", qkv.q.row(h, t), want, q_stored).unwrap();
        }
        for g in 0..spec.kv_heads {
            let row = t * d..(t + 1) * d;
            let head = g * d..(g + 1) * d;
            close_to("k", &qkv.keys.k.head_f32(g)[row.clone()], &k[head.clone()], stored).unwrap();
            close_to("v", &qkv.keys.v.head_f32(g)[row], &v[head], stored).unwrap();
        }
    }
}

/// Output projection, residual, norm, gates, residual, with and without norms behind.
pub fn finish_matches_f64(backend: &dyn Backend) {
    let looks =
        |held| [(held, 100, false), (held, 112, false), (held, 100, true), (held, 112, true)];
    for (held, ffn, gemma) in Held::ALL.into_iter().flat_map(looks) {
        let layer = PlainLayer::new(Look { held, ffn, gemma, ..PLAIN });
        let packed = layer.pack(backend);
        for count in [0, 1, 2, 17] {
            let x = rows(1, count, layer.width());
            let attention = rows(2, count, layer.out.matrix.inputs);
            let y = backend.finish(&packed, &x, &attention).expect("fits");
            let row = |i: usize| layer.finish(&given(x.row(i)), &given(attention.row(i)));
            let want: Vec<Near> = (0..count).flat_map(row).collect();
            close_to("finish", y.data(), &want, Tolerance::new(5e-5, 5e-5)).unwrap();
        }
    }
}

/// The bits of a row are the same alone, in any company and at any place.
pub fn a_row_does_not_depend_on_its_neighbours(backend: &dyn Backend) {
    for held in Held::ALL {
        let look = Look { held, bias: true, qk_norm: true, ffn: 112, ..PLAIN };
        check_rows_alone(backend, look);
        // Keys begin within a panel of sixteen outputs.
        check_rows_alone(backend, Look { head_dim: 20, gemma: true, ..look });
    }
}

fn check_rows_alone(backend: &dyn Backend, look: Look) {
    const TOKENS: usize = 37;
    let layer = PlainLayer::new(look);
    let packed = layer.pack(backend);
    let x = rows(1, TOKENS, layer.width());
    let attention = rows(2, TOKENS, layer.out.matrix.inputs);
    let some = |of: &Rows, from: usize, to: usize| {
        Rows::from_vec(to - from, of.cols(), of.data()[from * of.cols()..to * of.cols()].to_vec())
    };
    let compute = |from: usize, to: usize| {
        let (x, attention) = (some(&x, from, to), some(&attention, from, to));
        let angles = angles(from as u32, to - from, layer.spec.head_dim);
        let qkv = backend.project(&packed, &x, (from as u32, &angles), x.rows()).expect("fits");
        let linear = backend.linear(&x, &packed.gate_up).expect("fits");
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
    let angles = angles(0, TOKENS, layer.spec.head_dim);
    let project_last = |queries| backend.project(&packed, &x, (0, &angles), queries);
    for queries in [0, 1, 17, 36, TOKENS] {
        let last = project_last(queries).expect("fits");
        assert_eq!(last.q, qkv.q.clone().of_last(queries), "the last {queries} of {TOKENS}");
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

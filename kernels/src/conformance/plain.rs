//! Layers in plain f64 loops.

mod feed;
mod latent;

use std::iter;
use std::sync::Arc;

use half::bf16;

use crate::backend::Backend;
use crate::int8::Int8Rows;
use crate::tensor::KvDtype;
use crate::weights::{
    Activation, LayerSpec, LayerWeights, Linear, Matrix, MatrixData, Ungated, Xielu,
};

use self::feed::PlainFeed;
use self::latent::PlainLatent;
use super::near::{Near, dot, normed, quantised, rotated, sum};
use super::scene::Random;

/// A weight before it is packed.
pub(super) struct Plain {
    pub(super) matrix: Matrix,
    bias: Option<Vec<f32>>,
}

impl Plain {
    pub(super) fn new(random: &mut Random, (outputs, inputs): (usize, usize), look: Look) -> Self {
        let size = 1.0 / (inputs as f32).sqrt();
        let values: Vec<f32> = (0..outputs * inputs).map(|_| size * random.normal()).collect();
        let data = match look.held {
            Held::F32 => MatrixData::F32(values),
            Held::Bf16 => MatrixData::Bf16(values.into_iter().map(bf16::from_f32).collect()),
            Held::Int8 => MatrixData::Int8(Int8Rows::from_f32(&values, inputs)),
        };
        // Some gates are beyond what they are clamped to.
        let far = if look.oss { 6.0 } else { 1.0 };
        let bias = look.bias.then(|| random.normals(outputs).iter().map(|x| far * x).collect());
        Self { matrix: Matrix { outputs, inputs, data }, bias }
    }

    pub(super) fn pack(&self, backend: &dyn Backend) -> Linear {
        backend.pack(self.matrix.clone(), self.bias.clone()).expect("fits")
    }

    pub(super) fn row(&self, o: usize) -> Vec<f64> {
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

    pub(super) fn apply(&self, x: &[Near]) -> Vec<Near> {
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
pub(super) enum Held {
    F32,
    Bf16,
    Int8,
}

impl Held {
    pub(super) const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];
}

/// What varies between weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) held: Held,
    pub(super) bias: bool,
    pub(super) qk_norm: bool,
    pub(super) kv: KvDtype,
    pub(super) head_dim: usize,
    /// F: whole panels of gate and up may be multiplied side by side.
    pub(super) ffn: usize,
    /// GELU, and norms behind what is added to the stream.
    pub(super) gemma: bool,
    /// These norms and none before, and QK norms of all heads together.
    pub(super) olmo: bool,
    /// Clamped gates, and a bias in everything.
    pub(super) oss: bool,
    /// Gates by squares, and a norm between both products.
    pub(super) bitnet: bool,
    /// No gate, and a bias in both maps.
    pub(super) ungated: Option<Ungated>,
    /// Both parts take the stream as it comes.
    pub(super) parallel: bool,
    /// Of [`feed::EXPERTS`] parts a token goes through [`feed::CHOSEN`], and through one more.
    pub(super) experts: bool,
    /// Their weights multiply what they are given.
    pub(super) before: bool,
    /// So it does beside a dense part, each with norms of its own, and no more.
    pub(super) beside: bool,
    /// Keys and values come of a few numbers; whether queries do.
    pub(super) latent: Option<bool>,
    /// QK norms are behind the rotation.
    pub(super) last: bool,
    /// They have weights of each head.
    pub(super) apart: bool,
    /// What is further from 0 than [`CLIP`] is cut off of queries, keys and values.
    pub(super) clip: bool,
    /// There is no feed-forward part.
    pub(super) ends: bool,
    /// There are no keys and values.
    pub(super) borrows: bool,
}

pub(super) const PLAIN: Look = Look {
    held: Held::F32,
    bias: false,
    qk_norm: false,
    kv: KvDtype::F32,
    head_dim: 16,
    ffn: 100,
    gemma: false,
    olmo: false,
    oss: false,
    bitnet: false,
    ungated: None,
    parallel: false,
    experts: false,
    before: false,
    beside: false,
    latent: None,
    last: false,
    apart: false,
    clip: false,
    ends: false,
    borrows: false,
};

/// Of every RMS norm.
const NORM_EPS: f64 = 1e-5;

/// So that about every second element is cut off.
const CLIP: f32 = 0.6;

/// Every curve that stands where there is no gate.
pub(super) const UNGATED: [Ungated; 5] = [
    Ungated::GeluTanh,
    Ungated::Gelu,
    Ungated::Relu,
    Ungated::ReluSquared,
    Ungated::Xielu(Xielu { positive: 0.8, negative: 1.2, beta: 0.5, eps: -1e-6 }),
];

/// A layer before it is packed.
pub(super) struct PlainLayer {
    pub(super) spec: LayerSpec,
    pub(super) borrows: bool,
    norms: Option<[Vec<f32>; 2]>,
    qk_norms: Option<[Vec<f32>; 2]>,
    scale: Option<f32>,
    v_norm: Option<Vec<f32>>,
    pub(super) norms_last: bool,
    norms_apart: bool,
    clip: Option<f32>,
    post_norms: Option<[Vec<f32>; 2]>,
    qkv: Plain,
    latent: Option<PlainLatent>,
    out: Plain,
    ffn: PlainFeed,
    parallel: bool,
}

impl Look {
    fn activation(self) -> Activation {
        match self {
            Self { ungated: Some(ungated), .. } => Activation::Ungated(ungated),
            Self { gemma: true, .. } => Activation::GeluTanh,
            Self { oss: true, .. } => Activation::ClampedSilu,
            Self { bitnet: true, .. } => Activation::ReluSquared,
            _ => Activation::Silu,
        }
    }
}

impl PlainLayer {
    /// The layer that checks across backends share.
    pub(super) fn shared() -> Self {
        Self::new(Self::SHARED)
    }

    /// The same with the norms of OLMo.
    pub(super) fn olmo() -> Self {
        Self::new(Look { olmo: true, ..Self::SHARED })
    }

    /// The same without a feed-forward part.
    pub(super) fn ending() -> Self {
        Self::new(Look { ends: true, ..Self::SHARED })
    }

    /// The same with experts beside a dense part, and norms behind.
    pub(super) fn beside() -> Self {
        Self::new(Look { beside: true, gemma: true, ..Self::SHARED })
    }

    /// The same with queries alone.
    pub(super) fn borrowing() -> Self {
        Self::new(Look { borrows: true, ..Self::SHARED })
    }

    /// The same with keys and values of a few numbers.
    pub(super) fn latent() -> Self {
        Self::new(Look { latent: Some(true), ..Self::SHARED })
    }

    const SHARED: Look =
        Look { held: Held::Bf16, bias: true, qk_norm: true, kv: KvDtype::Bf16, ffn: 112, ..PLAIN };

    /// Columns of attention's output.
    pub(super) fn attended(&self) -> usize {
        self.spec.heads * self.spec.head_dim
    }

    pub(super) fn width(&self) -> usize {
        self.qkv.matrix.inputs
    }

    pub(super) fn new(look: Look) -> Self {
        let random = &mut Random::new(17);
        let (heads, width) = (6, 72);
        let kv_heads = if look.latent.is_some() { heads } else { 2 };
        let own_heads = if look.borrows { 0 } else { kv_heads };
        let Look { head_dim, ffn, .. } = look;
        let latent = look.latent.map(|queries| PlainLatent::new(random, (heads, look), queries));
        let stacked = (heads + 2 * own_heads) * head_dim;
        let first = latent.as_ref().map_or(stacked, |latent| latent.first(heads * head_dim));
        let outputs = latent.as_ref().map_or(heads * head_dim, |latent| latent.outputs(heads));
        let activation = look.activation();
        Self {
            spec: LayerSpec {
                heads,
                kv_heads,
                head_dim,
                norm_eps: NORM_EPS as f32,
                activation,
                kv: look.kv,
            },
            norms: (!look.olmo).then(|| [norm(random, width), norm(random, width)]),
            qk_norms: (look.qk_norm && latent.is_none()).then(|| match look.olmo || look.apart {
                true => [norm(random, heads * head_dim), norm(random, kv_heads * head_dim)],
                false => [norm(random, head_dim), norm(random, head_dim)],
            }),
            // Where there is something for it to take away.
            v_norm: (look.qk_norm && look.bias && latent.is_none() && !look.borrows)
                .then(|| norm(random, head_dim)),
            borrows: look.borrows,
            norms_last: look.last,
            norms_apart: look.apart,
            clip: look.clip.then_some(CLIP),
            scale: look.beside.then_some(0.4),
            qkv: Plain::new(random, (first, width), look),
            out: Plain::new(random, (width, outputs), Look { bias: look.oss, ..look }),
            latent,
            ffn: PlainFeed::new(random, (width, ffn), look),
            parallel: look.parallel,
            post_norms: (look.gemma || look.olmo)
                .then(|| [norm(random, width), norm(random, width)]),
        }
    }

    pub(super) fn pack(&self, backend: &dyn Backend) -> LayerWeights {
        let shared = |norm: &[f32]| Arc::from(norm);
        let each = |norms: &Option<[Vec<f32>; 2]>| {
            [0, 1].map(|i| norms.as_ref().map(|norms| shared(&norms[i])))
        };
        let [attn_norm, ffn_norm] = each(&self.norms);
        let [q_norm, k_norm] = each(&self.qk_norms);
        let [attn_post_norm, ffn_post_norm] = each(&self.post_norms);
        let has_feed = !matches!(self.ffn, PlainFeed::Nothing);
        LayerWeights {
            gate: None,
            recurrent: None,
            input: None,
            spec: self.spec,
            attn_norm,
            keys_of: self.borrows.then_some(0),
            beside_last: false,
            out_norm: None,
            hidden_norm: self.ffn.hidden_norm().map(shared),
            qkv: self.qkv.pack(backend),
            latent: self.latent.as_ref().map(|latent| latent.pack(backend)),
            q_norm,
            k_norm: k_norm.filter(|_| !self.borrows),
            v_norm: self.v_norm.as_deref().map(shared),
            norms_last: self.norms_last,
            norms_apart: self.norms_apart,
            clip: self.clip,
            scale: self.scale,
            sinks: None,
            out: self.out.pack(backend),
            attn_post_norm,
            ffn_norm: ffn_norm.filter(|_| has_feed),
            ffn: self.ffn.pack(backend),
            parallel: self.parallel,
            ffn_post_norm: ffn_post_norm.filter(|_| has_feed),
        }
    }

    /// Queries, keys and values of one row, each `[heads, head_dim]`, by angles of the former two.
    pub(super) fn project(&self, x: &[Near], cos_sin: [&[(f64, f64)]; 2]) -> [Vec<Near>; 3] {
        let (d, spec) = (self.spec.head_dim, &self.spec);
        let eps = f64::from(spec.norm_eps);
        let before = |norms: &[Vec<f32>; 2]| normed(x, &norms[0], eps);
        let made = self.qkv.apply(&self.norms.as_ref().map_or_else(|| x.to_vec(), before));
        let all = match &self.latent {
            Some(latent) => latent.stacked(spec, &made),
            None => made,
        };
        let (q, kv) = all.split_at(spec.heads * d);
        let (k, v) = kv.split_at(kv.len() / 2);
        let each = |(x, norm): (&[Near], &[f32])| normed(x, norm, eps);
        let turned = |heads: &[Near], i: usize| -> Vec<Near> {
            let norm = |heads: &[Near]| -> Vec<Near> {
                let Some(norms) = &self.qk_norms else { return heads.to_vec() };
                let norm = &*norms[i];
                match self.norms_apart {
                    true => heads.chunks(d).zip(norm.chunks(d)).flat_map(each).collect(),
                    false => {
                        heads.chunks(norm.len()).zip(iter::repeat(norm)).flat_map(each).collect()
                    }
                }
            };
            let turn = |heads: &[Near]| -> Vec<Near> {
                heads.chunks(d).flat_map(|head| rotated(head, cos_sin[i])).collect()
            };
            if self.norms_last { norm(&turn(heads)) } else { turn(&self.clipped(norm(heads))) }
        };
        let v = match &self.v_norm {
            Some(norm) => v.chunks(d).flat_map(|head| normed(head, norm, eps)).collect(),
            None => v.to_vec(),
        };
        [turned(q, 0), turned(k, 1), self.clipped(v)]
    }

    fn clipped(&self, mut heads: Vec<Near>) -> Vec<Near> {
        if let Some(most) = self.clip.map(f64::from) {
            heads.iter_mut().for_each(|x| x.value = x.value.clamp(-most, most));
        }
        heads
    }

    pub(super) fn finish(&self, x: &[Near], attention: &[Near]) -> Vec<Near> {
        let norm = |x: &[Near], weight: &[f32]| normed(x, weight, self.spec.norm_eps.into());
        let behind = |y: Vec<Near>, i: usize| match &self.post_norms {
            Some(norms) => norm(&y, &norms[i]),
            None => y,
        };
        let kept = self.latent.as_ref().map(|latent| latent.kept(&self.spec, attention));
        let out = self.out.apply(kept.as_deref().unwrap_or(attention));
        let attended = sum(x, &behind(out, 0));
        if let PlainFeed::Nothing = self.ffn {
            return attended;
        }
        let fed = if self.parallel { x } else { &attended };
        let before = |norms: &[Vec<f32>; 2]| norm(fed, &norms[1]);
        let normed = self.norms.as_ref().map_or_else(|| fed.to_vec(), before);
        let made = self.ffn.apply([&normed, fed], &self.spec);
        let scale = f64::from(self.scale.unwrap_or(1.0));
        let scaled = |x: Near| Near::computed(scale * x.value, scale * x.slack);
        sum(&attended, &behind(made, 1)).into_iter().map(scaled).collect()
    }
}

/// The weights of an RMS norm.
fn norm(random: &mut Random, count: usize) -> Vec<f32> {
    random.normals(count).iter().map(|x| 1.0 + 0.1 * x).collect()
}

/// Each element, exactly.
pub(super) fn widened(row: &[f32]) -> Vec<f64> {
    row.iter().map(|&x| x.into()).collect()
}

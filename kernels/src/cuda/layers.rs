//! Everything of a layer that is not attention. Rows stay on the device, in the form in which the
//! next weight multiplies them.

use std::sync::Arc;

use super::device::Launch;
use super::feed::feed;
use super::latent::{self, OfLayer};
use super::linear::{Packed, Product, packed};
use super::operands::Elements;
use super::params::layers::{EmbedParams, HeadsParams};
use super::prepare::{Factor, Form, Prepare, Then, Unprepared, scale_stride};
use super::resident::OnDevice;
use super::{Broken, Cuda, Shared};
use crate::array::{Array, Resident};
use crate::backend::{BackendError, Qkv};
use crate::memory::Keys;
use crate::shapes;
use crate::tensor::{Heads, KvHeads, Rows};
use crate::weights::{Activation, Angles, LayerSpec, LayerWeights, Linear};

/// Heads that a block of a kernel turns: a warp each.
const WARPS: usize = 8;

/// Rows of a block of one operation.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) rows: usize,
    pub(super) broken: Broken,
    /// See [`Product::own`].
    pub(super) own: bool,
}

impl Block<'_> {
    /// `source` as `weight` multiplies it.
    pub(super) fn prepared(
        self,
        source: Elements,
        prepare: Prepare<'_>,
        weight: &Packed,
    ) -> Result<Factor, BackendError> {
        let Self { shared, rows, broken, .. } = self;
        Unprepared { source, rows, columns: weight.inputs, prepare, broken: Some(broken) }
            .into_form(shared, weight.weight.form())
    }

    /// `x` through `weight`.
    pub(super) fn product<'a>(self, x: &'a Factor, weight: &'a Packed) -> Product<'a> {
        let activation = Activation::Silu;
        let Self { rows, broken, own, .. } = self;
        Product { broken, rows, x, weight, residual: None, activation, own }
    }

    /// The RMS norm of `source`, rows of f32, and what is done then.
    pub(super) fn normed(
        self,
        cuda: &Cuda,
        source: OnDevice<f32>,
        (norm, eps): (&Arc<[f32]>, f32),
        then: Then<'_>,
    ) -> Result<OnDevice<f32>, BackendError> {
        let Self { shared, rows, broken, .. } = self;
        let weight = &cuda.norms.on_device(shared, norm)?;
        let prepare = Prepare::Norm { weight, eps, then };
        let y = OnDevice::room(shared, source.len())?;
        let (source, columns) = (Elements::F32(source), norm.len());
        Unprepared { source, rows, columns, prepare, broken: Some(broken) }
            .write(shared, &Factor::F32(y.clone()))?;
        Ok(y)
    }

    /// `y` times `scale`, if there is one, where it lies.
    fn scaled(self, y: OnDevice<f32>, scale: Option<f32>) -> Result<OnDevice<f32>, BackendError> {
        let Some(scale) = scale else { return Ok(y) };
        let Self { shared, rows, .. } = self;
        let (source, prepare) = (Elements::F32(y.clone()), Prepare::Scale(scale));
        Unprepared { source, rows, columns: y.len() / rows, prepare, broken: None }
            .write(shared, &Factor::F32(y.clone()))?;
        Ok(y)
    }
}

/// See [`crate::LayerOps::linear`].
pub(super) fn linear(cuda: &Cuda, x: &Rows, weight: &Linear) -> Result<Rows, BackendError> {
    shapes::linear("linear", x, weight)?;
    let (shared, rows) = (&cuda.shared, x.rows());
    let weight = packed("linear", shared, weight)?;
    if rows == 0 {
        return Ok(Rows::zeros(0, weight.outputs));
    }
    let block = Block { shared, rows, broken: Broken::Linear, own: false };
    let source = Elements::of_rows(shared, x.array())?;
    let x = block.prepared(source, Prepare::Nothing, weight)?;
    let y = block.product(&x, weight).sums()?;
    shared.done(Rows::new(rows, weight.outputs, y.into_array()))
}

/// See [`Cuda::product`].
pub(super) fn product(
    cuda: &Cuda,
    (x, residual): (&Rows, Option<&Rows>),
    weight: &Linear,
    own: bool,
) -> Result<Rows, BackendError> {
    shapes::linear("linear", x, weight)?;
    let (shared, rows) = (&cuda.shared, x.rows());
    let weight = packed("linear", shared, weight)?;
    let block = Block { shared, rows, broken: Broken::Project, own };
    let source = Elements::of_rows(shared, x.array())?;
    let x = block.prepared(source, Prepare::Nothing, weight)?;
    let residual = residual.map(|rows| shared.place(rows.array())).transpose()?;
    let y = Product { residual: residual.as_ref(), ..block.product(&x, weight) }.sums()?;
    shared.done(Rows::new(rows, weight.outputs, y.into_array()))
}

/// See [`crate::LayerOps::project`].
pub(super) fn project(
    cuda: &Cuda,
    layer: &LayerWeights,
    x: &Rows,
    (start, angles): (u32, &Angles),
    queries: usize,
) -> Result<Qkv, BackendError> {
    shapes::projection(layer, x, (start, angles), queries)?;
    let (shared, spec) = (&cuda.shared, &layer.projected());
    packed("project", shared, &layer.qkv)?; // is it of this device, whatever number of rows
    let made = SplitHeads::room(shared, spec, x.rows())?;
    let all = [(made, Stand { first: 0, start, angles })];
    if x.rows() > 0 {
        write_heads(cuda, layer, x, &all)?;
    }
    let [(made, _)] = all;
    shared.done(made.into_qkv(spec, start))?.of_last(queries)
}

/// Writes queries, keys and values of all of at least one row of `x`, in so many parts.
pub(super) fn write_heads(
    cuda: &Cuda,
    layer: &LayerWeights,
    x: &Rows,
    parts: &[(SplitHeads, Stand<'_>)],
) -> Result<(), BackendError> {
    let (shared, spec) = (&cuda.shared, &layer.projected());
    let weight = packed("project", shared, &layer.qkv)?;
    let block = Block { shared, rows: x.rows(), broken: Broken::Project, own: false };
    let norm = cuda.norms.each_on_device(shared, &layer.attn_norm)?;
    let norm = Prepare::norm(norm.as_ref(), spec.norm_eps);
    let normed = block.prepared(Elements::F32(shared.place(x.array())?), norm, weight)?;
    let qkv = block.product(&normed, weight).sums()?;
    match &layer.latent {
        None => parts.iter().try_for_each(|(to, stand)| to.split(cuda, layer, &qkv, *stand)),
        Some(latent) => latent::raise(cuda, block, OfLayer { latent, spec }, &qkv, parts),
    }
}

/// Where some of an operation's rows stand.
#[derive(Clone, Copy)]
pub(super) struct Stand<'a> {
    /// Which of its rows is the first of them.
    pub(super) first: usize,
    /// The position of that one.
    pub(super) start: u32,
    /// Of all its rows.
    pub(super) angles: &'a Angles,
}

impl Stand<'_> {
    /// Cosines and sines of all rows.
    pub(super) fn turns(self, cuda: &Cuda) -> Result<[OnDevice<f32>; 2], BackendError> {
        let of = |all| cuda.angles.on_device(&cuda.shared, all);
        Ok([of(&self.angles.cos)?, of(&self.angles.sin)?])
    }

    /// Those of the first row, of either.
    pub(super) fn first_of(self, turns: &OnDevice<f32>) -> u64 {
        turns.address() + (self.first * self.angles.half * size_of::<f32>()) as u64
    }
}

/// A block's queries, keys and values, to be written.
pub(super) struct SplitHeads {
    pub(super) tokens: usize,
    pub(super) q: Elements,
    pub(super) k: Elements,
    pub(super) v: Elements,
    /// `[kv_heads, tokens]`.
    pub(super) positions: OnDevice<u32>,
}

impl SplitHeads {
    pub(super) fn room(
        shared: &Arc<Shared>,
        spec: &LayerSpec,
        tokens: usize,
    ) -> Result<Self, BackendError> {
        let elements = |heads| Elements::room(shared, spec.kv, heads * tokens * spec.head_dim);
        Ok(Self {
            tokens,
            q: elements(spec.heads)?,
            k: elements(spec.kv_heads)?,
            v: elements(spec.kv_heads)?,
            positions: OnDevice::room(shared, spec.kv_heads * tokens)?,
        })
    }

    /// Writes them: QK norm, rotation, rounding.
    fn split(
        &self,
        cuda: &Cuda,
        layer: &LayerWeights,
        qkv: &OnDevice<f32>,
        stand: Stand<'_>,
    ) -> Result<(), BackendError> {
        let (shared, spec) = (&cuda.shared, &layer.projected());
        let norm = |norm| cuda.norms.each_on_device(shared, norm);
        let address = |norm: &Option<OnDevice<f32>>| norm.as_ref().map_or(0, OnDevice::address);
        let span = |norm: &Option<Arc<[f32]>>| norm.as_ref().map_or(0, |norm| norm.len() as u32);
        let [q_norm, k_norm] = [norm(&layer.q_norm)?, norm(&layer.k_norm)?];
        let v_norm = norm(&layer.v_norm)?;
        let [cosines, sines] = stand.turns(cuda)?;
        let stacked = spec.heads + 2 * spec.kv_heads;
        let first = stand.first * stacked * spec.head_dim;
        let params = HeadsParams {
            qkv: qkv.address() + (first * size_of::<f32>()) as u64,
            q_norm: address(&q_norm),
            k_norm: address(&k_norm),
            v_norm: address(&v_norm),
            cosines: stand.first_of(&cosines),
            sines: stand.first_of(&sines),
            q: self.q.address(),
            k: self.k.address(),
            v: self.v.address(),
            positions: self.positions.address(),
            broken: shared.broken_at(),
            tokens: self.tokens as u32,
            heads: spec.heads as u32,
            kv_heads: spec.kv_heads as u32,
            head_dim: spec.head_dim as u32,
            start: stand.start,
            code: Broken::Project as u32,
            eps: spec.norm_eps,
            q_span: span(&layer.q_norm),
            k_span: span(&layer.k_norm),
            queries_from: stand.angles.queries_from() as u32,
            norms_last: layer.norms_last.into(),
            norms_apart: layer.norms_apart.into(),
            clip: layer.clip.unwrap_or(f32::INFINITY),
            unused: 0,
        };
        shared.run(&Launch {
            kernel: self.q.of_dtype("heads_f32", "heads_bf16"),
            grid: [(self.tokens * stacked).div_ceil(WARPS) as u32, 1, 1],
            threads: 32 * WARPS as u32,
            shared_bytes: 0,
            params: bytemuck::bytes_of(&params),
        })
    }

    pub(super) fn into_qkv(self, spec: &LayerSpec, start: u32) -> Qkv {
        let &LayerSpec { heads, kv_heads, head_dim, .. } = spec;
        let tokens = self.tokens;
        let stored = |data: Elements| KvHeads { kv_heads, tokens, head_dim, data: data.into_kv() };
        let positions = self.positions.known_within(start..start + tokens as u32);
        Qkv {
            q: Heads { heads, tokens, head_dim, data: self.q.into_array() },
            keys: Keys::new(positions.into_array(), stored(self.k), stored(self.v)),
        }
    }
}

/// See [`crate::LayerOps::finish`].
pub(super) fn finish(
    cuda: &Cuda,
    layer: &LayerWeights,
    x: &Rows,
    attention: &Rows,
) -> Result<Rows, BackendError> {
    shapes::finishing(layer, x, attention)?;
    let (shared, rows, eps) = (&cuda.shared, x.rows(), layer.spec.norm_eps);
    let out = packed("finish", shared, &layer.out)?;
    if rows == 0 {
        return Ok(Rows::zeros(0, x.cols()));
    }
    let block = Block { shared, rows, broken: Broken::Finish, own: false };
    let before = shared.place(x.array())?;
    let mut source = Elements::of_rows(shared, attention.array())?;
    if let Some(latent) = &layer.latent {
        source = latent::outputs(shared, OfLayer { latent, spec: &layer.spec }, &source, rows)?;
    }
    let attention = block.prepared(source, Prepare::Nothing, out)?;
    let product = block.product(&attention, out);
    let attended = match &layer.attn_post_norm {
        None => Product { residual: Some(&before), ..product }.sums()?,
        Some(norm) => block.normed(cuda, product.sums()?, (norm, eps), Then::add(&before))?,
    };
    let fed = if layer.parallel { &before } else { &attended };
    let y = match &layer.ffn_post_norm {
        None => block.scaled(feed(cuda, layer, block, fed, Some(&attended))?, layer.scale)?,
        Some(norm) => {
            let y = feed(cuda, layer, block, fed, None)?;
            let then = Then { residual: Some(&attended), scale: layer.scale };
            block.normed(cuda, y, (norm, eps), then)?
        }
    };
    shared.done(Rows::new(rows, layer.out.outputs, y.into_array()))
}

/// See [`crate::LayerOps::embed`].
pub(super) fn embed(
    cuda: &Cuda,
    table: &Linear,
    tokens: &[u32],
    scale: f32,
) -> Result<Rows, BackendError> {
    shapes::embedding(table, tokens)?;
    let shared = &cuda.shared;
    let packed = packed("embed", shared, table)?;
    let (count, columns) = (tokens.len(), packed.inputs);
    if count == 0 {
        return Ok(Rows::zeros(0, columns));
    }
    let tokens = OnDevice::of(shared, tokens)?;
    let y = OnDevice::room(shared, count * columns)?;
    let (form, (table, scales)) = (packed.weight.form(), packed.weight.addresses());
    let params = EmbedParams {
        table,
        scales,
        tokens: tokens.address(),
        y: y.address(),
        count: count as u32,
        columns: columns as u32,
        stride: form.stride(columns) as u32,
        scale_stride: scale_stride(packed.outputs) as u32,
        scale,
        unused: 0,
    };
    let kernel = match form {
        Form::F32 => "embed_f32",
        Form::Bf16 => "embed_bf16",
        Form::Int8 => "embed_int8",
    };
    let grid = [count as u32, 1, 1];
    let params = bytemuck::bytes_of(&params);
    shared.run(&Launch { kernel, grid, threads: 256, shared_bytes: 0, params })?;
    shared.done(Rows::new(count, columns, y.into_array()))
}

/// See [`crate::LayerOps::norm`]. It cannot fail, so what went wrong is told to who reads.
pub(super) fn norm(cuda: &Cuda, x: &Rows, weight: &Arc<[f32]>, eps: f32) -> Rows {
    let (rows, columns) = (x.rows(), x.cols());
    let data = normed(cuda, x, weight, eps)
        .unwrap_or_else(|why| Array::on_device(Arc::new(Lost { count: rows * columns, why })));
    Rows::new(rows, columns, data)
}

fn normed(
    cuda: &Cuda,
    x: &Rows,
    weight: &Arc<[f32]>,
    eps: f32,
) -> Result<Array<f32>, BackendError> {
    let shared = &cuda.shared;
    let (rows, columns) = (x.rows(), x.cols());
    if rows * columns == 0 {
        return Ok(Array::default());
    }
    let source = Elements::F32(shared.place(x.array())?);
    let weight = cuda.norms.on_device(shared, weight)?;
    let prepare = Prepare::Norm { weight: &weight, eps, then: Then::default() };
    let y = OnDevice::room(shared, rows * columns)?;
    Unprepared { source, rows, columns, prepare, broken: None }
        .write(shared, &Factor::F32(y.clone()))?;
    Ok(y.into_array())
}

/// Elements that a device failed to make.
struct Lost {
    count: usize,
    why: BackendError,
}

impl Resident<f32> for Lost {
    fn count(&self) -> usize {
        self.count
    }

    fn fetch(&self) -> Result<Vec<f32>, BackendError> {
        Err(self.why.clone())
    }
}

//! A decoder that is loaded and packed for one backend.

mod checks;

use std::borrow::Cow;
use std::sync::Arc;

use aqueduct_core::{ModelShape, Refusal, TokenId, limits};
use aqueduct_kernels::{
    Angles, Backend, BackendError, Fabric, FabricError, Heads, KvDtype, LayerSpec, LayerWeights,
    Linear, MemorySet, Op, Pool, Queries, Rows, Window,
};

use self::checks::{check_heads, check_lenders, check_neighbours, windowed};
use crate::error::EngineError;
use crate::inputs::{LayerInputs, TokenInputs};
use crate::positions::PositionTable;
use crate::prefill::Block;
use crate::rope::{Rope, Temperature};

/// Everything that a loader found; [`Model::new`] checks that it fits together.
pub struct ModelParts {
    /// Counts.
    pub shape: ModelShape,
    /// Hash over weights, configuration and dtypes, as hexadecimal digits.
    pub fingerprint: String,
    /// What packed the weights and computes with them.
    pub backend: Arc<dyn Backend>,
    /// `[vocab, width]` token embedding.
    pub embed: Linear,
    /// Multiplies its rows.
    pub embed_scale: f32,
    /// The decoder layers.
    pub layers: Vec<LayerWeights>,
    /// Per layer: what bounds a row's sight, if anything does.
    pub windows: Vec<Option<Window>>,
    /// `[width]`: the last RMS norm.
    pub final_norm: Arc<[f32]>,
    /// `[vocab, width]`: logits; the embedding itself when tied.
    pub head: Linear,
    /// Per layer: its rotary embedding.
    pub ropes: Vec<Rope>,
    /// Of queries in every layer, if the model has it.
    pub temperature: Option<Temperature>,
    /// Of queries in layers that do not rotate, which count positions from 1
    /// (Meta 2025, Llama 4).
    pub still_temperature: Option<Temperature>,
    /// Multiplies attention's dot products.
    pub scale: f32,
    /// [`Queries::softcap`] of all layers.
    pub softcap: Option<f32>,
    /// [`Queries::slopes`] of all layers.
    pub slopes: Option<Vec<f32>>,
    /// [`Self::softcap`] of the logits of tokens.
    pub logits_softcap: Option<f32>,
    /// What positions add to embeddings, where they do.
    pub positions: Option<PositionTable>,
    /// Where layers take inputs of their own: what these are made of.
    pub inputs: Option<TokenInputs>,
    /// Added to the mean square in RMS norms.
    pub norm_eps: f32,
    /// How keys and values are stored.
    pub kv: KvDtype,
}

/// A decoder, immutable and shared by all workers of a process.
pub struct Model {
    pub(crate) parts: ModelParts,
    /// The first layers with each rotary embedding.
    rope_layers: Vec<usize>,
    /// Per layer: which of them has its own.
    rope_of: Vec<usize>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Model({}, {:?})", self.parts.fingerprint, self.parts.shape)
    }
}

/// The angles of some positions, as each layer takes them.
#[derive(Clone)]
pub(crate) struct LayerAngles<'m> {
    rope_of: &'m [usize],
    /// One for each rotary embedding of the model.
    angles: Vec<Angles>,
}

impl LayerAngles<'_> {
    /// Of layer `idx`.
    pub(crate) fn of(&self, idx: usize) -> &Angles {
        &self.angles[self.rope_of[idx]]
    }
}

/// As long as it lives, what its thread computes goes first.
#[must_use]
pub struct Hurry<'a>(&'a dyn Backend);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.go_first(false);
    }
}

impl Model {
    /// Takes the parts if their counts agree with the shape.
    ///
    /// # Errors
    /// The first count that does not.
    pub fn new(mut parts: ModelParts) -> Result<Self, Refusal> {
        let shape = &parts.shape;
        shape.validate()?;
        let same = |field: &str, seen: usize, want: u32| {
            Refusal::unless_within(field, seen, want as usize, want as usize).map(drop)
        };
        same("layers", parts.layers.len(), shape.layers)?;
        same("windows", parts.windows.len(), shape.layers)?;
        same("ropes", parts.ropes.len(), shape.layers)?;
        same("embed.outputs", parts.embed.outputs, shape.vocab)?;
        same("embed.inputs", parts.embed.inputs, shape.width)?;
        same("head.outputs", parts.head.outputs, shape.vocab)?;
        same("head.inputs", parts.head.inputs, shape.width)?;
        if let Some(slopes) = &parts.slopes {
            same("slopes", slopes.len(), shape.heads)?;
        }
        same("final_norm", parts.final_norm.len(), shape.width)?;
        let recurrent = || parts.layers.iter().filter_map(|layer| layer.recurrent.as_ref());
        same("recurrent_layers", recurrent().count(), shape.recurrent_layers)?;
        for (idx, layer) in parts.layers.iter().enumerate() {
            let Some(recurrent) = &layer.recurrent else { continue };
            let field = |name: &str| format!("layers[{idx}].{name}");
            let unfit = |error: BackendError| {
                Refusal::new(field("recurrent"), error, "counts that fit together")
            };
            recurrent.validate().map_err(unfit)?;
            let (columns, outputs) = (recurrent.columns() as u32, recurrent.outputs() as u32);
            same(&field("qkv.outputs"), layer.qkv.outputs, columns)?;
            same(&field("out.inputs"), layer.out.inputs, outputs)?;
            let (len, most) = (recurrent.state_len() as u64, limits::STATE_LEN_MAX.into());
            Refusal::unless_within(&field("state"), len, 0, most)?;
        }
        let states: usize = recurrent().map(|recurrent| recurrent.state_len()).sum();
        let state_bytes = (states * size_of::<f32>()) as u64;
        Refusal::unless_within("state_bytes", shape.state_bytes, state_bytes, state_bytes)?;
        check_heads(&parts)?;
        check_lenders(&parts)?;
        check_neighbours(&parts.layers)?;
        let table = parts.positions.as_ref();
        table.map_or(Ok(()), |table| table.check(shape.max_positions, shape.width))?;
        match &parts.inputs {
            Some(inputs) => inputs.check(shape.vocab, shape.width, &parts.layers)?,
            None => {
                let takers = parts.layers.iter().filter(|layer| layer.input.is_some()).count();
                same("layers with inputs of their own", takers, 0)?;
            }
        }
        let (mut rope_layers, mut rope_of) = (Vec::<usize>::new(), Vec::new());
        let head_dim = |layer: usize| parts.layers[layer].spec.head_dim;
        for (idx, rope) in parts.ropes.iter().enumerate() {
            Refusal::unless_within("rope.inv_freq", rope.inv_freq.len(), 0, head_dim(idx) / 2)?;
            let is_known =
                |layer: &usize| parts.ropes[*layer] == *rope && head_dim(*layer) == head_dim(idx);
            let known = rope_layers.iter().position(is_known);
            rope_of.push(known.unwrap_or(rope_layers.len()));
            if known.is_none() {
                rope_layers.push(idx);
            }
        }
        parts.shape.windowed = windowed(&parts);
        Ok(Self { parts, rope_layers, rope_of })
    }

    /// Counts.
    pub fn shape(&self) -> &ModelShape {
        &self.parts.shape
    }

    /// Hash over weights, configuration and dtypes.
    pub fn fingerprint(&self) -> &str {
        &self.parts.fingerprint
    }

    /// How keys and values are stored.
    pub fn kv(&self) -> KvDtype {
        self.parts.kv
    }

    /// What computes.
    pub fn backend(&self) -> &dyn Backend {
        self.parts.backend.as_ref()
    }

    /// Lets what this thread computes go before what others compute, who get a share of the time
    /// before the next hurry. Meanwhile this thread must not wait for them.
    pub fn hurry(&self) -> Hurry<'_> {
        self.backend().go_first(true);
        Hurry(self.backend())
    }

    /// What takes memory sets from the device that computes to others.
    ///
    /// # Errors
    /// As [`Backend::fabric`] has it.
    pub fn fabric(&self) -> Result<Option<Arc<dyn Fabric>>, FabricError> {
        self.parts.backend.clone().fabric()
    }

    /// Whether layer `idx` takes the stream as the layer before it took it.
    pub(crate) fn is_beside_last(&self, idx: usize) -> bool {
        self.parts.layers.get(idx).is_some_and(|layer| layer.beside_last)
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.parts.layers.len()
    }

    /// Layers that remember something: all before those that attend to keys of earlier ones. There
    /// is a memory set for each, and a port is asked for no other.
    pub fn memory_layers(&self) -> usize {
        self.parts.shape.memory_layers() as usize
    }

    /// The first layer to whose keys a later one attends, if there are such.
    pub(crate) fn first_lender(&self) -> Option<usize> {
        self.parts.layers.iter().filter_map(|layer| layer.keys_of).min()
    }

    /// What bounds the sight of rows in layer `idx`, if there is such a layer and anything does.
    pub fn window(&self, idx: usize) -> Option<Window> {
        self.parts.windows.get(idx).copied().flatten()
    }

    /// Heads and constants of layer `idx`, if there is such a layer.
    pub fn spec_of(&self, idx: usize) -> Option<LayerSpec> {
        self.parts.layers.get(idx).map(|layer| layer.spec)
    }

    /// The shape with the heads of layer `idx` for all, if there is such a layer.
    pub fn shape_of(&self, idx: usize) -> ModelShape {
        let mut shape = self.parts.shape.clone();
        if let Some(LayerSpec { kv_heads, head_dim, .. }) = self.spec_of(idx) {
            (shape.kv_heads, shape.head_dim) = (kv_heads as u32, head_dim as u32);
        }
        shape
    }

    /// Elements of the state of layer `idx`; 0 for one that remembers keys.
    pub fn state_len(&self, idx: usize) -> usize {
        self.parts.layers[idx].recurrent.as_ref().map_or(0, |recurrent| recurrent.state_len())
    }

    /// Bytes of weights that every block reads, however few its tokens: all layers and the
    /// head. Of the embedding a block reads only its tokens' rows, and of experts only those that
    /// its tokens go through.
    pub fn weight_bytes(&self) -> u64 {
        let layer = |layer: &LayerWeights| layer.bytes_of_one_token() as u64;
        let inputs = self.parts.inputs.as_ref().map_or(0, |inputs| inputs.projection.bytes);
        let layers = self.parts.layers.iter().map(layer).sum::<u64>();
        layers + (self.parts.head.bytes + inputs) as u64
    }

    /// `q`, whose first row stands at `start`, with what attention in layer `idx` needs.
    pub(crate) fn queries<'q>(&'q self, idx: usize, q: &'q Heads, start: u32) -> Queries<'q> {
        let ModelParts { scale, softcap, .. } = self.parts;
        let slopes = self.parts.slopes.as_deref();
        Queries { q, start, scale, window: self.window(idx), softcap, slopes }
    }

    /// Of the block's positions.
    pub(crate) fn angles(&self, block: Block<'_>) -> LayerAngles<'_> {
        self.angles_of((u64::from(block.start)..).take(block.tokens.len()))
    }

    /// Of any positions.
    pub(crate) fn angles_at(&self, positions: &[u32]) -> LayerAngles<'_> {
        self.angles_of(positions.iter().copied().map(u64::from))
    }

    fn angles_of(&self, positions: impl Iterator<Item = u64> + Clone) -> LayerAngles<'_> {
        let ModelParts { temperature, still_temperature, .. } = self.parts;
        let angles = |&layer: &usize| {
            let (half, rope) =
                (self.parts.layers[layer].spec.head_dim / 2, &self.parts.ropes[layer]);
            match still_temperature.filter(|_| *rope == Rope::NONE) {
                None => rope.angles(half, positions.clone(), temperature),
                still => rope.angles(half, positions.clone().map(|position| position + 1), still),
            }
        };
        let angles = self.rope_layers.iter().map(angles).collect();
        LayerAngles { rope_of: &self.rope_of, angles }
    }

    /// What layer `idx` remembers before the first token.
    pub fn empty_memory(&self, idx: usize) -> MemorySet {
        self.empty_memory_in(idx, None)
    }

    /// The same, in pages of `pool` where there is one.
    pub fn empty_memory_in(&self, idx: usize, pool: Option<&Pool>) -> MemorySet {
        let LayerSpec { kv_heads, head_dim, .. } = self.parts.layers[idx].spec;
        match pool {
            Some(pool) => MemorySet::empty_in(pool, kv_heads, head_dim, self.parts.kv),
            None => MemorySet::empty(kv_heads, head_dim, self.parts.kv),
        }
    }

    /// Bytes that one token's keys and values take in all layers that have keys.
    pub fn token_bytes(&self) -> u64 {
        let has_keys = |layer: &&LayerWeights| layer.recurrent.is_none() && layer.keys_of.is_none();
        let layers = self.parts.layers.iter().filter(has_keys);
        let elements = layers.map(|layer| layer.spec.kv_heads * layer.spec.head_dim).sum::<usize>();
        2 * (elements * self.parts.kv.bytes()) as u64
    }

    /// Pages of `bytes` for the keys of this model; `None` where the device reads none of them
    /// and keeps keys in memory of its own.
    ///
    /// # Errors
    /// Not one page fits, or there are no addresses for so many.
    pub fn pool(&self, bytes: u64) -> Result<Option<Pool>, BackendError> {
        if !self.backend().supports(Op::Pages) {
            return Ok(None);
        }
        Pool::new(self.parts.shape.head_dim as usize, self.parts.kv, bytes).map(Some)
    }

    /// What layers take of `tokens`, whose embedding is `x`, where they take anything.
    pub(crate) fn inputs(
        &self,
        tokens: &[TokenId],
        x: &Rows,
    ) -> Result<Option<LayerInputs>, EngineError> {
        let inputs = self.parts.inputs.as_ref();
        inputs.map(|inputs| inputs.of(self.backend(), tokens, x)).transpose()
    }

    /// The rest of a layer, of rows `x` of which its attention, or its state, has made `output`.
    /// `input` is what the layer takes of the rows' tokens, if any does.
    pub(crate) fn finish(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        output: Cow<'_, Rows>,
        input: Option<Rows>,
    ) -> Result<Rows, BackendError> {
        let backend = self.backend();
        let gated = match &layer.gate {
            None => output,
            Some(_) => Cow::Owned(backend.gate(layer, x, output.into_owned())?),
        };
        let gated = match &layer.out_norm {
            None => gated,
            Some(norm) => Cow::Owned(backend.norm(&gated, norm, layer.spec.norm_eps)),
        };
        let y = backend.finish(layer, x, &gated)?;
        match (&layer.input, input) {
            (Some(own), Some(input)) => backend.take(layer, own, &y, &input),
            _ => Ok(y),
        }
    }

    /// `[rows, vocab]` from the last layer's `[rows, width]`.
    ///
    /// # Errors
    /// What the backend refuses.
    pub fn logits(&self, x: &Rows) -> Result<Rows, EngineError> {
        let parts = &self.parts;
        let x = parts.backend.norm(x, &parts.final_norm, parts.norm_eps);
        let logits = parts.backend.linear(&x, &parts.head)?;
        match parts.logits_softcap {
            Some(cap) => Ok(parts.backend.cap(&logits, cap)?),
            None => Ok(logits),
        }
    }
}

//! Layers that remember in a state of fixed size.

use std::sync::Arc;

use aqueduct_kernels::{Convolution, Delta, GroupNorm, Matrix, MatrixData, Recurrent, Rule, Scan};

use super::mixer::Mixer;
use super::{Assembler, Sources, Stacked};
use crate::error::LoadError;
use crate::load::checkpoint::{Checkpoint, Laid, RowOrder, Stored};
use crate::load::decoder::{Columns, Decoder, Recurrents, RuleShape};
use crate::load::names::{FirstPart, Names, Rates};

impl Assembler<'_, '_> {
    /// What a layer has instead of attention.
    pub(super) fn recurrent(
        &mut self,
        prefix: &str,
        recurrents: &Recurrents,
    ) -> Result<Mixer, LoadError> {
        let Sources { decoder, names, .. } = self.sources;
        let (of, width, rule) = (&names.recurrent, decoder.shape.width, recurrents.rule);
        let rows_of = |part: &FirstPart| -> usize {
            part.columns.iter().map(|&columns| rule.count(columns, width)).sum()
        };
        let parts: Vec<_> = of.first.iter().map(|part| (part.name, rows_of(part))).collect();
        let (inputs, bias) = (width as usize, recurrents.biases);
        let first = Stacked { parts: &parts, inputs, bias, norm: Some(names.attn_norm) };
        // Files keep the few rows of decays and steps in more bits than the others. All are held as
        // most of them are: in f32 the whole would be four times as large for these.
        let (named, total) = (first.named(prefix, "weight"), rule.count(Columns::All, width));
        let encodings = self.encodings(named.iter().filter(|(_, rows)| rows * 16 >= total));
        let held = self.options.weights.held_mixed(self.options.kv, &encodings);
        let qkv = self.linear_held(prefix, first, held)?;
        let conv = self.convolution(prefix, recurrents)?;
        let rule = self.rule(prefix, recurrents)?;
        let (parts, inputs) = (&[(of.out, inputs)], recurrents.rule.outputs(width));
        let out = self.linear(prefix, Stacked { parts, inputs, bias, norm: None })?;
        let recurrent = Some(Arc::new(Recurrent { conv, rule }));
        Ok(Mixer { sinks: None, qkv, latent: None, gate: None, recurrent, out })
    }

    /// What stands where a layer is a feed-forward part alone (of three in a row, the second and
    /// the third): one channel that is always 0, of which 0 is added to the stream. So backends
    /// and what plans for them know no layers without a mixer.
    pub(super) fn no_mixer(&self) -> Result<Mixer, LoadError> {
        const TAPS: usize = 2; // so that its state has an element, as all have
        let width = self.sources.decoder.shape.width as usize;
        let zeros = |outputs: usize, inputs: usize| {
            let data = MatrixData::F32(vec![0.0; outputs * inputs]);
            let packed = self.options.backend.pack(Matrix { outputs, inputs, data }, None);
            let path = &self.sources.checkpoint.path;
            packed.map_err(|err| LoadError::tensor(path, "of no mixer", err.to_string()))
        };
        let conv = Convolution { taps: TAPS, weights: Arc::from([0.0; TAPS]), bias: None };
        let recurrent = Recurrent { conv, rule: Rule::Gated };
        let (qkv, out) = (zeros(recurrent.columns(), width)?, zeros(width, recurrent.outputs())?);
        let recurrent = Some(Arc::new(recurrent));
        Ok(Mixer { sinks: None, qkv, latent: None, gate: None, recurrent, out })
    }

    fn convolution(
        &mut self,
        prefix: &str,
        recurrents: &Recurrents,
    ) -> Result<Convolution, LoadError> {
        let (parts, width) = (self.sources.names.recurrent.conv, self.sources.decoder.shape.width);
        let (mut by_channel, mut biases) = (Vec::<f32>::new(), Vec::<f32>::new());
        let taps = recurrents.taps as usize;
        for (part, columns) in parts {
            let (name, channels) =
                (format!("{prefix}.{part}"), recurrents.rule.count(*columns, width));
            let weight = format!("{name}.weight");
            by_channel.extend(self.read(&weight, &[channels, taps], Stored::f32)?);
            if recurrents.conv_bias {
                biases.extend(self.read(&format!("{name}.bias"), &[channels], Stored::f32)?);
            }
        }
        self.multiply_channels(&mut by_channel, recurrents.rule, taps);
        // Files have a channel's taps together.
        let by_channel = &by_channel[..];
        let by_tap = (0..taps).flat_map(|tap| by_channel.iter().skip(tap).step_by(taps));
        let bias = recurrents.conv_bias.then(|| biases.into());
        Ok(Convolution { taps, weights: by_tap.copied().collect(), bias })
    }

    /// Has `weights`, `[channels, taps]`, multiply what their inputs are multiplied by.
    fn multiply_channels(&self, weights: &mut [f32], rule: RuleShape, taps: usize) {
        let (Some(by), RuleShape::Scan { groups, state_dim, .. }) =
            (self.sources.decoder.multipliers, rule)
        else {
            return;
        };
        let (shared, [x, b, c]) = (groups as usize * state_dim as usize, by.channels);
        let (of_x, others) = weights.split_at_mut(weights.len() - 2 * shared * taps);
        let (of_b, of_c) = others.split_at_mut(shared * taps);
        for (part, by) in [(of_x, x), (of_b, b), (of_c, c)] {
            part.iter_mut().for_each(|weight| *weight *= by);
        }
    }

    fn rule(&mut self, prefix: &str, recurrents: &Recurrents) -> Result<Rule, LoadError> {
        let of = &self.sources.names.recurrent;
        let norm_eps = recurrents.norm_eps;
        Ok(match recurrents.rule {
            RuleShape::Gated => Rule::Gated,
            RuleShape::Delta { key_heads, value_heads, tiled, key_dim, value_dim, steps } => {
                let [key_heads, value_heads, key_dim, value_dim] =
                    [key_heads, value_heads, key_dim, value_dim].map(|count| count as usize);
                Rule::Delta(Delta {
                    key_heads,
                    value_heads,
                    tiled,
                    key_dim,
                    value_dim,
                    rate: self.rates(prefix, value_heads)?,
                    shift: self.numbers(prefix, of.shift, value_heads)?.into(),
                    steps,
                    norm: self.numbers(prefix, of.norm, value_dim)?.into(),
                    norm_eps,
                })
            }
            RuleShape::Scan { heads, head_dim, groups, state_dim, limits, norm } => {
                let counts = [heads, head_dim, groups, state_dim].map(|count| count as usize);
                Rule::Scan(self.scan(prefix, counts, limits, norm.then_some(norm_eps))?)
            }
        })
    }

    fn scan(
        &mut self,
        prefix: &str,
        [heads, head_dim, groups, state_dim]: [usize; 4],
        limits: [f32; 2],
        norm_eps: Option<f32>,
    ) -> Result<Scan, LoadError> {
        let Sources { decoder, names, .. } = self.sources;
        let of = &names.recurrent;
        let (dt_scale, given) = decoder.multipliers.map_or((1.0, 1.0), |by| (by.dt, by.scanned));
        let rate = self.rates(prefix, heads)?;
        let shift = self.numbers(prefix, of.shift, heads)?.into();
        let mut skip = self.numbers(prefix, of.skip, heads)?;
        let (mut norm, mut x_scale) = (None, given);
        match norm_eps {
            Some(eps) => {
                let mut weights = self.numbers(prefix, of.norm, heads * head_dim)?;
                weights.iter_mut().for_each(|weight| *weight *= given);
                norm = Some(GroupNorm { weights: weights.into(), groups, eps });
                x_scale = 1.0;
            }
            None => skip.iter_mut().for_each(|skip| *skip *= given),
        }
        Ok(Scan {
            heads,
            head_dim,
            groups,
            state_dim,
            rate,
            shift,
            skip: skip.into(),
            dt_scale,
            x_scale,
            limits,
            norm,
        })
    }

    fn rates(&mut self, prefix: &str, heads: usize) -> Result<Arc<[f32]>, LoadError> {
        let of = &self.sources.names.recurrent;
        let mut rates = self.numbers(prefix, of.rate, heads)?;
        for (idx, rate) in rates.iter_mut().enumerate() {
            let stored = *rate;
            *rate = match of.rates {
                Rates::Logarithms => stored.exp(),
                Rates::Negative => -stored,
            };
            if !(*rate > 0.0 && rate.is_finite()) {
                let what = format!("element {idx} is {stored}: makes no rate above 0 and finite");
                let name = format!("{prefix}.{}", of.rate);
                return Err(LoadError::tensor(&self.sources.checkpoint.path, &name, what));
            }
        }
        Ok(rates.into())
    }

    fn numbers(&mut self, prefix: &str, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        self.read(&format!("{prefix}.{name}"), &[len], Stored::f32)
    }
}

/// Tells where rows of first products stand, and gives what is one vector or one matrix, but has
/// more dimensions in files, the shape of that.
pub(super) fn lay_recurrents(decoder: &Decoder, checkpoint: &mut Checkpoint<'_>, names: &Names) {
    let Some(recurrents) = &decoder.recurrent else { return };
    let of = &names.recurrent;
    let layers = (0..decoder.shape.layers).zip(&recurrents.layers);
    for (layer, _) in layers.filter(|(_, is_recurrent)| **is_recurrent) {
        let prefix = format!("{}.{layer}", names.layer);
        for part in of.first.iter().filter(|part| part.by_head) {
            let order = by_head(part, recurrents.rule, decoder.shape.width);
            for suffix in ["weight", "bias"] {
                let name = format!("{prefix}.{}.{suffix}", part.name);
                if let Some(tensor) = checkpoint.tensors.get_mut(&name) {
                    tensor.order = Some(order);
                }
            }
        }
        for (part, _) in of.conv {
            if let Some(tensor) = checkpoint.tensors.get_mut(&format!("{prefix}.{part}.weight"))
                && let [channels, 1, taps] = *tensor.shape
            {
                tensor.shape = vec![channels, taps];
            }
        }
        for part in [of.rate, of.shift, of.skip, of.norm] {
            if let Some(tensor) = checkpoint.tensors.get_mut(&format!("{prefix}.{part}"))
                && tensor.laid == Laid::Rows
            {
                let elements =
                    tensor.shape.iter().fold(1_usize, |all, &one| all.saturating_mul(one));
                tensor.shape = vec![elements];
            }
        }
    }
}

/// How the rows of such a part stand.
fn by_head(part: &FirstPart, rule: RuleShape, width: u32) -> RowOrder {
    let (groups, mut parts) = (rule.key_heads().max(1), [0; 4]);
    for (rows, &columns) in parts.iter_mut().zip(part.columns) {
        *rows = rule.count(columns, width) / groups;
    }
    RowOrder::ByGroup { groups, parts }
}

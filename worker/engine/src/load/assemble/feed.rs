//! Feed-forward parts: one for all tokens, or many, or both.

use std::sync::Arc;

use aqueduct_kernels::experts::Routing;
use aqueduct_kernels::{Beside, Experts, FeedForward, Gated, Linear, Matrix, MatrixData};

use super::{Assembler, Stacked};
use crate::error::LoadError;
use crate::load::checkpoint::Stored;
use crate::load::decoder::{Biases, Family, ManyExperts};
use crate::load::held::Held;

/// What one part's tensors are called, of which some may be in others' places.
struct PartNames<'n> {
    gate: &'n str,
    up: &'n str,
    /// Both in one; where there is no gate, what `up` may be called besides.
    gate_up: &'n str,
    down: &'n str,
    /// Where there is no `down`.
    other_down: &'n str,
    /// What stands before it.
    norm: Option<&'n str>,
}

impl Assembler<'_, '_> {
    /// The feed-forward part of layer `idx`.
    pub(super) fn feed(&mut self, prefix: &str, idx: usize) -> Result<FeedForward, LoadError> {
        let decoder = &self.sources.decoder;
        if !decoder.has_feed(idx) {
            return Ok(FeedForward::Nothing);
        }
        if let Some(experts) = decoder.experts.as_ref().filter(|experts| experts.layers[idx]) {
            let many = self.experts(prefix, experts)?;
            return match decoder.family {
                Family::Gemma4 => self.beside(prefix, idx, many),
                _ => Ok(FeedForward::Experts(Box::new(many))),
            };
        }
        Ok(FeedForward::Dense(self.dense(prefix, idx)?))
    }

    /// Experts and the dense part that stands beside them.
    fn beside(
        &mut self,
        prefix: &str,
        idx: usize,
        mut experts: Experts,
    ) -> Result<FeedForward, LoadError> {
        let (names, shape) = (self.sources.names.beside, &self.sources.decoder.shape);
        let (width, count) = (shape.width as usize, experts.each.len());
        let factors = self.read(&format!("{prefix}.{}", names.factors), &[count], Stored::f32)?;
        experts.routing.factors = Some(factors.into());
        let scale =
            self.read(&format!("{prefix}.{}", names.router_scale), &[width], Stored::f32)?;
        let root = (width as f64).sqrt();
        let router_norm = scale.iter().map(|&scale| (f64::from(scale) / root) as f32).collect();
        let mut norm = |name: &str| {
            self.norm(&format!("{prefix}.{name}.weight"), width).map(Arc::<[f32]>::from)
        };
        let dense_post_norm = norm(names.dense_post_norm)?;
        let experts_norm = norm(names.experts_norm)?;
        let experts_post_norm = norm(names.experts_post_norm)?;
        let dense = self.dense(prefix, idx)?;
        Ok(FeedForward::Beside(Box::new(Beside {
            dense,
            dense_post_norm,
            experts,
            experts_norm,
            router_norm,
            experts_post_norm,
        })))
    }

    /// What multiplies the stream at a layer's end, if anything does.
    pub(super) fn layer_scale(&mut self, prefix: &str) -> Result<Option<f32>, LoadError> {
        if self.sources.decoder.family != Family::Gemma4 {
            return Ok(None);
        }
        let name = format!("{prefix}.{}", self.sources.names.beside.scale);
        if !self.sources.checkpoint.tensors.contains_key(&name) {
            return Ok(None); // as llama.cpp has it
        }
        Ok(self.read(&name, &[1], Stored::f32)?.first().copied())
    }

    /// A layer's one part.
    fn dense(&mut self, prefix: &str, idx: usize) -> Result<Gated, LoadError> {
        let (decoder, names) = (&self.sources.decoder, self.sources.names);
        let part = PartNames {
            gate: names.gate,
            up: names.up,
            gate_up: names.gate_up,
            down: names.down,
            other_down: names.down,
            norm: Some(self.norm_of_feed()),
        };
        let (ffn, biases) = (decoder.ffn(idx), decoder.biases);
        self.part(prefix, &part, ffn, biases)
    }

    fn part(
        &mut self,
        prefix: &str,
        names: &PartNames<'_>,
        ffn: usize,
        biases: Biases,
    ) -> Result<Gated, LoadError> {
        let decoder = &self.sources.decoder;
        let width = decoder.shape.width as usize;
        let gate_up = match decoder.is_gated() {
            true => self.parts(prefix, &[(names.gate, ffn), (names.up, ffn)], names.gate_up),
            false => self.parts(prefix, &[(names.up, ffn)], names.gate_up),
        };
        let down = self.parts(prefix, &[(names.down, width)], names.other_down);
        let norm = names.norm;
        let gate_up = Stacked { parts: &gate_up, inputs: width, bias: biases.gate_up, norm };
        let down = Stacked { parts: &down, inputs: ffn, bias: biases.down, norm: None };
        Ok(Gated { gate_up: self.linear(prefix, gate_up)?, down: self.linear(prefix, down)? })
    }

    fn experts(&mut self, prefix: &str, experts: &ManyExperts) -> Result<Experts, LoadError> {
        let (names, count) = (self.sources.names.experts, experts.count as usize);
        let biased = self.sources.decoder.expert_biases;
        let router = self.exact(prefix, (names.router, count), biased)?;
        let bias = match experts.bias {
            true => {
                let name = format!("{prefix}.{}", names.bias);
                Some(self.read(&name, &[count], Stored::f32)?.into())
            }
            false => None,
        };
        let each = (0..count).map(|expert| self.expert(prefix, expert, experts.ffn as usize));
        let each = each.collect::<Result<_, _>>()?;
        let shared = experts.shared_ffn.map(|ffn| {
            let part = PartNames {
                gate: names.shared_gate,
                up: names.shared_up,
                gate_up: names.shared_gate_up,
                down: names.shared_down,
                other_down: names.shared_down,
                norm: Some(self.norm_of_feed()),
            };
            self.part(prefix, &part, ffn as usize, Biases::default())
        });
        let shared = shared.transpose()?;
        let shared_gate = match experts.shared_gate {
            true => Some(self.exact(prefix, (names.shared_by, 1), false)?),
            false if self.sources.decoder.shared_half => Some(self.half()?),
            false => None,
        };
        let routing = Routing {
            chosen: experts.chosen as usize,
            scoring: experts.scoring,
            bias,
            normalises: experts.normalises,
            scale: experts.scale,
            groups: self.sources.decoder.expert_groups,
            factors: None,
            before: self.sources.decoder.family == Family::Llama4,
        };
        Ok(Experts { router, routing, each, shared, shared_gate })
    }

    /// A gate that is one half of whatever there is, as σ(0) is.
    fn half(&self) -> Result<Linear, LoadError> {
        let inputs = self.sources.decoder.shape.width as usize;
        let data = MatrixData::F32(vec![0.0; inputs]);
        let packed = self.options.backend.pack(Matrix { outputs: 1, inputs, data }, None);
        let path = &self.sources.checkpoint.path;
        packed.map_err(|err| LoadError::tensor(path, "a gate of one half", err.to_string()))
    }

    fn expert(&mut self, prefix: &str, expert: usize, ffn: usize) -> Result<Gated, LoadError> {
        let names = self.sources.names.experts;
        let numbered = |name: &str| name.replace("{}", &expert.to_string());
        let part = PartNames {
            gate: &numbered(names.gate),
            up: &numbered(names.up),
            gate_up: &numbered(names.gate_up),
            down: &numbered(names.down),
            other_down: &numbered(names.downs),
            norm: Some(self.norm_of_feed()),
        };
        let biased = self.sources.decoder.expert_biases;
        let biases = Biases { gate_up: biased, down: biased, ..Biases::default() };
        self.part(prefix, &part, ffn, biases)
    }

    /// A map of the stream into a few numbers, of which no bit is rounded.
    fn exact(
        &mut self,
        prefix: &str,
        (name, rows): (&str, usize),
        bias: bool,
    ) -> Result<Linear, LoadError> {
        let (inputs, norm) = (self.sources.decoder.shape.width as usize, Some(self.norm_of_feed()));
        let map = Stacked { parts: &[(name, rows)], inputs, bias, norm };
        self.linear_held(prefix, map, Held::F32)
    }

    /// What the norm is called behind which the stream is taken.
    fn norm_of_feed(&self) -> &'static str {
        let (decoder, names) = (&self.sources.decoder, self.sources.names);
        if decoder.shares_norm() { names.attn_norm } else { names.ffn_norm }
    }
}

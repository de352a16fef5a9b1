//! Feed-forward parts: one for all tokens, or many.

use aqueduct_kernels::experts::Routing;
use aqueduct_kernels::{Experts, FeedForward, Gated, Linear};

use super::{Assembler, Stacked};
use crate::error::LoadError;
use crate::load::checkpoint::Stored;
use crate::load::decoder::{Biases, ManyExperts};
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
        let (decoder, names) = (&self.sources.decoder, self.sources.names);
        if !decoder.has_feed(idx) {
            return Ok(FeedForward::Nothing);
        }
        if let Some(experts) = decoder.experts.as_ref().filter(|experts| experts.layers[idx]) {
            return Ok(FeedForward::Experts(Box::new(self.experts(prefix, experts)?)));
        }
        let part = PartNames {
            gate: names.gate,
            up: names.up,
            gate_up: names.gate_up,
            down: names.down,
            other_down: names.down,
            norm: Some(if decoder.shares_norm() { names.attn_norm } else { names.ffn_norm }),
        };
        let (ffn, biases) = (decoder.shape.ffn as usize, decoder.biases);
        Ok(FeedForward::Dense(self.part(prefix, &part, ffn, biases)?))
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
        let router = self.exact(&format!("{prefix}.{}", names.router), count, biased)?;
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
                norm: None,
            };
            self.part(prefix, &part, ffn as usize, Biases::default())
        });
        let shared = shared.transpose()?;
        let shared_gate = match experts.shared_gate {
            true => Some(self.exact(&format!("{prefix}.{}", names.shared_by), 1, false)?),
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
        };
        Ok(Experts { router, routing, each, shared, shared_gate })
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
            norm: None,
        };
        let biased = self.sources.decoder.expert_biases;
        let biases = Biases { gate_up: biased, down: biased, ..Biases::default() };
        self.part(prefix, &part, ffn, biases)
    }

    /// A map of the stream into a few numbers, of which no bit is rounded.
    fn exact(&mut self, name: &str, rows: usize, biased: bool) -> Result<Linear, LoadError> {
        let width = self.sources.decoder.shape.width as usize;
        let bias = biased.then(|| self.read(&format!("{name}.bias"), &[rows], Stored::f32));
        let bias = bias.transpose()?;
        self.matrix_held(Held::F32, &[(format!("{name}.weight"), rows)], width, bias)
    }
}

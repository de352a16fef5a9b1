//! Feed-forward parts, in plain f64 loops.

use crate::backend::Backend;
use crate::experts::{Routing, Scoring};
use crate::weights::{Activation, Beside, Experts, FeedForward, Gated, LayerSpec};

use super::super::near::{Near, curved, gated, normed, sum};
use super::super::scene::Random;
use super::{Held, Look, NORM_EPS, Plain, norm};

pub(super) const EXPERTS: usize = 5;
pub(super) const CHOSEN: usize = 2;

/// A feed-forward part before it is packed.
pub(super) enum PlainFeed {
    Nothing,
    Dense(PlainPart),
    Experts(Box<PlainExperts>),
    Beside(Box<PlainBeside>),
}

pub(super) struct PlainPart {
    gate_up: Plain,
    /// Of what stands between, and what is added to the mean square in it.
    norm: Option<(Vec<f32>, f64)>,
    down: Plain,
}

pub(super) struct PlainExperts {
    router: Plain,
    each: Vec<PlainPart>,
    /// With its gate.
    shared: Option<(PlainPart, Plain)>,
    factors: Option<[f32; EXPERTS]>,
    /// Their weights multiply what they are given.
    before: bool,
}

pub(super) struct PlainBeside {
    dense: PlainPart,
    dense_post_norm: Vec<f32>,
    experts: PlainExperts,
    experts_norm: Vec<f32>,
    router_norm: Vec<f32>,
    experts_post_norm: Vec<f32>,
}

impl PlainPart {
    fn new(random: &mut Random, (width, ffn): (usize, usize), look: Look) -> Self {
        let projections = look.activation().projections();
        Self {
            gate_up: Plain::new(random, (projections * ffn, width), look),
            norm: look.bitnet.then(|| (norm(random, ffn), NORM_EPS)),
            down: Plain::new(random, (width, ffn), look),
        }
    }

    fn pack(&self, backend: &dyn Backend) -> Gated {
        Gated { gate_up: self.gate_up.pack(backend), down: self.down.pack(backend) }
    }

    fn apply(&self, x: &[Near], activation: Activation) -> Vec<Near> {
        let gate_up = self.gate_up.apply(x);
        let mut hidden: Vec<Near> = match activation {
            Activation::Ungated(ungated) => gate_up.iter().map(|&x| curved(ungated, x)).collect(),
            _ => {
                let (gate, up) = gate_up.split_at(gate_up.len() / 2);
                gate.iter().zip(up).map(|(&gate, &up)| gated(activation, gate, up)).collect()
            }
        };
        if let Some((weight, eps)) = &self.norm {
            hidden = normed(&hidden, weight, *eps);
        }
        self.down.apply(&hidden)
    }
}

impl PlainExperts {
    fn new(random: &mut Random, shape: (usize, usize), look: Look) -> Self {
        let (width, exact) = (shape.0, Look { held: Held::F32, ..look });
        Self {
            router: Plain::new(random, (EXPERTS, width), exact),
            each: (0..EXPERTS).map(|_| PlainPart::new(random, shape, look)).collect(),
            shared: (!look.beside).then(|| {
                let part = PlainPart::new(random, (width, 40), look);
                (part, Plain::new(random, (1, width), exact))
            }),
            factors: look.beside.then_some([0.5, 2.5, 1.0, 3.0, 1.5]),
            before: look.before,
        }
    }

    fn pack(&self, backend: &dyn Backend) -> Experts {
        let shared = self.shared.as_ref();
        Experts {
            router: self.router.pack(backend),
            routing: Routing {
                chosen: CHOSEN,
                scoring: Scoring::Softmax,
                bias: None,
                normalises: true,
                scale: 1.5,
                groups: None,
                factors: self.factors.map(|factors| factors.into()),
                before: self.before,
            },
            each: self.each.iter().map(|part| part.pack(backend)).collect(),
            shared: shared.map(|(part, _)| part.pack(backend)),
            shared_gate: shared.map(|(_, gate)| gate.pack(backend)),
        }
    }

    /// `x` through the experts that the router chooses by `routed`.
    fn apply(&self, [x, routed]: [&[Near]; 2], activation: Activation) -> Vec<Near> {
        let logits: Vec<f64> = self.router.apply(routed).iter().map(|logit| logit.value).collect();
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let gap = logits[order[CHOSEN - 1]] - logits[order[CHOSEN]];
        assert!(gap > 1e-4, "a scene in which rounding chooses: {gap}");
        let chosen = &order[..CHOSEN];
        let total: f64 = chosen.iter().map(|&expert| logits[expert].exp()).sum();
        let of_expert = |&expert: &usize| {
            let factor = self.factors.map_or(1.0, |factors| f64::from(factors[expert]));
            (1.5 * logits[expert].exp() / total * factor, &self.each[expert])
        };
        let mut parts: Vec<(f64, &PlainPart)> = chosen.iter().map(of_expert).collect();
        if let Some((part, gate)) = &self.shared {
            parts.push((1.0 / (1.0 + (-gate.apply(x)[0].value).exp()), part));
        }
        let mut y = vec![Near::given(0.0); x.len()];
        for (idx, (weight, part)) in parts.into_iter().enumerate() {
            let weighed = |made: &Near| Near::computed(weight * made.value, weight * made.slack);
            let weighed = |x: &[Near]| -> Vec<Near> { x.iter().map(weighed).collect() };
            let made = match self.before && idx < CHOSEN {
                true => part.apply(&weighed(x), activation),
                false => weighed(&part.apply(x, activation)),
            };
            y = sum(&y, &made);
        }
        y
    }
}

impl PlainBeside {
    /// Experts are of another size than the dense part.
    fn new(random: &mut Random, shape: (usize, usize), look: Look) -> Self {
        let width = shape.0;
        Self {
            dense: PlainPart::new(random, shape, look),
            dense_post_norm: norm(random, width),
            experts: PlainExperts::new(random, (width, 41), look),
            experts_norm: norm(random, width),
            router_norm: norm(random, width),
            experts_post_norm: norm(random, width),
        }
    }

    fn pack(&self, backend: &dyn Backend) -> Beside {
        Beside {
            dense: self.dense.pack(backend),
            dense_post_norm: self.dense_post_norm.as_slice().into(),
            experts: self.experts.pack(backend),
            experts_norm: self.experts_norm.as_slice().into(),
            router_norm: self.router_norm.as_slice().into(),
            experts_post_norm: self.experts_post_norm.as_slice().into(),
        }
    }

    /// The dense part takes `given`, and the others norms of `x`.
    fn apply(&self, [given, x]: [&[Near]; 2], spec: &LayerSpec) -> Vec<Near> {
        let norm = |x: &[Near], weight: &[f32]| normed(x, weight, spec.norm_eps.into());
        let dense = norm(&self.dense.apply(given, spec.activation), &self.dense_post_norm);
        let (own, routed) = (norm(x, &self.experts_norm), norm(x, &self.router_norm));
        let chosen = self.experts.apply([&own, &routed], spec.activation);
        sum(&dense, &norm(&chosen, &self.experts_post_norm))
    }
}

impl PlainFeed {
    pub(super) fn new(random: &mut Random, shape: (usize, usize), look: Look) -> Self {
        let look = Look { bias: look.oss || look.ungated.is_some(), ..look };
        match look {
            Look { ends: true, .. } => Self::Nothing,
            Look { beside: true, .. } => {
                Self::Beside(Box::new(PlainBeside::new(random, shape, look)))
            }
            Look { experts: true, .. } => {
                Self::Experts(Box::new(PlainExperts::new(random, shape, look)))
            }
            _ => Self::Dense(PlainPart::new(random, shape, look)),
        }
    }

    /// Of what stands between both products of a dense part.
    pub(super) fn hidden_norm(&self) -> Option<&[f32]> {
        let Self::Dense(part) = self else { return None };
        part.norm.as_ref().map(|(weight, _)| weight.as_slice())
    }

    pub(super) fn pack(&self, backend: &dyn Backend) -> FeedForward {
        match self {
            Self::Nothing => FeedForward::Nothing,
            Self::Dense(part) => FeedForward::Dense(part.pack(backend)),
            Self::Experts(experts) => FeedForward::Experts(Box::new(experts.pack(backend))),
            Self::Beside(both) => FeedForward::Beside(Box::new(both.pack(backend))),
        }
    }

    /// Of a row of the stream, normed where the layer has a norm, and as it comes.
    pub(super) fn apply(&self, [normed, x]: [&[Near]; 2], spec: &LayerSpec) -> Vec<Near> {
        match self {
            Self::Nothing => unreachable!("a layer ends before it"),
            Self::Dense(part) => part.apply(normed, spec.activation),
            Self::Experts(experts) => experts.apply([normed; 2], spec.activation),
            Self::Beside(both) => both.apply([normed, x], spec),
        }
    }
}

//! Feed-forward parts, in plain f64 loops.

use crate::backend::Backend;
use crate::experts::{Routing, Scoring};
use crate::weights::{Activation, Experts, FeedForward, Gated};

use super::super::near::{Near, curved, gated, sum};
use super::super::scene::Random;
use super::{Held, Look, Plain};

pub(super) const EXPERTS: usize = 5;
pub(super) const CHOSEN: usize = 2;

/// A feed-forward part before it is packed.
pub(super) enum PlainFeed {
    Nothing,
    Dense(PlainPart),
    Experts(Box<PlainExperts>),
}

pub(super) struct PlainPart {
    gate_up: Plain,
    down: Plain,
}

pub(super) struct PlainExperts {
    router: Plain,
    each: Vec<PlainPart>,
    shared: PlainPart,
    shared_gate: Plain,
}

impl PlainPart {
    fn new(random: &mut Random, (width, ffn): (usize, usize), look: Look) -> Self {
        let projections = look.activation().projections();
        Self {
            gate_up: Plain::new(random, (projections * ffn, width), look),
            down: Plain::new(random, (width, ffn), look),
        }
    }

    fn pack(&self, backend: &dyn Backend) -> Gated {
        Gated { gate_up: self.gate_up.pack(backend), down: self.down.pack(backend) }
    }

    fn apply(&self, x: &[Near], activation: Activation) -> Vec<Near> {
        let gate_up = self.gate_up.apply(x);
        let hidden: Vec<Near> = match activation {
            Activation::Ungated(ungated) => gate_up.iter().map(|&x| curved(ungated, x)).collect(),
            _ => {
                let (gate, up) = gate_up.split_at(gate_up.len() / 2);
                gate.iter().zip(up).map(|(&gate, &up)| gated(activation, gate, up)).collect()
            }
        };
        self.down.apply(&hidden)
    }
}

impl PlainFeed {
    pub(super) fn new(random: &mut Random, shape: (usize, usize), look: Look) -> Self {
        let look = Look { bias: look.oss || look.ungated.is_some(), ..look };
        if look.ends {
            return Self::Nothing;
        }
        if !look.experts {
            return Self::Dense(PlainPart::new(random, shape, look));
        }
        let (width, exact) = (shape.0, Look { held: Held::F32, ..look });
        Self::Experts(Box::new(PlainExperts {
            router: Plain::new(random, (EXPERTS, width), exact),
            each: (0..EXPERTS).map(|_| PlainPart::new(random, shape, look)).collect(),
            shared: PlainPart::new(random, (width, 40), look),
            shared_gate: Plain::new(random, (1, width), exact),
        }))
    }

    pub(super) fn pack(&self, backend: &dyn Backend) -> FeedForward {
        match self {
            Self::Nothing => FeedForward::Nothing,
            Self::Dense(part) => FeedForward::Dense(part.pack(backend)),
            Self::Experts(experts) => FeedForward::Experts(Box::new(Experts {
                router: experts.router.pack(backend),
                routing: Routing {
                    chosen: CHOSEN,
                    scoring: Scoring::Softmax,
                    bias: None,
                    normalises: true,
                    scale: 1.5,
                    groups: None,
                },
                each: experts.each.iter().map(|part| part.pack(backend)).collect(),
                shared: Some(experts.shared.pack(backend)),
                shared_gate: Some(experts.shared_gate.pack(backend)),
            })),
        }
    }

    pub(super) fn apply(&self, x: &[Near], activation: Activation) -> Vec<Near> {
        let experts = match self {
            Self::Nothing => unreachable!("a layer ends before it"),
            Self::Dense(part) => return part.apply(x, activation),
            Self::Experts(experts) => experts,
        };
        let logits: Vec<f64> = experts.router.apply(x).iter().map(|logit| logit.value).collect();
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let gap = logits[order[CHOSEN - 1]] - logits[order[CHOSEN]];
        assert!(gap > 1e-4, "a scene in which rounding chooses: {gap}");
        let chosen = &order[..CHOSEN];
        let total: f64 = chosen.iter().map(|&expert| logits[expert].exp()).sum();
        let gate = experts.shared_gate.apply(x)[0].value;
        let mut parts: Vec<(f64, &PlainPart)> =
            chosen.iter().map(|&e| (1.5 * logits[e].exp() / total, &experts.each[e])).collect();
        parts.push((1.0 / (1.0 + (-gate).exp()), &experts.shared));
        let mut y = vec![Near::given(0.0); x.len()];
        for (weight, part) in parts {
            let weighed = |made: &Near| Near::computed(weight * made.value, weight * made.slack);
            let made: Vec<Near> = part.apply(x, activation).iter().map(weighed).collect();
            y = sum(&y, &made);
        }
        y
    }
}

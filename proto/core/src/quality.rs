//! What a caller may demand of the memory, and what follows where it kept too little.

use crate::work::RetainedMass;
use crate::{MemoryPolicy, PolicyKind, Refusal, limits};

/// What a caller asks of the memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quality {
    /// Every key is kept, whatever the server's default policy is.
    Exact,
    /// What the policy keeps, with a floor if there is one.
    Memory(Option<Floor>),
}

/// The least attention mass that every layer's memory must have kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Floor {
    /// Share of the mass, above 0 and at most 1.
    pub min_retained_mass: f64,
    /// What is done where it was not reached.
    pub below: BelowFloor,
}

/// What a request does whose memory kept less than its floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BelowFloor {
    /// Prefill again with a larger budget, and at last with every key; nothing is generated
    /// below the floor.
    #[default]
    Escalate,
    /// Go on, and say so.
    Report,
}

/// The two qualities that callers name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum QualityKind {
    /// [`Quality::Exact`].
    Exact,
    /// [`Quality::Memory`].
    #[default]
    Memory,
}

/// How a prefill stands to its floor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// Generate.
    Enough,
    /// Generate, and say that it is below.
    Below,
    /// Prefill again with this policy.
    Again(MemoryPolicy),
}

impl Default for Quality {
    fn default() -> Self {
        Self::Memory(None)
    }
}

impl Quality {
    /// What the fields that a caller gave come to.
    ///
    /// # Errors
    /// A floor out of bounds, beside `exact`, or one of which only half was said.
    pub fn of(
        kind: Option<QualityKind>,
        min_retained_mass: Option<f64>,
        below: Option<BelowFloor>,
    ) -> Result<Self, Refusal> {
        let kind = kind.unwrap_or_default();
        let quality = match (kind, min_retained_mass, below) {
            (QualityKind::Exact, None, None) => Self::Exact,
            (QualityKind::Exact, Some(floor), _) => {
                return Err(Refusal::new("min_retained_mass", floor, "absent: quality is exact"));
            }
            (QualityKind::Exact, None, Some(below)) => {
                return Err(Refusal::new("below_floor", below, "absent: quality is exact"));
            }
            (QualityKind::Memory, None, Some(below)) => {
                return Err(Refusal::new("below_floor", below, "given with min_retained_mass"));
            }
            (QualityKind::Memory, floor, below) => Self::Memory(floor.map(|min_retained_mass| {
                Floor { min_retained_mass, below: below.unwrap_or_default() }
            })),
        };
        quality.floor().map_or(Ok(()), |floor| floor.validate())?;
        Ok(quality)
    }

    /// The floor, if there is one.
    pub fn floor(&self) -> Option<Floor> {
        match self {
            Self::Exact => None,
            Self::Memory(floor) => *floor,
        }
    }

    /// The kind of policy to use, of the one that was named and the fields of a `budget`, by
    /// name, that were given beside it; `None` leaves it to the default.
    ///
    /// # Errors
    /// A bounded policy, named or described, where every key is to be kept.
    pub fn policy_kind(
        &self,
        named: Option<PolicyKind>,
        budget: &[(&str, Option<u32>)],
    ) -> Result<Option<PolicyKind>, Refusal> {
        match (self, named) {
            (Self::Memory(_), named) => return Ok(named),
            (Self::Exact, Some(PolicyKind::Dense)) => {}
            (Self::Exact, Some(kind)) => {
                return Err(Refusal::new("policy", kind, "dense or absent: quality is exact"));
            }
            (Self::Exact, None) => {
                let mut given = budget.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
                if let Some((name, value)) = given.next() {
                    return Err(Refusal::new(name, value, "absent: quality is exact"));
                }
            }
        }
        Ok(Some(PolicyKind::Dense))
    }
}

impl Floor {
    /// Checks the share.
    ///
    /// # Errors
    /// A share that is not above 0 and at most 1.
    pub fn validate(&self) -> Result<(), Refusal> {
        let share = self.min_retained_mass;
        if share > 0.0 && share <= 1.0 {
            return Ok(());
        }
        Err(Refusal::new("min_retained_mass", share, "above 0 and at most 1"))
    }

    /// What follows from a prefill under `policy`, as used on chunks of `chunk_tokens`, in which
    /// the layer that kept least kept `lowest` of its mass.
    pub fn judge(&self, lowest: f64, policy: &MemoryPolicy, chunk_tokens: u32) -> Verdict {
        if policy.keeps_all() || lowest >= self.min_retained_mass {
            return Verdict::Enough;
        }
        match self.below {
            BelowFloor::Report => Verdict::Below,
            BelowFloor::Escalate => Verdict::Again(escalated(policy, chunk_tokens)),
        }
    }
}

/// Twice the budget or, where the chunk leaves no room for more keys, every key.
fn escalated(policy: &MemoryPolicy, chunk_tokens: u32) -> MemoryPolicy {
    let twice = |tokens: u32| tokens.saturating_mul(2).min(limits::MEMORY_TOKENS_MAX);
    let wished = MemoryPolicy { local: twice(policy.local), heavy: twice(policy.heavy), ..*policy };
    let (next, _) = wished.clamped(chunk_tokens);
    if next.budget_tokens() > policy.budget_tokens() {
        return next;
    }
    MemoryPolicy { kind: PolicyKind::Dense, ..*policy }
}

impl RetainedMass {
    /// Adds to each layer of `sum` what more blocks kept in it.
    pub fn add_layers(sum: &mut Vec<Self>, more: &[Self]) {
        sum.resize(sum.len().max(more.len()), Self::default());
        sum.iter_mut().zip(more).for_each(|(sum, layer)| sum.add(*layer));
    }

    /// Share of the layer that kept least; 1 where there is none.
    pub fn lowest_share(layers: &[Self]) -> f64 {
        layers.iter().map(Self::share).fold(1.0, f64::min)
    }
}

impl std::fmt::Display for BelowFloor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Escalate => "escalate",
            Self::Report => "report",
        })
    }
}

impl std::str::FromStr for BelowFloor {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        match text {
            "escalate" => Ok(Self::Escalate),
            "report" => Ok(Self::Report),
            _ => Err(Refusal::new("below_floor", text, "escalate or report")),
        }
    }
}

impl std::str::FromStr for QualityKind {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        match text {
            "exact" => Ok(Self::Exact),
            "memory" => Ok(Self::Memory),
            _ => Err(Refusal::new("quality", text, "exact or memory")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_becomes_a_quality_or_a_refusal_by_field() {
        use BelowFloor::{Escalate, Report};
        use QualityKind::{Exact, Memory};
        let check = |kind, floor, below, want: Result<Quality, &str>| {
            let got = Quality::of(kind, floor, below).map_err(|refusal| refusal.to_string());
            assert_eq!(got, want.map_err(str::to_owned));
        };
        let floor =
            |share, below| Ok(Quality::Memory(Some(Floor { min_retained_mass: share, below })));
        check(None, None, None, Ok(Quality::Memory(None)));
        check(Some(Memory), None, None, Ok(Quality::Memory(None)));
        check(Some(Exact), None, None, Ok(Quality::Exact));
        check(None, Some(0.5), None, floor(0.5, Escalate));
        check(Some(Memory), Some(1.0), Some(Report), floor(1.0, Report));
        let bound = "must be above 0 and at most 1";
        for share in [0.0, -0.1, 1.1, f64::NAN] {
            let want = format!("min_retained_mass = {share}: {bound}");
            check(None, Some(share), None, Err(&want));
        }
        let exact = "must be absent: quality is exact";
        check(Some(Exact), Some(0.5), None, Err(&format!("min_retained_mass = 0.5: {exact}")));
        check(Some(Exact), None, Some(Report), Err(&format!("below_floor = report: {exact}")));
        let alone = "below_floor = escalate: must be given with min_retained_mass";
        check(None, None, Some(Escalate), Err(alone));
    }

    #[test]
    fn exact_is_dense_and_nothing_else() {
        let check = |named, budget: &[(&str, Option<u32>)], want: Result<PolicyKind, &str>| {
            let got = Quality::Exact.policy_kind(named, budget);
            let got = got.map(Option::unwrap).map_err(|refusal| refusal.to_string());
            assert_eq!(got, want.map_err(str::to_owned));
            assert_eq!(Quality::default().policy_kind(named, budget), Ok(named));
        };
        let budget = [("local", None), ("heavy", Some(8))];
        check(None, &[], Ok(PolicyKind::Dense));
        check(Some(PolicyKind::Dense), &budget, Ok(PolicyKind::Dense));
        let h2o = "policy = h2o: must be dense or absent: quality is exact";
        check(Some(PolicyKind::H2o), &[], Err(h2o));
        check(None, &budget, Err("heavy = 8: must be absent: quality is exact"));
    }

    #[test]
    fn a_verdict_for_every_case() {
        let check = |lowest, below, policy: MemoryPolicy, want: Verdict| {
            let floor = Floor { min_retained_mass: 0.5, below };
            assert_eq!(floor.judge(lowest, &policy, 64), want, "{lowest} {below} {policy:?}");
        };
        let (h2o, window, dense) = (MemoryPolicy::h2o, MemoryPolicy::window, MemoryPolicy::dense());
        for below in [BelowFloor::Escalate, BelowFloor::Report] {
            check(0.5, below, h2o(4, 8, 8), Verdict::Enough);
            check(0.1, below, dense, Verdict::Enough);
        }
        check(0.49, BelowFloor::Report, h2o(4, 8, 8), Verdict::Below);
        let again = |from: MemoryPolicy, to: MemoryPolicy| {
            check(0.49, BelowFloor::Escalate, from, Verdict::Again(to));
        };
        let exact = |from: MemoryPolicy| MemoryPolicy { kind: PolicyKind::Dense, ..from };
        again(h2o(4, 8, 4), h2o(4, 16, 8));
        again(h2o(4, 16, 16), h2o(4, 32, 31));
        again(h2o(4, 32, 31), exact(h2o(4, 32, 31)));
        again(window(2, 40), window(2, 63));
        again(window(2, 63), exact(window(2, 63)));
        again(h2o(4, 0, 0), exact(h2o(4, 0, 0)));
    }

    #[test]
    fn the_lowest_layer_decides() {
        let mass = |kept, total| RetainedMass { kept, total };
        assert_eq!(RetainedMass::lowest_share(&[mass(1.0, 2.0), mass(1.0, 4.0)]), 0.25);
        assert_eq!(RetainedMass::lowest_share(&[mass(0.0, 0.0)]), 1.0);
        assert_eq!(RetainedMass::lowest_share(&[]), 1.0);
    }
}

//! The memory policy, complete: as it travels inside the cluster and in a summary.

use aqueduct_core::{MemoryPolicy, PolicyKind, Refusal, Scoring};

use super::required;
use crate::v1;
use crate::v1::memory_policy::Kind;

impl From<PolicyKind> for Kind {
    fn from(kind: PolicyKind) -> Self {
        match kind {
            PolicyKind::Dense => Self::Dense,
            PolicyKind::Window => Self::Window,
            PolicyKind::H2o => Self::H2o,
        }
    }
}

/// The kind that was named; `None` where the sender left it open.
pub(super) fn kind(wire: i32) -> Result<Option<PolicyKind>, Refusal> {
    match Kind::try_from(wire) {
        Ok(Kind::Unspecified) => Ok(None),
        Ok(Kind::Dense) => Ok(Some(PolicyKind::Dense)),
        Ok(Kind::Window) => Ok(Some(PolicyKind::Window)),
        Ok(Kind::H2o) => Ok(Some(PolicyKind::H2o)),
        Err(_) => Err(Refusal::new("kind", wire, "dense, window or h2o")),
    }
}

impl From<MemoryPolicy> for v1::MemoryPolicy {
    fn from(policy: MemoryPolicy) -> Self {
        Self {
            kind: Kind::from(policy.kind).into(),
            sinks: Some(policy.sinks),
            local: Some(policy.local),
            heavy: Some(policy.heavy),
            decay: Some(policy.scoring.decay),
            window: Some(policy.scoring.window),
            age_normalised: Some(policy.scoring.age_normalised),
            max_tokens: None,
        }
    }
}

impl TryFrom<v1::MemoryPolicy> for MemoryPolicy {
    type Error = Refusal;

    /// Every field must be there: defaults belong to the API (see [`super::generate`]).
    fn try_from(wire: v1::MemoryPolicy) -> Result<Self, Refusal> {
        if let Some(max_tokens) = wire.max_tokens {
            return Err(Refusal::new("max_tokens", max_tokens, "absent inside the cluster"));
        }
        let policy = Self {
            kind: required("kind", kind(wire.kind)?)?,
            sinks: required("sinks", wire.sinks)?,
            local: required("local", wire.local)?,
            heavy: required("heavy", wire.heavy)?,
            scoring: Scoring {
                decay: required("decay", wire.decay)?,
                window: required("window", wire.window)?,
                age_normalised: required("age_normalised", wire.age_normalised)?,
            },
        };
        policy.validate()?;
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::super::arbitrary;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_by_field() {
        let good = v1::MemoryPolicy::from(MemoryPolicy::default());
        let check = |bad: v1::MemoryPolicy, field: &str| {
            assert_eq!(MemoryPolicy::try_from(bad).unwrap_err().field, field);
        };
        check(v1::MemoryPolicy { kind: 0, ..good }, "kind");
        check(v1::MemoryPolicy { kind: 9, ..good }, "kind");
        check(v1::MemoryPolicy { sinks: None, ..good }, "sinks");
        check(v1::MemoryPolicy { heavy: Some(u32::MAX), ..good }, "heavy");
        check(v1::MemoryPolicy { decay: Some(f32::NAN), ..good }, "decay");
        check(v1::MemoryPolicy { max_tokens: Some(4), ..good }, "max_tokens");
    }

    proptest! {
        #[test]
        fn survives_the_wire(policy in arbitrary::policy()) {
            prop_assert_eq!(MemoryPolicy::try_from(v1::MemoryPolicy::from(policy)), Ok(policy));
        }
    }
}

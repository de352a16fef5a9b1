//! What a caller of the API may leave out: memory policy and sampling with their defaults.

use aqueduct_core::{MemoryPolicy, PolicyKind, Quality, Refusal, Sampling};

use super::policy::kind;
use crate::v1;

/// The caller's policy; fields left out are `default`'s, and `max_tokens` is a budget that the
/// "heavy" preset splits. Not yet clamped to a chunk size.
///
/// # Errors
/// The first field that is out of bounds, a budget beside the fields it stands for, and a
/// bounded policy where `quality` is exact.
pub fn policy_or(
    default: MemoryPolicy,
    wire: Option<v1::MemoryPolicy>,
    quality: Quality,
) -> Result<MemoryPolicy, Refusal> {
    let wire = wire.unwrap_or_default();
    let budget = [
        ("sinks", wire.sinks),
        ("local", wire.local),
        ("heavy", wire.heavy),
        ("max_tokens", wire.max_tokens),
    ];
    let mut policy = MemoryPolicy {
        kind: quality.policy_kind(kind(wire.kind)?, &budget)?.unwrap_or(default.kind),
        sinks: wire.sinks.unwrap_or(default.sinks),
        local: wire.local.unwrap_or(default.local),
        heavy: wire.heavy.unwrap_or(default.heavy),
        scoring: default.scoring,
    };
    if let Some(max_tokens) = wire.max_tokens {
        refuse_beside_budget(&wire)?;
        policy = preset(policy, max_tokens)?;
    }
    policy.scoring.decay = wire.decay.unwrap_or(default.scoring.decay);
    policy.scoring.window = wire.window.unwrap_or(default.scoring.window);
    policy.scoring.age_normalised = wire.age_normalised.unwrap_or(default.scoring.age_normalised);
    policy.validate()?;
    Ok(policy)
}

fn refuse_beside_budget(wire: &v1::MemoryPolicy) -> Result<(), Refusal> {
    for (field, value) in [("local", wire.local), ("heavy", wire.heavy)] {
        if let Some(value) = value {
            return Err(Refusal::new(field, value, "absent where max_tokens is given"));
        }
    }
    Ok(())
}

/// A budget of `max_tokens` keys under a policy of some kind.
fn preset(policy: MemoryPolicy, max_tokens: u32) -> Result<MemoryPolicy, Refusal> {
    let MemoryPolicy { kind, sinks, scoring, .. } = policy;
    let split = MemoryPolicy::heavy_preset(max_tokens, sinks)?;
    match kind {
        PolicyKind::H2o => Ok(MemoryPolicy { scoring, ..split }),
        PolicyKind::Window => Ok(MemoryPolicy::window(sinks, max_tokens - sinks)),
        PolicyKind::Dense => {
            Err(Refusal::new("max_tokens", max_tokens, "absent for dense, which keeps every key"))
        }
    }
}

/// The caller's sampling; fields left out are those of `default`.
///
/// # Errors
/// The first field that is out of bounds.
pub fn sampling_or(default: Sampling, wire: Option<v1::Sampling>) -> Result<Sampling, Refusal> {
    let wire = wire.unwrap_or_default();
    let sampling = Sampling {
        temperature: wire.temperature.unwrap_or(default.temperature),
        top_p: wire.top_p.unwrap_or(default.top_p),
        top_k: wire.top_k.unwrap_or(default.top_k),
        seed: wire.seed.unwrap_or(default.seed),
        logprobs: wire.logprobs,
        min_p: wire.min_p.unwrap_or(default.min_p),
        presence_penalty: wire.presence_penalty.unwrap_or(default.presence_penalty),
        frequency_penalty: wire.frequency_penalty.unwrap_or(default.frequency_penalty),
        repetition_penalty: wire.repetition_penalty.unwrap_or(default.repetition_penalty),
        min_tokens: wire.min_tokens.unwrap_or(default.min_tokens),
    };
    sampling.validate()?;
    Ok(sampling)
}

#[cfg(test)]
mod tests {
    use super::super::arbitrary;
    use super::*;
    use crate::v1::memory_policy::Kind;
    use proptest::prelude::*;

    fn wire(kind: Kind, max_tokens: Option<u32>) -> v1::MemoryPolicy {
        v1::MemoryPolicy { kind: kind.into(), max_tokens, ..Default::default() }
    }

    /// The policy where nothing is demanded of it.
    fn policy_or(
        default: MemoryPolicy,
        wire: Option<v1::MemoryPolicy>,
    ) -> Result<MemoryPolicy, Refusal> {
        super::policy_or(default, wire, Quality::default())
    }

    #[test]
    fn exact_keeps_every_key_and_takes_no_budget() {
        let exact = |wire| super::policy_or(MemoryPolicy::h2o(1, 2, 3), wire, Quality::Exact);
        let want = Ok(MemoryPolicy { kind: PolicyKind::Dense, ..MemoryPolicy::h2o(1, 2, 3) });
        assert_eq!((exact(None), exact(Some(wire(Kind::Dense, None)))), (want.clone(), want));
        let refused = |wire| exact(Some(wire)).unwrap_err().field;
        assert_eq!(refused(wire(Kind::H2o, None)), "policy");
        assert_eq!(refused(wire(Kind::Unspecified, Some(512))), "max_tokens");
    }

    #[test]
    fn what_is_left_out_is_the_default() {
        let default = MemoryPolicy::h2o(2, 30, 40);
        assert_eq!(policy_or(default, None), Ok(default));
        assert_eq!(policy_or(default, Some(v1::MemoryPolicy::default())), Ok(default));
        let dense = policy_or(default, Some(wire(Kind::Dense, None))).unwrap();
        assert!(dense.keeps_all());
        let sampling = sampling_or(Sampling { seed: 7, ..Sampling::default() }, None).unwrap();
        assert_eq!(sampling, Sampling { seed: 7, ..Sampling::default() });
    }

    #[test]
    fn a_budget_is_split_by_kind() {
        let check = |kind, want: (u32, u32, u32)| {
            let got = policy_or(MemoryPolicy::default(), Some(wire(kind, Some(512)))).unwrap();
            assert_eq!((got.sinks, got.local, got.heavy), want);
        };
        check(Kind::H2o, (4, 252, 256));
        check(Kind::Unspecified, (4, 252, 256));
        check(Kind::Window, (4, 508, 0));
    }

    #[test]
    fn refuses_by_field() {
        let check = |bad: v1::MemoryPolicy, field: &str| {
            let refused = policy_or(MemoryPolicy::default(), Some(bad)).unwrap_err();
            assert_eq!(refused.field, field);
        };
        check(wire(Kind::Dense, Some(512)), "max_tokens");
        check(wire(Kind::H2o, Some(0)), "max_tokens");
        check(v1::MemoryPolicy { heavy: Some(1), ..wire(Kind::H2o, Some(512)) }, "heavy");
        check(v1::MemoryPolicy { decay: Some(2.0), ..wire(Kind::H2o, Some(512)) }, "decay");
        check(v1::MemoryPolicy { sinks: Some(u32::MAX), ..wire(Kind::H2o, None) }, "sinks");
        check(v1::MemoryPolicy { sinks: Some(u32::MAX), ..wire(Kind::H2o, Some(9)) }, "max_tokens");
        let hot = v1::Sampling { temperature: Some(9.0), ..Default::default() };
        assert_eq!(sampling_or(Sampling::default(), Some(hot)).unwrap_err().field, "temperature");
    }

    proptest! {
        #[test]
        fn what_is_given_is_kept(policy in arbitrary::policy(), sampling in arbitrary::sampling()) {
            prop_assert_eq!(policy_or(MemoryPolicy::default(), Some(policy.into())), Ok(policy));
            prop_assert_eq!(sampling_or(Sampling::greedy(), Some(sampling.into())), Ok(sampling));
        }
    }
}

//! Memory policies as flags.

use aqueduct_core::{
    BelowFloor, Exchange, MemoryPolicy, PolicyKind, Quality, QualityKind, Refusal, Scoring,
    WireDtype, limits,
};
use clap::Args;

/// How attention mass becomes a score.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ScoringArgs {
    /// Decay of scores: 1 sums attention mass for ever; below 1 the score is a moving average over
    /// query rows
    #[arg(long, default_value_t = 1.0)]
    pub(crate) decay: f32,
    /// Only the last ROWS query rows of a chunk add to scores; 0: all rows
    #[arg(long, value_name = "ROWS", default_value_t = 0)]
    pub(crate) window: u32,
    /// Rank keys by score divided by the number of rows that could have attended to them
    #[arg(long)]
    pub(crate) age_normalised: bool,
}

impl ScoringArgs {
    fn scoring(self) -> Scoring {
        let Self { decay, window, age_normalised } = self;
        Scoring { decay, window, age_normalised }
    }
}

/// How many keys are kept, of each kind.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct BudgetArgs {
    /// How many first positions are always kept (attention sinks)
    #[arg(long, value_name = "KEYS", default_value_t = 4)]
    pub(crate) sinks: u32,
    /// How many of the most recent positions are always kept
    #[arg(long, value_name = "KEYS", default_value_t = 256)]
    pub(crate) local: u32,
    /// How many keys are kept for their score (h2o)
    #[arg(long, value_name = "KEYS", default_value_t = 256)]
    pub(crate) heavy: u32,
    #[command(flatten)]
    pub(crate) scoring: ScoringArgs,
    /// Chunk size in tokens; the answer depends on it, but not on the number of workers
    #[arg(long = "chunk", value_name = "TOKENS", default_value_t = limits::CHUNK_TOKENS_DEFAULT)]
    pub(crate) chunk_tokens: u32,
}

impl BudgetArgs {
    /// The policy of `kind` with these numbers.
    pub(crate) fn policy(&self, kind: PolicyKind) -> MemoryPolicy {
        let heavy = if kind == PolicyKind::H2o { self.heavy } else { 0 };
        let Self { sinks, local, .. } = *self;
        MemoryPolicy { kind, sinks, local, heavy, scoring: self.scoring.scoring() }
    }

    /// The policy of `kind` with `budget` keys: `window` has the sinks and otherwise recent
    /// keys, `h2o` the heavy preset (half heavy hitters, half sinks and recent keys).
    ///
    /// # Errors
    /// A budget that the sinks leave no room in.
    pub(crate) fn policy_within(
        &self,
        kind: PolicyKind,
        budget: u32,
    ) -> Result<MemoryPolicy, Refusal> {
        let preset = MemoryPolicy::heavy_preset(budget, self.sinks)
            .map_err(|refusal| Refusal { field: "budget".into(), ..refusal })?;
        Ok(match kind {
            PolicyKind::Dense => MemoryPolicy::dense(),
            PolicyKind::Window => MemoryPolicy::window(self.sinks, budget - self.sinks),
            PolicyKind::H2o => MemoryPolicy { scoring: self.scoring.scoring(), ..preset },
        })
    }
}

/// How the past reaches a block's queries.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ExchangeArgs {
    /// What travels between workers: move (keys, to the queries), stay (queries, to the keys, which
    /// stay where they were computed) or auto (whichever is fewer bytes)
    #[arg(long, value_name = "EXCHANGE", default_value_t = Exchange::Auto)]
    pub(crate) exchange: Exchange,
    /// Number format in transit, of queries and outputs, and of keys and values handed off from an
    /// f32 KV cache: f32 (exact), bf16 or f16
    #[arg(long, value_name = "DTYPE", default_value_t = WireDtype::F32)]
    pub(crate) wire: WireDtype,
}

/// What the memory must keep.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct QualityArgs {
    /// What to keep: exact (every key, whatever the server's default) or memory (what the policy
    /// keeps)
    #[arg(long, value_name = "QUALITY")]
    quality: Option<QualityKind>,
    /// Least share of the prompt's attention mass, above 0 and at most 1, that every layer must
    /// retain
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    min_retained_mass: Option<f64>,
    /// What to do below --min-retained-mass: escalate (prefill again with a larger budget, finally
    /// with every key; the default) or report (answer all the same, and say so)
    #[arg(long, value_name = "WHAT")]
    below_floor: Option<BelowFloor>,
}

impl QualityArgs {
    /// The quality in the words of the cluster.
    ///
    /// # Errors
    /// A floor that is out of bounds or only half said.
    pub(crate) fn quality(&self) -> Result<Quality, Refusal> {
        Quality::of(self.quality, self.min_retained_mass, self.below_floor)
    }
}

/// One policy.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct PolicyArgs {
    /// Memory policy: dense (every key), window (sinks and recent keys) or h2o (sinks, recent keys
    /// and heavy hitters; the default)
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<PolicyKind>,
    #[command(flatten)]
    pub(crate) budget: BudgetArgs,
}

impl PolicyArgs {
    /// # Errors
    /// A budget where `quality` keeps every key.
    pub(crate) fn beside(&self, quality: Quality) -> Result<(), Refusal> {
        let is_budget = self.budget.policy(PolicyKind::H2o) != MemoryPolicy::default();
        match quality == Quality::Exact && is_budget {
            false => Ok(()),
            true => {
                let bound = "absent beside quality exact, which keeps every key";
                Err(Refusal::new("sinks, local, heavy and scores", "present", bound))
            }
        }
    }

    /// The policy in the words of the cluster.
    pub(crate) fn policy(&self) -> MemoryPolicy {
        self.budget.policy(self.policy.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        policy: PolicyArgs,
    }

    #[test]
    fn flags_become_policies() {
        let check = |flags: &[&str], want: MemoryPolicy| {
            let flags = Flags::parse_from([&["test"], flags].concat());
            assert_eq!(flags.policy.policy(), want);
        };
        check(&[], MemoryPolicy::h2o(4, 256, 256));
        check(&["--policy", "window", "--local", "8"], MemoryPolicy::window(4, 8));
        check(
            &["--sinks", "1", "--local=2", "--heavy=3", "--decay=0.5", "--age-normalised"],
            MemoryPolicy {
                scoring: Scoring { decay: 0.5, window: 0, age_normalised: true },
                ..MemoryPolicy::h2o(1, 2, 3)
            },
        );
    }

    #[test]
    fn window_and_h2o_share_a_budget() {
        let budget = Flags::parse_from(["test"]).policy.budget;
        let check = |kind, want| {
            assert_eq!(budget.policy_within(kind, 512).unwrap().budget_tokens(), want);
        };
        check(PolicyKind::Window, Some(512));
        check(PolicyKind::H2o, Some(512));
        check(PolicyKind::Dense, None);
        assert_eq!(budget.policy_within(PolicyKind::H2o, 1).unwrap_err().field, "budget");
    }
}

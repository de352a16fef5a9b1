//! What a layer remembers after a block. Policies are data: one code path serves them all.

use crate::{Refusal, limits};

/// The three policies that callers name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PolicyKind {
    /// Every key is remembered; attention is exact and memory grows with the prompt.
    Dense,
    /// Sinks and recent keys only (heavy = 0).
    Window,
    /// Sinks, recent keys and heavy hitters by attention mass.
    #[default]
    H2o,
}

impl PolicyKind {
    /// The name that users write.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Window => "window",
            Self::H2o => "h2o",
        }
    }
}

impl std::fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for PolicyKind {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        match text {
            "dense" => Ok(Self::Dense),
            "window" => Ok(Self::Window),
            "h2o" => Ok(Self::H2o),
            _ => Err(Refusal::new("policy", text, "dense, window or h2o")),
        }
    }
}

/// How attention mass becomes a score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scoring {
    /// 1 sums masses for ever; below 1 a score is an exponential moving average over query
    /// rows: row i of a block of T votes with `(1 - decay) * decay^(T - 1 - i)` and what was
    /// there before fades by `decay^T`.
    pub decay: f32,
    /// Above 0, only the last `window` rows of a block vote.
    pub window: u32,
    /// Rank by score over the row weight that could have voted for the key.
    pub age_normalised: bool,
}

impl Default for Scoring {
    fn default() -> Self {
        Self { decay: 1.0, window: 0, age_normalised: false }
    }
}

/// What is remembered per layer and KV head, and how it is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryPolicy {
    /// Which of the three kinds.
    pub kind: PolicyKind,
    /// First positions of the sequence that are always kept.
    pub sinks: u32,
    /// Last positions that are always kept.
    pub local: u32,
    /// Keys kept for their score.
    pub heavy: u32,
    /// How scores are made.
    pub scoring: Scoring,
}

impl Default for MemoryPolicy {
    fn default() -> Self {
        Self {
            kind: PolicyKind::H2o,
            sinks: 4,
            local: 256,
            heavy: 256,
            scoring: Scoring::default(),
        }
    }
}

/// A budget that did not fit the chunk and was lowered; every one is told to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clamp {
    /// `local` or `heavy`.
    pub field: &'static str,
    /// What the caller asked for.
    pub asked: u32,
    /// What is used.
    pub used: u32,
    /// The chunk size that made it necessary.
    pub chunk_tokens: u32,
}

impl std::fmt::Display for Clamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { field, asked, used, chunk_tokens } = self;
        write!(f, "{field} = {asked} was lowered to {used}: local + heavy must stay below ")?;
        write!(f, "chunk_tokens = {chunk_tokens}")
    }
}

impl std::fmt::Display for MemoryPolicy {
    /// The kind and its budget: `h2o 4 + 256 + 256`, `window 4 + 256`, `dense`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, sinks, local, heavy, .. } = self;
        match kind {
            PolicyKind::Dense => write!(f, "{kind}"),
            PolicyKind::Window => write!(f, "{kind} {sinks} + {local}"),
            PolicyKind::H2o => write!(f, "{kind} {sinks} + {local} + {heavy}"),
        }
    }
}

impl MemoryPolicy {
    /// Keeps every key.
    pub fn dense() -> Self {
        Self { kind: PolicyKind::Dense, ..Self::default() }
    }

    /// Sinks and the last `local` keys.
    pub fn window(sinks: u32, local: u32) -> Self {
        Self { kind: PolicyKind::Window, sinks, local, heavy: 0, scoring: Scoring::default() }
    }

    /// Sinks, the last `local` keys and the `heavy` best of the rest.
    pub fn h2o(sinks: u32, local: u32, heavy: u32) -> Self {
        Self { kind: PolicyKind::H2o, sinks, local, heavy, scoring: Scoring::default() }
    }

    /// The `heavy` preset for a budget of `max_tokens` keys: half of it heavy hitters, the
    /// other half sinks and recent keys.
    ///
    /// # Errors
    /// A budget that cannot hold the sinks twice.
    pub fn heavy_preset(max_tokens: u32, sinks: u32) -> Result<Self, Refusal> {
        let high = limits::MEMORY_TOKENS_MAX;
        let low = sinks.max(1).saturating_mul(2);
        Refusal::unless_within("max_tokens", max_tokens, low, high)?;
        Ok(Self::h2o(sinks, max_tokens / 2 - sinks, max_tokens / 2))
    }

    /// Whether every key is kept.
    pub fn keeps_all(&self) -> bool {
        self.kind == PolicyKind::Dense
    }

    /// Most keys remembered per layer and KV head; `None` when the policy has no bound.
    pub fn budget_tokens(&self) -> Option<u32> {
        (!self.keeps_all()).then(|| self.sinks + self.local + self.heavy)
    }

    /// Keys remembered per layer and KV head of so many tokens, at most.
    pub fn kept_of(&self, tokens: u32) -> u32 {
        self.budget_tokens().map_or(tokens, |budget| tokens.min(budget))
    }

    /// Checks the fields against their bounds, before any clamp.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn validate(&self) -> Result<(), Refusal> {
        for (field, value) in [("sinks", self.sinks), ("local", self.local), ("heavy", self.heavy)]
        {
            Refusal::unless_within(field, value, 0, limits::MEMORY_TOKENS_MAX)?;
        }
        let decay = self.scoring.decay;
        if !(decay > 0.0 && decay <= 1.0) {
            return Err(Refusal::new("decay", decay, "above 0 and at most 1"));
        }
        Ok(())
    }

    /// The policy that is used on chunks of `chunk_tokens`, and what had to be lowered.
    ///
    /// `local + heavy < chunk_tokens` always: heavy gives way first, then local; a chunk of
    /// one token turns the memory off but for the sinks. `window` has no heavy hitters
    /// whatever the caller wrote, which is its meaning and not a clamp.
    pub fn clamped(mut self, chunk_tokens: u32) -> (Self, Vec<Clamp>) {
        if self.kind == PolicyKind::Window {
            self.heavy = 0;
        }
        if self.keeps_all() {
            return (self, Vec::new());
        }
        let (local, heavy) = clamp(self.local, self.heavy, chunk_tokens);
        let mut clamps = Vec::new();
        for (field, asked, used) in [("local", self.local, local), ("heavy", self.heavy, heavy)] {
            if asked != used {
                clamps.push(Clamp { field, asked, used, chunk_tokens });
            }
        }
        (Self { local, heavy, ..self }, clamps)
    }
}

/// `(local, heavy)` lowered until `local + heavy < chunk_tokens`.
fn clamp(local: u32, heavy: u32, chunk_tokens: u32) -> (u32, u32) {
    if chunk_tokens <= 1 {
        (0, 0)
    } else if local >= chunk_tokens {
        (chunk_tokens - 1, 0)
    } else {
        (local, heavy.min(chunk_tokens - 1 - local))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn clamps_like_the_oracle() {
        let check = |local, heavy, chunk, want: (u32, u32), clamps: &[&str]| {
            let (policy, got) = MemoryPolicy::h2o(4, local, heavy).clamped(chunk);
            assert_eq!((policy.local, policy.heavy), want);
            assert_eq!(got.iter().map(|clamp| clamp.field).collect::<Vec<_>>(), clamps);
        };
        check(256, 256, 1024, (256, 256), &[]);
        check(256, 256, 512, (256, 255), &["heavy"]);
        check(600, 10, 512, (511, 0), &["local", "heavy"]);
        check(1, 1, 1, (0, 0), &["local", "heavy"]);
        let (policy, clamps) = MemoryPolicy::dense().clamped(8);
        assert!(policy.keeps_all() && clamps.is_empty());
    }

    #[test]
    fn a_clamp_reads_well() {
        let (_, clamps) = MemoryPolicy::default().clamped(512);
        assert_eq!(
            clamps[0].to_string(),
            "heavy = 256 was lowered to 255: local + heavy must stay below chunk_tokens = 512"
        );
    }

    #[test]
    fn the_heavy_preset_splits_the_budget() {
        let policy = MemoryPolicy::heavy_preset(512, 4).unwrap();
        assert_eq!((policy.sinks, policy.local, policy.heavy), (4, 252, 256));
        assert_eq!(policy.budget_tokens(), Some(512));
        for (max_tokens, sinks) in [(4, 4), (9, u32::MAX)] {
            let refused = MemoryPolicy::heavy_preset(max_tokens, sinks).unwrap_err();
            assert_eq!(refused.field, "max_tokens");
        }
    }

    #[test]
    fn a_policy_reads_well() {
        assert_eq!(MemoryPolicy::default().to_string(), "h2o 4 + 256 + 256");
        assert_eq!(MemoryPolicy::window(2, 8).to_string(), "window 2 + 8");
        assert_eq!(MemoryPolicy::dense().to_string(), "dense");
    }

    #[test]
    fn refuses_a_decay_outside_its_range() {
        for decay in [0.0, -1.0, 1.5, f32::NAN] {
            let scoring = Scoring { decay, ..Scoring::default() };
            let policy = MemoryPolicy { scoring, ..MemoryPolicy::default() };
            assert_eq!(policy.validate().unwrap_err().field, "decay");
        }
    }

    proptest! {
        #[test]
        fn a_clamped_budget_is_below_the_chunk(
            local in 0u32..3000, heavy in 0u32..3000, chunk in 1u32..2000,
        ) {
            let (policy, clamps) = MemoryPolicy::h2o(4, local, heavy).clamped(chunk);
            prop_assert!(policy.local + policy.heavy < chunk);
            prop_assert!(policy.local <= local && policy.heavy <= heavy);
            prop_assert_eq!(clamps.is_empty(), local + heavy < chunk);
        }
    }
}

//! A prompt that is prefilled again, because its memory kept too little.

use aqueduct_core::MemoryPolicy;

/// A prefill that kept too little.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Escalation {
    /// Under which policy, as used.
    pub policy: MemoryPolicy,
    /// Share of the attention mass in the layer that kept least.
    pub lowest: f64,
    /// The floor.
    pub min_retained_mass: f64,
    /// The policy of the next try, as used.
    pub next: MemoryPolicy,
}

impl std::fmt::Display for Escalation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { policy, lowest, min_retained_mass, next } = self;
        write!(
            f,
            "{policy} kept {lowest:.4} of the attention mass in the layer that kept least, "
        )?;
        write!(f, "below min_retained_mass = {min_retained_mass}: prefilled again with {next}")
    }
}

//! What multiplies numbers inside of layers (TII 2025, Falcon H1).

use aqueduct_core::Refusal;

/// What stands in f32 beside weights, so that no weight is rounded anew.
///
/// Files multiply what parts take and give, and columns of a first product by their kind. What a
/// part takes is multiplied in the norm before it; what attention gives in its values, with all
/// that it takes, so that dot products are divided by the square of that; and what feed-forward
/// parts give is what the stream is kept divided by ([`super::Scales::residual`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Multipliers {
    /// What attention takes.
    pub(crate) attention: f32,
    /// What a scan takes.
    pub(crate) scan: f32,
    /// Its x, B and C behind that, which the convolution takes.
    pub(crate) channels: [f32; 3],
    /// Its dt behind that.
    pub(crate) dt: f32,
    /// What it gives.
    pub(crate) scanned: f32,
    /// What the feed-forward part takes.
    pub(crate) feed: f32,
}

impl Multipliers {
    /// Takes these if something finite comes of them.
    pub(crate) fn checked(self) -> Result<Self, Refusal> {
        let Self { attention, scan, channels: [x, b, c], dt, scanned, feed } = self;
        for (field, multiplier) in [
            ("multiplier of attention", attention),
            ("multiplier of a scan", scan),
            ("multiplier of x", x),
            ("multiplier of B", b),
            ("multiplier of C", c),
            ("multiplier of dt", dt),
            ("multiplier of what a scan gives", scanned),
            ("multiplier of feed-forward parts", feed),
        ] {
            Refusal::unless_within(field, multiplier, 1e-6, 1e6)?;
        }
        Ok(self)
    }
}

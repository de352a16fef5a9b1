//! The one comparator: every test that holds one computation against another uses it.

/// How far two arrays may be apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// |seen - want| may be this much,
    pub abs: f64,
    /// plus this much of |want|.
    pub rel: f64,
    /// 1 - cosine of the two arrays may be this much, over their finite elements.
    pub cosine: f64,
}

impl Tolerance {
    /// `abs` and `rel` with a cosine that is implied by neither: directions agree to 1e-5.
    pub const fn new(abs: f64, rel: f64) -> Self {
        Self { abs, rel, cosine: 1e-5 }
    }
}

/// How two arrays differ.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Mismatch {
    /// Their lengths do.
    #[error("{what}: {seen} elements, want {want}")]
    Length {
        /// Name of the array.
        what: String,
        /// Elements seen.
        seen: usize,
        /// Elements wanted.
        want: usize,
    },
    /// One is infinite or NaN where the other is not.
    #[error("{what}[{idx}] is {seen}, want {want}: infinities and NaN must match")]
    Mask {
        /// Name of the array.
        what: String,
        /// The first such element.
        idx: usize,
        /// Its value.
        seen: f64,
        /// The value wanted.
        want: f64,
    },
    /// Elements are too far apart.
    #[error(
        "{what}[{idx}] is {seen}, want {want}: off by {off:.3e}, allowed {allowed:.3e}; \
         the worst of {wrong} among {len}"
    )]
    Value {
        /// Name of the array.
        what: String,
        /// The worst element, by how often it exceeds what is allowed.
        idx: usize,
        /// Its value.
        seen: f64,
        /// The value wanted.
        want: f64,
        /// |seen - want|.
        off: f64,
        /// What that may be.
        allowed: f64,
        /// Elements that are too far apart.
        wrong: usize,
        /// Elements.
        len: usize,
    },
    /// Every element is near, yet the directions differ.
    #[error("{what}: 1 - cosine is {off:.3e}, allowed {allowed:.3e}")]
    Direction {
        /// Name of the array.
        what: String,
        /// 1 - cosine.
        off: f64,
        /// What that may be.
        allowed: f64,
    },
    /// Bits differ where they must not.
    #[error("{what}[{idx}] is {seen:e}, want {want:e} bit for bit; {wrong} of {len} differ")]
    Bits {
        /// Name of the array.
        what: String,
        /// The first such element.
        idx: usize,
        /// Its value.
        seen: f32,
        /// The value wanted.
        want: f32,
        /// Elements that differ.
        wrong: usize,
        /// Elements.
        len: usize,
    },
}

/// Whether `seen` is `want` within `tolerance`. Infinities and NaN must stand in the same
/// places with the same sign.
///
/// # Errors
/// The first kind of [`Mismatch`] that applies, with the worst element.
pub fn close<S, W>(what: &str, seen: &[S], want: &[W], tolerance: Tolerance) -> Result<(), Mismatch>
where
    S: Copy + Into<f64>,
    W: Copy + Into<f64>,
{
    same_length(what, seen.len(), want.len())?;
    let pairs = || seen.iter().zip(want).map(|(&seen, &want)| (seen.into(), want.into()));
    same_mask(what, pairs())?;
    within(what, pairs(), tolerance)?;
    same_direction(what, pairs(), tolerance)
}

/// Whether `seen` is `want` bit for bit.
///
/// # Errors
/// The first element that is not.
pub fn identical(what: &str, seen: &[f32], want: &[f32]) -> Result<(), Mismatch> {
    same_length(what, seen.len(), want.len())?;
    let differs = |&idx: &usize| seen[idx].to_bits() != want[idx].to_bits();
    let mut wrong = (0..seen.len()).filter(differs);
    wrong.next().map_or(Ok(()), |idx| {
        Err(Mismatch::Bits {
            what: what.to_owned(),
            idx,
            seen: seen[idx],
            want: want[idx],
            wrong: 1 + wrong.count(),
            len: seen.len(),
        })
    })
}

fn same_length(what: &str, seen: usize, want: usize) -> Result<(), Mismatch> {
    if seen == want {
        return Ok(());
    }
    Err(Mismatch::Length { what: what.to_owned(), seen, want })
}

fn same_mask(what: &str, pairs: impl Iterator<Item = (f64, f64)>) -> Result<(), Mismatch> {
    let differs = |&(_, (seen, want)): &(usize, (f64, f64))| {
        let either_odd = !seen.is_finite() || !want.is_finite();
        either_odd && seen != want && !(seen.is_nan() && want.is_nan())
    };
    match pairs.enumerate().find(differs) {
        None => Ok(()),
        Some((idx, (seen, want))) => Err(Mismatch::Mask { what: what.to_owned(), idx, seen, want }),
    }
}

fn within(
    what: &str,
    pairs: impl ExactSizeIterator<Item = (f64, f64)>,
    tolerance: Tolerance,
) -> Result<(), Mismatch> {
    let len = pairs.len();
    let (mut wrong, mut worst, mut excess) = (0, None, 1.0);
    for (idx, (seen, want)) in pairs.enumerate().filter(|(_, (seen, _))| seen.is_finite()) {
        let off = (seen - want).abs();
        let allowed = tolerance.abs + tolerance.rel * want.abs();
        if off > allowed {
            wrong += 1;
            if off / allowed > excess {
                (worst, excess) = (Some((idx, seen, want, off, allowed)), off / allowed);
            }
        }
    }
    let Some((idx, seen, want, off, allowed)) = worst else { return Ok(()) };
    let what = what.to_owned();
    Err(Mismatch::Value { what, idx, seen, want, off, allowed, wrong, len })
}

fn same_direction(
    what: &str,
    pairs: impl Iterator<Item = (f64, f64)>,
    tolerance: Tolerance,
) -> Result<(), Mismatch> {
    let (mut dot, mut seen_norm, mut want_norm) = (0.0, 0.0, 0.0);
    for (seen, want) in pairs.filter(|(seen, _)| seen.is_finite()) {
        dot += seen * want;
        seen_norm += seen * seen;
        want_norm += want * want;
    }
    let norms = f64::sqrt(seen_norm * want_norm);
    // Arrays within the absolute tolerance of zero have no direction to speak of.
    if f64::sqrt(want_norm) <= tolerance.abs || norms == 0.0 {
        return Ok(());
    }
    let off = 1.0 - dot / norms;
    if off <= tolerance.cosine {
        return Ok(());
    }
    Err(Mismatch::Direction { what: what.to_owned(), off, allowed: tolerance.cosine })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIGHT: Tolerance = Tolerance::new(1e-3, 1e-3);

    fn check(seen: &[f32], want: &[f64], text: &str) {
        let said = close("x", seen, want, TIGHT).map_or_else(|e| e.to_string(), |()| String::new());
        assert_eq!(said, text);
    }

    #[test]
    fn agreement_is_silent() {
        check(&[1.0, 100.05, f32::NEG_INFINITY], &[1.0005, 100.0, f64::NEG_INFINITY], "");
        check(&[f32::NAN, 1e-4], &[f64::NAN, 0.0], "");
        check(&[], &[], "");
    }

    #[test]
    fn the_worst_element_is_named() {
        check(
            &[1.0, 2.5, 3.25, 4.0],
            &[1.0, 2.0, 3.0, 4.0],
            "x[1] is 2.5, want 2: off by 5.000e-1, allowed 3.000e-3; the worst of 2 among 4",
        );
    }

    #[test]
    fn zero_tolerance_still_names_the_worst() {
        let exact = Tolerance { abs: 0.0, rel: 0.0, cosine: 0.0 };
        assert!(close("x", &[1.0_f32], &[1.5_f64], exact).is_err());
    }

    #[test]
    fn masks_must_match() {
        let text =
            |seen, want| format!("x[0] is {seen}, want {want}: infinities and NaN must match");
        check(&[f32::NAN], &[1.0], &text("NaN", "1"));
        check(&[1.0], &[f64::NAN], &text("1", "NaN"));
        check(&[f32::INFINITY], &[f64::NEG_INFINITY], &text("inf", "-inf"));
    }

    #[test]
    fn lengths_must_match() {
        check(&[1.0], &[], "x: 1 elements, want 0");
    }

    #[test]
    fn a_common_direction_is_asked_of_small_errors_too() {
        let loose = Tolerance { abs: 0.5, rel: 0.0, cosine: 1e-6 };
        let (seen, want) = ([0.4_f32, -0.4, 0.4], [0.4_f64, 0.0, 0.4]);
        assert!(matches!(close("x", &seen, &want, loose), Err(Mismatch::Direction { .. })));
    }

    #[test]
    fn identity_sees_the_sign_of_zero() {
        assert_eq!(identical("x", &[0.0], &[0.0]), Ok(()));
        let error = identical("x", &[1.0, 0.0, 2.0], &[1.0, -0.0, 3.0]).unwrap_err();
        assert_eq!(error.to_string(), "x[1] is 0e0, want -0e0 bit for bit; 2 of 3 differ");
    }
}

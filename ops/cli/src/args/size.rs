//! Bytes as people write them.

use std::fmt;
use std::str::FromStr;

use aqueduct_core::Refusal;

/// A number of bytes: `4294967296`, `4096MiB` or `4G`; units are powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let refusal = || Refusal::new("size", text, "bytes, or a number and K, M, G or T");
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.strip_suffix("iB").or(unit.strip_suffix('B')).unwrap_or(unit);
        let shift = match unit {
            "" => 0,
            "K" | "k" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(refusal()),
        };
        let number: u64 = number.parse().map_err(|_| refusal())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(refusal)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        let check = |text: &str, want: Option<u64>| {
            assert_eq!(text.parse::<Size>().ok().map(|size| size.0), want, "{text}");
        };
        check("0", Some(0));
        check("4096", Some(4096));
        check("3K", Some(3 << 10));
        check("512MiB", Some(512 << 20));
        check("8G", Some(8 << 30));
        check("2TB", Some(2 << 40));
        check("G", None);
        check("1.5G", None);
        check("-1", None);
        check("7Q", None);
        check("99999999T", None);
    }
}

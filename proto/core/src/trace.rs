//! Where in a trace something is done: the `traceparent` of W3C Trace Context, by which spans of
//! several processes become one tree.

use std::fmt;
use std::str::FromStr;

use crate::Refusal;

/// Name of the HTTP header, and of gRPC metadata, that carries it.
pub const TRACEPARENT: &str = "traceparent";

/// A span that others are children of.
///
/// Its text is `00-TRACE-SPAN-FLAGS` in lowercase hexadecimal digits
/// (<https://www.w3.org/TR/trace-context/>).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace: [u8; 16],
    span: [u8; 8],
    /// Bit 0: somebody records this trace.
    flags: u8,
}

impl TraceParent {
    /// `None` for ids that are all zeros, which mean that there is no trace.
    pub fn new(trace: [u8; 16], span: [u8; 8], flags: u8) -> Option<Self> {
        let is_there = trace != [0; 16] && span != [0; 8];
        is_there.then_some(Self { trace, span, flags })
    }

    /// Shared by all spans of the trace.
    pub fn trace(&self) -> [u8; 16] {
        self.trace
    }

    /// The span.
    pub fn span(&self) -> [u8; 8] {
        self.span
    }

    /// The trace's flags.
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// What a caller wrote: `None` where that is no trace. The specification wants a receiver to
    /// begin a trace of its own then, and no call to fail for it.
    pub fn of_caller(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl FromStr for TraceParent {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        parse(text).ok_or_else(|| {
            Refusal::new(TRACEPARENT, text, "00-TRACE-SPAN-FLAGS in lowercase hexadecimal digits")
        })
    }
}

/// Later versions may go on behind a dash; version ff is forbidden.
fn parse(text: &str) -> Option<TraceParent> {
    let mut fields = text.splitn(5, '-');
    let mut field = || fields.next();
    let version: [u8; 1] = hex(field()?)?;
    let (trace, span, flags) = (hex(field()?)?, hex(field()?)?, hex::<1>(field()?)?);
    let has_more = field().is_some();
    if version == [0xff] || (version == [0] && has_more) {
        return None;
    }
    TraceParent::new(trace, span, flags[0])
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != 2 * N || !text.bytes().all(is_digit) {
        return None;
    }
    let mut bytes = [0; N];
    for (idx, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * idx..2 * idx + 2], 16).ok()?;
    }
    Some(bytes)
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.trace.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.span.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{:02x}", self.flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_is_written_is_read() {
        let parent: TraceParent = EXAMPLE.parse().unwrap();
        assert_eq!(parent.to_string(), EXAMPLE);
        assert_eq!(parent.flags(), 1);
        assert_eq!(parent.span(), [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        assert_eq!(TraceParent::new(parent.trace(), parent.span(), 1), Some(parent));
        assert_eq!(TraceParent::new([0; 16], parent.span(), 1), None);
        assert_eq!(TraceParent::new(parent.trace(), [0; 8], 1), None);
    }

    #[test]
    fn versions_to_come_are_read_and_what_is_wrong_is_not() {
        let check = |text: &str, is_read: bool| {
            assert_eq!(TraceParent::of_caller(text).is_some(), is_read, "{text}");
        };
        check(&EXAMPLE.replacen("00", "01", 1), true);
        check(&format!("{}-more-to-come", EXAMPLE.replacen("00", "cc", 1)), true);
        check(&format!("{EXAMPLE}-more"), false);
        check(&EXAMPLE.replacen("00", "ff", 1), false);
        check(&EXAMPLE.to_uppercase(), false);
        check(&EXAMPLE.replace("4bf9", "4bg9"), false);
        check(&EXAMPLE.replace("4bf9", "+bf9"), false);
        check(&EXAMPLE.replace("4bf9", "4bf"), false);
        check(&EXAMPLE.replace("00f067aa0ba902b7", "0000000000000000"), false);
        check(&EXAMPLE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)), false);
        check(&EXAMPLE[..52], false);
        check("", false);
        check("é", false);
        check(&"é".repeat(40), false);
    }
}

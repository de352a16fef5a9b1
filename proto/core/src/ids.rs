//! Names of requests, workers and chunks.

use std::fmt;
use std::str::FromStr;

use crate::{Refusal, limits};

/// A request, unique in a cluster for as long as anything remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A worker, as the coordinator numbers it; stable while the worker is a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u32);

/// How often a request's chunks have been re-assigned; frames of an older epoch are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// One chunk of one request, in one epoch: what a memory set in flight belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkKey {
    /// The request.
    pub request: RequestId,
    /// The chunk that *uses* what is sent (the producer is the chunk before it).
    pub chunk_idx: u32,
    /// The epoch of the assignment.
    pub epoch: Epoch,
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{:016x}", self.0)
    }
}

impl FromStr for RequestId {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let digits = text.strip_prefix('r').filter(|digits| digits.len() == 16);
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let id = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        id.map(Self).ok_or_else(|| Refusal::new("request", text, "r and 16 hexadecimal digits"))
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}", self.0)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

impl fmt::Display for ChunkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/c{}/{}", self.request, self.chunk_idx, self.epoch)
    }
}

/// Whether a caller may know its call by `id`: it stands in a header and in a log.
pub fn is_caller_id(id: &str) -> bool {
    let length = 1..=limits::REQUEST_ID_BYTES_MAX;
    length.contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_by_what_is_shown_of_it() {
        let request = RequestId(0x0006_421f_d0a1_b200);
        assert_eq!(request.to_string().parse(), Ok(request));
        for other in ["", "r", "6421fd0a1b200", "r+00000000000001", "r0006421fd0a1b2000"] {
            assert_eq!(other.parse::<RequestId>().unwrap_err().field, "request");
        }
    }
}

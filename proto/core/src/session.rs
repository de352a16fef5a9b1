//! Sessions: a conversation goes on from the memory that its last completion left.

use std::fmt;
use std::str::FromStr;

use crate::{Refusal, TokenId, limits};

/// What a caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionUse {
    /// Keep what is remembered at the end, so that it can be gone on from.
    New,
    /// Go on from there, and keep what is remembered then.
    GoOn(Session),
}

/// What is remembered at the end of a completion, by what made it. It stands for that memory for
/// ever: whoever goes on from it twice gets two conversations that begin alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Of the model.
    pub model: [u8; 8],
    /// Of everything else that memory depends on beside tokens: policy, chunk size, rounding.
    pub settings: [u8; 8],
    /// Of all that and of the tokens, turn by turn.
    pub name: [u8; 32],
    /// Tokens that are remembered.
    pub end: u32,
    /// The last token of the completion, which is not: it is the first of the next turn. `None`
    /// where nothing was generated.
    pub pending: Option<TokenId>,
}

impl SessionUse {
    /// What is gone on from.
    pub fn goes_on(&self) -> Option<&Session> {
        match self {
            Self::New => None,
            Self::GoOn(session) => Some(session),
        }
    }
}

const NEW: &str = "new";
const PREFIX: &str = "as1-";
const BYTES: usize = 8 + 8 + 32 + 4 + 4;
const NO_TOKEN: u32 = u32::MAX;

impl Session {
    /// All of it, as it is named and written.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let parts: [&[u8]; 5] = [
            &self.model,
            &self.settings,
            &self.name,
            &self.end.to_le_bytes(),
            &self.pending.unwrap_or(NO_TOKEN).to_le_bytes(),
        ];
        let mut rest = bytes.as_mut_slice();
        for part in parts {
            let (place, later) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = later;
        }
        bytes
    }

    fn of_bytes(bytes: &[u8; BYTES]) -> Result<Self, Refusal> {
        fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
            let (taken, later) = rest.split_first_chunk().expect("as many as were counted");
            *rest = later;
            *taken
        }
        let rest = &mut bytes.as_slice();
        let (model, settings, name) = (take(rest), take(rest), take(rest));
        let [end, pending] = [take(rest), take(rest)].map(u32::from_le_bytes);
        let end_max = limits::PROMPT_TOKENS_MAX + limits::OUTPUT_TOKENS_MAX;
        Refusal::unless_within("session.end", end, 1, end_max)?;
        let pending = (pending != NO_TOKEN).then_some(pending);
        let most = limits::VOCAB_MAX - 1;
        Refusal::unless_within("session.pending", pending.unwrap_or(0), 0, most)?;
        Ok(Self { model, settings, name, end, pending })
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Session {
    type Err = Refusal;

    /// What [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        let refusal = || {
            let shown: String = text.chars().take(16).collect();
            Refusal::new("session", format!("{shown:?}"), "new, or what an answer was given")
        };
        let digits = text.strip_prefix(PREFIX).ok_or_else(refusal)?.as_bytes();
        let mut bytes = [0; BYTES];
        if digits.len() != 2 * BYTES {
            return Err(refusal());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16).ok_or_else(refusal);
            *byte = (digit(0)? * 16 + digit(1)?) as u8;
        }
        Self::of_bytes(&bytes)
    }
}

impl FromStr for SessionUse {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        match text {
            NEW => Ok(Self::New),
            session => session.parse().map(Self::GoOn),
        }
    }
}

impl fmt::Display for SessionUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New => f.write_str(NEW),
            Self::GoOn(session) => session.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: Session =
        Session { model: [1; 8], settings: [2; 8], name: [0xab; 32], end: 7, pending: Some(9) };

    #[test]
    fn is_read_back() {
        for session in [SESSION, Session { pending: None, ..SESSION }] {
            let text = SessionUse::GoOn(session).to_string();
            assert_eq!(text.parse(), Ok(SessionUse::GoOn(session)), "{text}");
        }
        assert_eq!("new".parse(), Ok(SessionUse::New));
    }

    #[test]
    fn refuses_by_field() {
        let check = |text: &str, field: &str| {
            assert_eq!(text.parse::<SessionUse>().unwrap_err().field, field, "{text}");
        };
        let good = SESSION.to_string();
        check("", "session");
        check("old", "session");
        check(&good[1..], "session");
        check(&good[..good.len() - 2], "session");
        check(&good.replace("ab", "xy"), "session");
        check(&format!("{PREFIX}{}", "é".repeat(BYTES)), "session");
        check(&Session { end: 0, ..SESSION }.to_string(), "session.end");
        check(&Session { end: u32::MAX, ..SESSION }.to_string(), "session.end");
        let pending = Some(limits::VOCAB_MAX);
        check(&Session { pending, ..SESSION }.to_string(), "session.pending");
    }
}

//! Text from a stream of tokens, as soon as its characters are complete and not before.

use aqueduct_core::TokenId;

use super::pieces::Pieces;

/// What stands before the first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Nothing: a text of its own, so a tokeniser's own leading space is not shown.
    Text,
    /// A text that the tokens continue: the space belongs to it.
    Continuation,
}

/// Turns tokens into text one by one. What it returned over all calls is what decoding all the
/// tokens at once gives.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    pending: Vec<u8>,
    strip_space: bool,
}

impl Detokenizer {
    pub(crate) fn new(pieces: &Pieces, start: Start) -> Self {
        let strip_space = start == Start::Text && pieces.strips_first_space();
        Self { pending: Vec::new(), strip_space }
    }

    /// The text that `token` completes; empty while a character is still open.
    pub(crate) fn push(&mut self, pieces: &Pieces, token: TokenId) -> String {
        if pieces.is_special(token) {
            return String::new();
        }
        let mut bytes = pieces.bytes(token);
        if self.strip_space && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.strip_space = false;
        }
        self.pending.extend_from_slice(bytes);
        take_complete(&mut self.pending)
    }

    /// Whether `byte` is no part of the character that is still open, if one is, which then becomes
    /// U+FFFD.
    pub(crate) fn gives_up(&self, byte: u8) -> bool {
        !self.pending.is_empty() && {
            let joined = [self.pending.as_slice(), &[byte]].concat();
            std::str::from_utf8(&joined).is_err() && !is_unfinished(&joined)
        }
    }

    /// What is left when no token follows: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

/// Moves everything but an unfinished character at the end out of `pending`; bytes that cannot
/// become a character turn into U+FFFD, as `String::from_utf8_lossy` has it.
fn take_complete(pending: &mut Vec<u8>) -> String {
    let open = match pending.utf8_chunks().last() {
        Some(chunk) if is_unfinished(chunk.invalid()) => chunk.invalid().len(),
        _ => 0,
    };
    let rest = pending.split_off(pending.len() - open);
    let complete = std::mem::replace(pending, rest);
    String::from_utf8_lossy(&complete).into_owned()
}

fn is_unfinished(tail: &[u8]) -> bool {
    matches!(std::str::from_utf8(tail), Err(error) if error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_cut_gives_the_same_text(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0x80u8..0xf8], 0..40),
            text in "\\PC{0,12}",
            cut in 1usize..5,
        ) {
            let whole: Vec<u8> = bytes.iter().copied().chain(text.bytes()).collect();
            let mut pending = Vec::new();
            let mut got = String::new();
            for part in whole.chunks(cut) {
                pending.extend_from_slice(part);
                got += &take_complete(&mut pending);
            }
            got += &String::from_utf8_lossy(&pending);
            prop_assert_eq!(got, String::from_utf8_lossy(&whole));
        }
    }

    #[test]
    fn a_character_is_shown_when_it_is_complete() {
        let mut pending = Vec::new();
        let mut push = |byte: u8| {
            pending.push(byte);
            take_complete(&mut pending)
        };
        let dash = "—".as_bytes();
        assert_eq!((push(b'a'), push(dash[0])), ("a".into(), String::new()));
        assert_eq!((push(dash[1]), push(dash[2])), (String::new(), "—".into()));
        assert_eq!((push(0xff), push(b'b')), ("\u{fffd}".into(), "b".into()));
    }
}

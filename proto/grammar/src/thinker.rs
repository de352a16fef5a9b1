//! Follows the thoughts of one answer, up to where what it says begins.

use std::collections::VecDeque;

use aqueduct_core::{Thinking, TokenBytes, TokenId};

/// Bytes of white space that may stand between thoughts and what is said.
const GAP_BYTES_MAX: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    /// What was said so far may become what thoughts begin with.
    Before(Vec<u8>),
    /// Thoughts, of which what was last said is kept.
    Within(Vec<u8>),
    /// They are over; bytes of white space since.
    Behind(usize),
    /// There were none.
    Without,
}

/// What may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// This token alone.
    Forced(TokenId),
    /// What begins thoughts, or what is said without any.
    Begins,
    /// Thoughts.
    Thoughts,
    /// What is said, or white space before it.
    Says,
}

/// Of what a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Thoughts,
    /// Of thoughts, if what follows goes on so, and else of what is said.
    Either,
    Said,
}

/// How far the thoughts of one answer are.
#[derive(Debug, Clone)]
pub(crate) struct Thinker {
    thinking: Thinking,
    /// Whether what is said follows a grammar.
    has_grammar: bool,
    stage: Stage,
    forced: VecDeque<TokenId>,
    /// Tokens of thoughts.
    tokens: u32,
}

impl Thinker {
    pub(crate) fn new(thinking: &Thinking, has_grammar: bool) -> Self {
        let stage = match thinking.begun {
            true => Stage::Within(Vec::new()),
            false => Stage::Before(Vec::new()),
        };
        let (thinking, forced) = (thinking.clone(), VecDeque::new());
        let mut thinker = Self { thinking, has_grammar, stage, forced, tokens: 0 };
        thinker.bound();
        thinker
    }

    pub(crate) fn next(&self) -> Next {
        match (self.forced.front(), &self.stage) {
            (Some(token), _) => Next::Forced(*token),
            (None, Stage::Before(_)) => Next::Begins,
            (None, Stage::Within(_)) => Next::Thoughts,
            (None, Stage::Behind(_) | Stage::Without) => Next::Says,
        }
    }

    /// Whether nothing of the answer is for this any more.
    pub(crate) fn is_over(&self) -> bool {
        let is_over = match self.stage {
            Stage::Before(_) | Stage::Within(_) => false,
            Stage::Behind(_) => !self.has_grammar,
            Stage::Without => true,
        };
        is_over && self.forced.is_empty()
    }

    /// Whether it may still be that there are thoughts, or none.
    pub(crate) fn is_before(&self) -> bool {
        matches!(self.stage, Stage::Before(_))
    }

    /// Whether nothing is said without thoughts before it.
    pub(crate) fn is_needed(&self) -> bool {
        self.thinking.always
    }

    /// Whether `word` goes on with, or ends, what thoughts begin with.
    pub(crate) fn opens(&self, word: &[u8]) -> bool {
        let Stage::Before(said) = &self.stage else { return false };
        let begun = said.trim_ascii_start();
        let is_gap = begun.is_empty() && is_blank(word);
        if is_gap || word.is_empty() {
            return is_gap && !word.is_empty() && said.len() + word.len() <= GAP_BYTES_MAX;
        }
        // White space stands before the mark and not within it.
        let word = if begun.is_empty() { word.trim_ascii_start() } else { word };
        let rest = self.thinking.open.as_bytes().strip_prefix(begun);
        rest.is_some_and(|rest| word.starts_with(rest) || rest.starts_with(word))
    }

    /// How much of what ends thoughts has been said: by that alone it is decided what they may
    /// have next.
    pub(crate) fn ended_bytes(&self) -> Option<usize> {
        let Stage::Within(tail) = &self.stage else { return None };
        let close = self.thinking.close.as_bytes();
        (0..close.len()).rev().find(|bytes| tail.ends_with(&close[..*bytes]))
    }

    /// Whether `word` is white space for which there is room before what is said.
    pub(crate) fn is_gap(&self, word: &[u8]) -> bool {
        let Stage::Behind(bytes) = self.stage else { return false };
        self.has_grammar
            && !word.is_empty()
            && word.len() + bytes <= GAP_BYTES_MAX
            && is_blank(word)
    }

    /// Whether a thought may have `word`, where what is said follows a grammar: no token that is
    /// no text, unless it ends thoughts, and none with which something is said as well.
    pub(crate) fn may_think(&self, word: &[u8]) -> bool {
        let Stage::Within(tail) = &self.stage else { return false };
        let close = self.thinking.close.as_bytes();
        match word.first() {
            None => false,
            Some(&TokenBytes::MARK) => close.starts_with(&word[1..]),
            Some(_) => behind(tail, word, close).is_none_or(is_blank),
        }
    }

    /// Takes a token that is `word`.
    pub(crate) fn take(&mut self, token: TokenId, word: &[u8]) -> Part {
        let is_forced = self.forced.front() == Some(&token);
        if is_forced {
            self.forced.pop_front();
        }
        if !is_forced && self.is_left_by(word) {
            self.stage = Stage::Without;
        }
        let word = name(word);
        match &mut self.stage {
            Stage::Before(said) => {
                said.extend_from_slice(word);
                let (said, open) = (std::mem::take(said), self.thinking.open.as_bytes());
                let begun = said.trim_ascii_start();
                let gap_bytes = said.len() - begun.len();
                self.stage = match begun.strip_prefix(open) {
                    Some(rest) => Stage::Within(rest.to_vec()),
                    None if open.starts_with(begun) && gap_bytes <= GAP_BYTES_MAX => {
                        Stage::Before(said)
                    }
                    None => Stage::Without,
                };
                self.bound();
                match self.stage {
                    Stage::Before(_) => Part::Either,
                    Stage::Without => Part::Said,
                    Stage::Within(_) | Stage::Behind(_) => Part::Thoughts,
                }
            }
            Stage::Within(tail) => {
                self.tokens += u32::from(!is_forced);
                let close = self.thinking.close.as_bytes();
                match behind(tail, word, close).map(<[u8]>::len) {
                    Some(gap) => {
                        self.stage = Stage::Behind(gap);
                        if self.has_grammar {
                            self.forced.extend(&self.thinking.head);
                        }
                    }
                    None => {
                        tail.extend_from_slice(word);
                        tail.drain(..tail.len().saturating_sub(close.len()));
                        self.bound();
                    }
                }
                Part::Thoughts
            }
            Stage::Behind(_) if is_forced => Part::Thoughts,
            Stage::Behind(bytes) => {
                let is_gap =
                    self.has_grammar && *bytes + word.len() <= GAP_BYTES_MAX && is_blank(word);
                *bytes += word.len();
                if is_gap { Part::Thoughts } else { Part::Said }
            }
            Stage::Without => Part::Said,
        }
    }

    /// Whether `word` ends thoughts that it is no end of: a call that begins at once, for instance,
    /// or another message. Where there is a grammar thoughts may have no such token.
    fn is_left_by(&self, word: &[u8]) -> bool {
        let (Stage::Within(tail), Some(&TokenBytes::MARK)) = (&self.stage, word.first()) else {
            return false;
        };
        let Thinking { open, close, .. } = &self.thinking;
        let is_part = |mark: &str| mark.contains(&*String::from_utf8_lossy(name(word)));
        let goes_on = behind(tail, name(word), close.as_bytes()).is_some();
        !self.has_grammar && !goes_on && !is_part(open) && !is_part(close)
    }

    /// Ends thoughts that have come to their bound.
    fn bound(&mut self) {
        let is_at_bound = self.thinking.most.is_some_and(|most| self.tokens >= most);
        if is_at_bound && self.forced.is_empty() && matches!(self.stage, Stage::Within(_)) {
            self.forced.extend(&self.thinking.ending);
        }
    }
}

/// A token as it is spelled, also one that is no text.
pub(crate) fn name(word: &[u8]) -> &[u8] {
    word.strip_prefix(&[TokenBytes::MARK]).unwrap_or(word)
}

pub(crate) fn is_blank(word: &[u8]) -> bool {
    word.iter().all(u8::is_ascii_whitespace)
}

/// What of `word`, which is said behind `tail`, stands behind `close`; `None` where that is not
/// complete.
fn behind<'a>(tail: &[u8], word: &'a [u8], close: &[u8]) -> Option<&'a [u8]> {
    let said = |idx: usize| match idx.checked_sub(tail.len()) {
        None => tail[idx],
        Some(idx) => word[idx],
    };
    let all = tail.len() + word.len();
    // What ends within the tail was found before.
    let first = (tail.len() + 1).saturating_sub(close.len());
    let at = (first..(all + 1).saturating_sub(close.len()))
        .find(|start| close.iter().zip(*start..).all(|(byte, idx)| said(idx) == *byte))?;
    word.get(at + close.len() - tail.len()..)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token for each of these, and one for each byte.
    const WORDS: [&[u8]; 6] =
        [b"<think>", b"</", b"think", b">\n", b"\xFF<|end|>", b"\xFF<|channel|>"];

    fn word(token: TokenId) -> Vec<u8> {
        match token.checked_sub(256) {
            None => vec![u8::try_from(token).unwrap()],
            Some(idx) => WORDS[idx as usize].to_vec(),
        }
    }

    fn thinking(begun: bool, most: Option<u32>) -> Thinking {
        let (open, close) = ("<think>".to_owned(), "</think>".to_owned());
        // `\n</think>\n`
        let ending = vec![10, 257, 258, 259];
        Thinking { begun, always: false, open, close, ending, head: vec![72], most }
    }

    fn said(text: &str) -> Vec<TokenId> {
        text.bytes().map(TokenId::from).collect()
    }

    /// Takes tokens, and gives what is said of them from the first that was not taken on.
    fn taken(thinker: &mut Thinker, tokens: &[TokenId]) -> String {
        let mut rest = String::new();
        for token in tokens {
            if !rest.is_empty() || thinker.take(*token, &word(*token)) == Part::Said {
                rest.push_str(&String::from_utf8(word(*token)).unwrap());
            }
        }
        rest
    }

    #[test]
    fn thoughts_come_before_what_is_said() {
        let check = |begun: bool, tokens: &[TokenId], want: &str| {
            let mut thinker = Thinker::new(&thinking(begun, None), true);
            assert_eq!(taken(&mut thinker, tokens), want, "{tokens:?}");
        };
        check(false, &[said("<think>a</think>H{}")].concat(), "{}");
        check(false, &[&[256], &said("a")[..], &[257, 258, 259, 72], &said("{}")].concat(), "{}");
        check(true, &[&[257, 258, 259], &said("H\n {")[..]].concat(), "{");
        check(true, &said("a</thin</think>H1"), "1");
        check(false, &said("{}"), "{}");
        check(false, &said("\n<think>a</think>H{}"), "{}");
        // What might have been the tag is known to be said from here on.
        check(false, &said("<t>"), ">");
    }

    #[test]
    fn what_may_come_depends_on_what_came() {
        let mut thinker = Thinker::new(&thinking(false, None), true);
        assert_eq!(thinker.next(), Next::Begins);
        assert!(thinker.opens(b"<") && thinker.opens(b"<think>") && thinker.opens(b"<think>\n"));
        assert!(!thinker.opens(b"") && !thinker.opens(b"think") && !thinker.opens(b"     "));
        assert!(thinker.opens(b"\n") && thinker.opens(b" <"));
        thinker.take(60, b"<");
        assert!(thinker.opens(b"think") && !thinker.opens(b"<"));
        taken(&mut thinker, &said("think>"));
        assert_eq!(thinker.next(), Next::Thoughts);
        assert!(thinker.may_think(b"a") && thinker.may_think(b"</think>"));
        assert!(!thinker.may_think(b"") && !thinker.may_think(b"\xFF<|end|>"));
        assert!(!thinker.may_think(b"</think>{") && thinker.may_think(b"</think>\n"));
        taken(&mut thinker, &[257, 258]);
        assert!(thinker.may_think(b">") && thinker.may_think(b">\n") && !thinker.may_think(b">{"));
        taken(&mut thinker, &[259]);
        assert_eq!(thinker.next(), Next::Forced(72));
        taken(&mut thinker, &[72]);
        assert_eq!(thinker.next(), Next::Says);
        assert!(thinker.is_gap(b"\n") && thinker.is_gap(b" \n ") && !thinker.is_gap(b"    "));
        assert!(!thinker.is_gap(b"") && !thinker.is_gap(b"{"));
    }

    #[test]
    fn thoughts_are_bounded() {
        for (begun, most, tokens) in [(true, 0, ""), (true, 2, "ab"), (false, 1, "<think>a")] {
            for has_grammar in [true, false] {
                let mut thinker = Thinker::new(&thinking(begun, Some(most)), has_grammar);
                for token in said(tokens) {
                    assert!(!matches!(thinker.next(), Next::Forced(_)), "{tokens}");
                    thinker.take(token, &word(token));
                }
                let head: &[TokenId] = if has_grammar { &[72] } else { &[] };
                for token in [&[10, 257, 258, 259], head].concat() {
                    assert_eq!(thinker.next(), Next::Forced(token), "{tokens}");
                    assert_eq!(thinker.take(token, &word(token)), Part::Thoughts);
                }
                assert_eq!(thinker.next(), Next::Says);
                assert_eq!(thinker.is_over(), !has_grammar);
            }
        }
    }

    /// GLM's begin with a new line.
    #[test]
    fn thoughts_behind_white_space_are_bounded_too() {
        let mut thinker = Thinker::new(&thinking(false, Some(1)), false);
        taken(&mut thinker, &said("\n<think>a"));
        assert_eq!(thinker.next(), Next::Forced(10));
    }

    /// Magistral's calls may begin without an end of its thoughts, and gpt-oss's next message.
    #[test]
    fn a_mark_of_something_else_leaves_thoughts() {
        let check = |mark: &[u8], is_left: bool| {
            let mut thinker = Thinker::new(&thinking(true, Some(3)), false);
            thinker.take(97, b"a");
            thinker.take(300, mark);
            assert_eq!(thinker.is_over(), is_left, "{mark:?}");
        };
        check(b"\xFF[TOOL_CALLS]", true);
        check(b"\xFF</", false);
        check(b"\xFF<think>", false);
        check(b"[TOOL_CALLS]", false);
    }

    #[test]
    fn marks_may_be_tokens() {
        let close = "<|end|>".to_owned();
        let thinking =
            Thinking { begun: false, open: "<|channel|>a".into(), close, ..thinking(false, None) };
        let mut thinker = Thinker::new(&thinking, true);
        assert!(thinker.opens(name(WORDS[5])) && !thinker.opens(name(WORDS[4])));
        thinker.take(261, WORDS[5]);
        thinker.take(97, b"a");
        assert!(thinker.may_think(WORDS[4]) && !thinker.may_think(WORDS[5]));
        assert_eq!(thinker.take(260, WORDS[4]), Part::Thoughts);
        assert_eq!(thinker.next(), Next::Forced(72));
    }
}

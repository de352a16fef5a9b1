//! Finds what closes a block of calls that is only read when it is whole.

use super::head::begun;

/// Marks within one block that do not close it. Each may cost a reading of the block, so one that
/// has so many is text.
const REFUSED_MAX: usize = 32;

/// Where a block's end is sought. What was looked at is not looked at again, as no verdict on it
/// changes with what follows.
#[derive(Debug, Clone, Default)]
pub(super) struct Closing {
    /// Bytes that were looked at.
    seen: usize,
    in_text: bool,
    escaped: bool,
    /// Where the first mark is that does not close the block.
    first: Option<usize>,
    refused: usize,
}

impl Closing {
    /// Where `close` ends a block of JSON: outside its texts. Where too many are within them, it
    /// is the first.
    pub(super) fn of_json(&mut self, held: &str, close: &str) -> Option<usize> {
        // A mark of which more may come is looked at when that has come.
        let end = held.len() - begun(held, close);
        while self.seen < end {
            let at = self.seen;
            let rest = &held.as_bytes()[at..];
            let is_mark = rest.starts_with(close.as_bytes());
            if is_mark && !self.in_text {
                return Some(at);
            }
            self.seen += 1;
            if is_mark && self.has_refused_all(at) {
                return self.first;
            }
            (self.in_text, self.escaped) = match rest[0] {
                b'"' if !self.escaped => (!self.in_text, false),
                b'\\' if self.in_text => (true, !self.escaped),
                _ => (self.in_text, false),
            };
        }
        None
    }

    /// The same where `is_whole` says of what stands before a mark whether it is calls.
    pub(super) fn by(
        &mut self,
        held: &str,
        close: &str,
        is_whole: impl Fn(&str) -> bool,
    ) -> Option<usize> {
        while let Some(found) = held[self.seen..].find(close) {
            let at = self.seen + found;
            if is_whole(&held[..at]) {
                return Some(at);
            }
            self.seen = at + close.len();
            if self.has_refused_all(at) {
                return self.first;
            }
        }
        self.seen = self.seen.max(held.len() - begun(held, close));
        None
    }

    /// The first mark that does not close the block, where nothing follows that might.
    pub(super) fn first(&self) -> Option<usize> {
        self.first
    }

    fn has_refused_all(&mut self, at: usize) -> bool {
        self.first.get_or_insert(at);
        self.refused += 1;
        self.refused >= REFUSED_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Where the block's end is found in `text` that comes in pieces of `cut` bytes.
    fn found(text: &str, cut: usize) -> Option<usize> {
        let mut closing = Closing::default();
        let mut ends = (cut..text.len()).step_by(cut).chain([text.len()]);
        ends.find_map(|end| closing.of_json(&text[..end], "</c>"))
    }

    #[test]
    fn json_ends_outside_its_texts() {
        for cut in [1, 2, 5, 100] {
            assert_eq!(found("{\"x\": 1}</c>", cut), Some(8));
            assert_eq!(found("{\"x\": \"</c>\\\"</c>\"}</c>", cut), Some(19));
            assert_eq!(found("{\"x\": \"</c>", cut), None);
            assert_eq!(found("\\\"</c>\"</c>", cut), Some(7));
            assert_eq!(found(&format!("{{\"{}", "</c>".repeat(REFUSED_MAX - 1)), cut), None);
            assert_eq!(found(&format!("{{\"{}", "</c>".repeat(REFUSED_MAX)), cut), Some(2));
        }
    }

    #[test]
    fn each_mark_is_judged_once() {
        let (judged, mut closing) = (Cell::new(0), Closing::default());
        let text = "a</c>b</c></c";
        let is_whole = |_: &str| {
            judged.set(judged.get() + 1);
            false
        };
        for end in 0..=text.len() {
            assert_eq!(closing.by(&text[..end], "</c>", is_whole), None);
        }
        assert_eq!((judged.get(), closing.first()), (2, Some(1)));
        let many = format!("{text}>{}", "</c>".repeat(1000));
        assert_eq!(closing.by(&many, "</c>", is_whole), Some(1));
        assert_eq!(judged.get(), REFUSED_MAX);
        let mut closing = Closing::default();
        assert_eq!(closing.by("a</c>b</c>", "</c>", |before| before == "a</c>b"), Some(6));
    }
}

//! Finds stop strings in streamed text, and holds back what might become one.

/// Watches one completion for its stop strings.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    found: Option<String>,
}

impl StopMatcher {
    /// Empty strings among `stops` match nothing.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, held: String::new(), found: None }
    }

    /// Takes more text and returns what can be shown: everything before the first stop string,
    /// less what may still turn out to be the beginning of one.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped() {
            return String::new();
        }
        self.held.push_str(text);
        if let Some((start, stop)) = self.first_stop() {
            self.found = Some(stop.clone());
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let keep = self.possible_beginning();
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// Whether a stop string was found; nothing is shown after it.
    pub fn stopped(&self) -> bool {
        self.found.is_some()
    }

    /// The stop string that was found.
    pub fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// What was held back, when no more text follows.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the first stop string begins, and which it is. The one that is complete first wins, as
    /// it would if the text came byte by byte; among those the longest, which begins first.
    fn first_stop(&self) -> Option<(usize, &String)> {
        let found = self.stops.iter().filter_map(|stop| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, stop))
        });
        found.min().map(|(_, start, stop)| (start, stop))
    }

    /// Bytes at the end of the held text that begin some stop string.
    fn possible_beginning(&self) -> usize {
        let begins = |stop: &String, bytes: usize| {
            stop.is_char_boundary(bytes) && self.held.ends_with(&stop[..bytes])
        };
        let longest = |stop: &String| (1..stop.len()).rev().find(|&bytes| begins(stop, bytes));
        self.stops.iter().filter_map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(stops: &[String], parts: &[String]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops);
        let mut shown: String = parts.iter().map(|part| matcher.push(part)).collect();
        shown += &matcher.finish();
        (shown, matcher.stopped())
    }

    /// Looks at every prefix of the text, character by character.
    fn naive(stops: &[String], text: &str) -> (String, bool) {
        for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let ending = |stop: &&String| !stop.is_empty() && text[..end].ends_with(stop.as_str());
            if let Some(longest) = stops.iter().filter(ending).map(String::len).max() {
                return (text[..end - longest].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_search(
            stops in proptest::collection::vec("[abé]{0,4}", 0..4),
            parts in proptest::collection::vec("[abéc]{0,3}", 0..12),
        ) {
            prop_assert_eq!(stream(&stops, &parts), naive(&stops, &parts.concat()));
        }
    }

    #[test]
    fn holds_back_only_what_may_become_a_stop_string() {
        let mut matcher = StopMatcher::new(&["\n\nQ:".into()]);
        assert_eq!(matcher.push("an answer\n"), "an answer");
        assert_eq!(matcher.push("more\n\n"), "\nmore");
        assert_eq!(matcher.push("Q"), "");
        assert_eq!(matcher.push("uite\n\nQ: next"), "\n\nQuite");
        assert!(matcher.stopped());
        assert_eq!(matcher.push("x") + &matcher.finish(), "");
    }
}

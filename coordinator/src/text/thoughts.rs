//! Thoughts between tags, as Qwen 3, DeepSeek R1 and others have them at the beginning of an
//! answer:
//!
//! ```text
//! <think>
//! The pond is meant.
//! </think>
//!
//! At Walden.
//! ```
//!
//! Some templates write the opening tag themselves, so that the answer begins within thoughts.
//! The tags are text in some vocabularies, and in others tokens of their own.

use super::Heard;

/// What thoughts stand between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tags {
    open: &'static str,
    close: &'static str,
    /// What no text has, and the first tag begins with, where thoughts may stand behind text too.
    mark: Option<&'static str>,
}

/// Those of models that are known.
const KNOWN: [Tags; 5] = [
    Tags::first("<think>", "</think>"),
    Tags::first("[THINK]", "[/THINK]"),
    Tags::first("<seed:think>", "</seed:think>"),
    Tags::first("<|START_THINKING|>", "<|END_THINKING|>"),
    // Gemma 4, which ends what it says with an empty thought now and then.
    Tags { open: "<|channel>thought", close: "<channel|>", mark: Some("<|channel>") },
];

/// Between thoughts that text stands between.
pub(crate) const BETWEEN_THOUGHTS: &str = "\n\n";

impl Tags {
    /// Those of thoughts that stand before text.
    const fn first(open: &'static str, close: &'static str) -> Self {
        Self { open, close, mark: None }
    }

    /// Those that models of this chat template think between.
    pub(super) fn of(template: &str) -> Option<Self> {
        let closes = KNOWN.into_iter().find(|tags| template.contains(tags.close));
        // Who begins them in every prompt, and shows none that are over, has no more than that.
        closes.or_else(|| KNOWN.into_iter().find(|tags| template.contains(tags.open)))
    }

    /// Whether thoughts are begun where `prompt` ends.
    pub(super) fn are_open(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open)
    }

    /// Whether thoughts are over where `prompt` ends.
    pub(super) fn are_closed(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.close)
    }

    /// What they begin with, and end with.
    pub(super) fn both(self) -> (&'static str, &'static str) {
        (self.open, self.close)
    }

    /// What ends thoughts that were begun where `prompt` ends, as Qwen's template writes none, or
    /// Gemma's; or behind thoughts, which no prompt has.
    pub(super) fn end(self, prompt: &str) -> String {
        if self.mark.is_some() {
            let line = if prompt.ends_with('\n') { "" } else { "\n" };
            return format!("{line}{}", self.close);
        }
        let line = if prompt.is_empty() || prompt.ends_with('\n') { "\n" } else { "\n\n" };
        format!("{line}{}\n\n", self.close)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing was said; `begun`: not even the tag is needed for thoughts.
    Before { begun: bool },
    /// Between the tags. `spoke`: there was a thought.
    Within { spoke: bool },
    /// They are over, and nothing was said since.
    Behind,
    /// For the caller.
    Text,
}

/// Tells what one answer says from what was thought before it. Space around either is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Thoughts {
    tags: Tags,
    state: State,
    /// What may be a tag, or space before one.
    held: String,
    /// What thoughts behind text begin with, if there may be any.
    mark: Option<&'static str>,
    /// Whether there was a thought.
    thought: bool,
}

impl Thoughts {
    /// For one answer; `begun`: its prompt ends within thoughts.
    pub(crate) fn new(tags: Tags, begun: bool) -> Self {
        let (state, held) = (State::Before { begun }, String::new());
        Self { tags, state, held, mark: tags.mark, thought: false }
    }

    /// For one answer, of which all is text: the tags too, where they are tokens of their own.
    pub(crate) fn shown(tags: Tags) -> Self {
        Self { mark: None, ..Self::over(tags) }
    }

    /// For one answer, before which thoughts are over.
    pub(crate) fn over(tags: Tags) -> Self {
        Self { state: State::Text, ..Self::new(tags, false) }
    }

    /// Takes more text.
    pub(crate) fn say(&mut self, text: String) -> Heard {
        if self.state == State::Text && self.mark.is_none() {
            return Heard::text(text);
        }
        self.held.push_str(&text);
        let mut heard = Heard::default();
        while self.step(&mut heard) {}
        heard
    }

    /// Takes a token that is no text, unless it is a tag.
    pub(crate) fn mark(&mut self, mark: &str) -> Heard {
        let Tags { open, close, mark: begin } = self.tags;
        match [open, close].contains(&mark) || begin == Some(mark) {
            true => self.say(mark.to_owned()),
            false => Heard::default(),
        }
    }

    /// Whether text is for the caller to read.
    pub(crate) fn is_text(&self) -> bool {
        self.state == State::Text
    }

    /// Whether what was said so far may be text or the mark of thoughts.
    pub(crate) fn is_undecided(&self) -> bool {
        self.state == State::Before { begun: false }
    }

    /// Whether the model is thinking.
    pub(crate) fn is_thinking(&self) -> bool {
        matches!(self.state, State::Within { .. } | State::Before { begun: true })
    }

    /// What was held back, when nothing follows.
    pub(crate) fn finish(&mut self) -> Heard {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Before { begun: false } | State::Text => {
                let cut = self.mark.and_then(|mark| held.find(mark));
                Heard::text(held[..cut.unwrap_or(held.len())].to_owned())
            }
            State::Before { begun: true } | State::Within { .. } => {
                let thought = held.trim_end();
                let is_new = self.state != State::Within { spoke: true };
                let thought = if is_new { thought.trim_start() } else { thought };
                let reasoning = format!("{}{thought}", self.between(is_new, thought));
                Heard { reasoning, ..Heard::default() }
            }
            State::Behind => Heard::default(),
        }
    }

    /// Goes from one state to the next; false when that takes more text.
    fn step(&mut self, heard: &mut Heard) -> bool {
        let Tags { open, close, .. } = self.tags;
        match self.state {
            State::Before { begun } => {
                let said = self.held.trim_start();
                if let Some(rest) = said.strip_prefix(open) {
                    self.held = rest.to_owned();
                    self.state = State::Within { spoke: false };
                } else if open.starts_with(said) {
                    return false; // nothing, or a part of the tag
                } else {
                    self.state = if begun { State::Within { spoke: false } } else { State::Text };
                }
                true
            }
            State::Within { spoke } => {
                let end = self.held.find(close);
                let open_end = self.held.len() - begun_bytes(&self.held, close);
                let thought = &self.held[..end.unwrap_or(open_end)];
                let is_new = !spoke;
                let thought = if is_new { thought.trim_start() } else { thought };
                let shown = thought.trim_end();
                heard.reasoning.push_str(self.between(is_new, shown));
                heard.reasoning.push_str(shown);
                self.thought |= !shown.is_empty();
                let spoke = spoke || !shown.is_empty();
                let kept = thought.len() - shown.len();
                self.held = match end {
                    Some(end) => self.held[end + close.len()..].to_owned(),
                    None => self.held[open_end - kept..].to_owned(),
                };
                self.state = if end.is_some() { State::Behind } else { State::Within { spoke } };
                end.is_some()
            }
            State::Behind => {
                self.held = self.held.trim_start().to_owned();
                let is_said = !self.held.is_empty();
                if is_said {
                    self.state = State::Text;
                }
                is_said
            }
            State::Text => self.text(heard),
        }
    }

    /// What is told before `thought`; `is_new`: which is the first of its own.
    fn between(&self, is_new: bool, thought: &str) -> &'static str {
        if is_new && self.thought && !thought.is_empty() { BETWEEN_THOUGHTS } else { "" }
    }

    /// Goes on with text, up to thoughts behind it; tags without any are dropped.
    fn text(&mut self, heard: &mut Heard) -> bool {
        let Some(mark) = self.mark else {
            heard.text.push_str(&std::mem::take(&mut self.held));
            return false;
        };
        let Tags { open, close, .. } = self.tags;
        let found = [mark, close].into_iter().filter_map(|tag| Some((self.held.find(tag)?, tag)));
        let begun = || begun_bytes(&self.held, mark).max(begun_bytes(&self.held, close));
        let found = found.min();
        let bytes = found.map_or_else(|| self.held.len() - begun(), |(at, _)| at);
        let rest = self.held.split_off(bytes);
        heard.text.push_str(&std::mem::replace(&mut self.held, rest));
        let Some((_, tag)) = found else { return false };
        if let Some(rest) = self.held.strip_prefix(open) {
            self.held = rest.to_owned();
            self.state = State::Within { spoke: false };
        } else if open.starts_with(&self.held) {
            return false;
        } else {
            self.held.drain(..tag.len());
        }
        true
    }
}

/// Bytes at the end of `text` that `tag` may begin with.
fn begun_bytes(text: &str, tag: &str) -> usize {
    let most = tag.len().saturating_sub(1).min(text.len());
    (1..=most).rev().find(|bytes| text.ends_with(&tag[..*bytes])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TAGS: Tags = KNOWN[0];

    fn heard(begun: bool, answer: &str, cut: usize) -> (String, String) {
        heard_by(Thoughts::new(TAGS, begun), answer, cut)
    }

    fn heard_by(mut thoughts: Thoughts, answer: &str, cut: usize) -> (String, String) {
        let characters: Vec<char> = answer.chars().collect();
        let mut all: Vec<Heard> =
            characters.chunks(cut).map(|part| thoughts.say(part.iter().collect())).collect();
        all.push(thoughts.finish());
        let text = all.iter().map(|heard| heard.text.as_str()).collect();
        (text, all.iter().map(|heard| heard.reasoning.as_str()).collect())
    }

    fn check(begun: bool, answer: &str, text: &str, reasoning: &str) {
        for cut in [1, 2, 5, 1000] {
            let got = heard(begun, answer, cut);
            let want = (text.to_owned(), reasoning.to_owned());
            assert_eq!(got, want, "{answer:?} by {cut}, begun {begun}");
        }
    }

    #[test]
    fn thoughts_are_told_apart() {
        check(false, "<think>\nHm, 1 < 2.\n</think>\n\nTwo.", "Two.", "Hm, 1 < 2.");
        check(true, "\nHm, 1 < 2.\n</think>\n\nTwo.", "Two.", "Hm, 1 < 2.");
        check(true, "<think>\nHm.\n</think>\n\nTwo.", "Two.", "Hm.");
        check(false, "\n<think>\n\n</think>\n\nTwo. \n", "Two. \n", "");
        check(true, "\n</think>Two.", "Two.", "");
        check(false, " Two <think>, <b>.\n", " Two <think>, <b>.\n", "");
        check(false, "Two.</think>", "Two.</think>", "");
        check(false, "<thin air> </think>", "<thin air> </think>", "");
        check(false, "<think>a</think> b <think>c</think>", "b <think>c</think>", "a");
        check(false, "<think>a \n\n b</thin c", "", "a \n\n b</thin c");
    }

    #[test]
    fn an_answer_may_end_anywhere() {
        check(false, "", "", "");
        check(true, "", "", "");
        check(false, " \n", " \n", "");
        check(false, "<thi", "<thi", "");
        check(true, "<thi", "", "<thi");
        check(false, "<think>", "", "");
        check(false, "<think>\nHm \n", "", "Hm");
        check(false, "<think>\nHm \n</th", "", "Hm \n</th");
        check(false, "<think>\nHm \n</think> \n", "", "Hm");
    }

    /// As Gemma 4 has them, whose template ends thoughts that are not wanted.
    #[test]
    fn thoughts_may_stand_behind_text() {
        let check = |thoughts: fn(Tags) -> Thoughts, answer: &str, text: &str, reasoning: &str| {
            for cut in [1, 2, 5, 1000] {
                let got = heard_by(thoughts(KNOWN[4]), answer, cut);
                assert_eq!(got, (text.to_owned(), reasoning.to_owned()), "{answer:?} by {cut}");
            }
        };
        let none = "<|channel>thought\n<channel|>";
        let new: [fn(Tags) -> Thoughts; 2] = [|tags| Thoughts::new(tags, false), Thoughts::over];
        for new in new {
            check(new, "Two, <b>.\n", "Two, <b>.\n", "");
            check(new, "Two.<channel|>", "Two.", "");
            check(new, &format!("Two.{none}"), "Two.", "");
            check(new, &format!("Two.{none}<channel|>"), "Two.", "");
            check(new, "<|channel><|channel>thought\nHm.\n<channel|>Two.", "Two.", "Hm.");
            check(new, "<|channel>thought<channel|>Two.", "Two.", "");
            check(new, "A<|channel>thought\nb<channel|>\nC<|channel>thought\nd", "AC", "b\n\nd");
            check(new, "Two.<|channel>", "Two.", "");
            check(new, "Two.<|channel>thou", "Two.", "");
            check(new, "Two.<|chan", "Two.<|chan", "");
            check(new, "<|channel>other", "other", "");
        }
        let begun = |tags| Thoughts::new(tags, true);
        check(begun, "Hm.\n<channel|>Two.", "Two.", "Hm.");
        check(begun, &format!("Hm.\n<channel|>Two.{none}"), "Two.", "Hm.");
        let all = format!("{none}Two.");
        check(Thoughts::shown, &all, &all, "");
        let mut thoughts = Thoughts::new(KNOWN[4], false);
        assert_eq!(thoughts.mark("<|channel>"), Heard::default());
        assert_eq!(thoughts.say("thought\nHm.".into()).reasoning, "Hm.");
        assert!(thoughts.is_thinking());
        assert_eq!(thoughts.mark("<channel|>"), Heard::default());
        assert_eq!(thoughts.say("Two.".into()), Heard::text("Two.".into()));
        assert_eq!(thoughts.mark("<|turn>"), Heard::default());
        for prompt in ["<|channel>thought", "<|channel>thought\n"] {
            assert!(KNOWN[4].are_open(prompt));
            let ended = format!("{prompt}{}", KNOWN[4].end(prompt));
            assert_eq!(ended, none);
            assert!(KNOWN[4].are_closed(&ended));
        }
    }

    #[test]
    fn tags_may_be_tokens_of_their_own() {
        let mut thoughts = Thoughts::new(KNOWN[1], false);
        assert_eq!(thoughts.mark("[THINK]"), Heard::default());
        assert!(thoughts.is_thinking());
        assert_eq!(thoughts.mark("[INST]"), Heard::default());
        assert_eq!(thoughts.say("Hm.".into()).reasoning, "Hm.");
        assert_eq!(thoughts.mark("[/THINK]"), Heard::default());
        assert!(!thoughts.is_thinking());
        assert_eq!(thoughts.say("Two.".into()), Heard::text("Two.".into()));
        assert!(thoughts.is_text());
    }

    #[test]
    fn templates_have_them() {
        assert_eq!(Tags::of("{{ content.split('</think>')[-1] }}"), Some(KNOWN[0]));
        assert_eq!(Tags::of("[THINK]{{ thought }}[/THINK]"), Some(KNOWN[1]));
        assert_eq!(Tags::of("<|START_THINKING|>{{ plan }}<|END_THINKING|>"), Some(KNOWN[3]));
        assert_eq!(Tags::of("{{ content }}<|im_start|>assistant\n<think>"), Some(KNOWN[0]));
        let gemma = "'<|channel>thought\\n' + thinking_text + '\\n<channel|>'";
        assert_eq!(Tags::of(gemma), Some(KNOWN[4]));
        assert_eq!(Tags::of("<|channel|>final<|message|>"), None);
        assert_eq!(Tags::of("{{ content }}"), None);
        assert!(TAGS.are_open("<|assistant|><think>\n") && !TAGS.are_open("<think></think>"));
        for prompt in ["<think>", "<think>\n"] {
            let ended = format!("{prompt}{}", TAGS.end(prompt));
            assert_eq!(ended, "<think>\n\n</think>\n\n");
        }
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(
            answer in "(<think>|</think>|<thi|</|k>|>|<|\n| |a|é){0,12}",
            begun: bool,
            cut in 1usize..6,
        ) {
            let whole = heard(begun, &answer, 1000);
            prop_assert_eq!(heard(begun, &answer, cut), whole);
        }

        #[test]
        fn cuts_do_not_matter_behind_text(
            answer in "(<\\|channel>thought|<\\|channel>|<channel\\|>|<\\|ch|thought|<|\n| |a|é)\
                {0,12}",
            begun: bool,
            cut in 1usize..6,
        ) {
            let new = || Thoughts::new(KNOWN[4], begun);
            let whole = heard_by(new(), &answer, 1000);
            prop_assert_eq!(heard_by(new(), &answer, cut), whole);
        }
    }
}

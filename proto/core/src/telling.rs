//! How an answer is told: what the side that speaks to callers must know of it again, when a
//! caller comes back to it and who served it before is gone.

use crate::{Refusal, RequestId, limits};

/// How an answer is told. Its tokens do not depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Telling {
    /// Its caller may come back to it, so a connection that is lost does not cancel it.
    pub resumable: bool,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// Whether completions continue the prompt's text, rather than answer it.
    pub continues: bool,
    /// Whether they go on with a message that the prompt's chat ends within.
    pub goes_on: bool,
    /// Where their thoughts are told.
    pub thoughts: ThoughtsTold,
    /// Whether tools may be called.
    pub tools: bool,
    /// Arguments of tools that are texts, whatever they look like: each its tool's name, a space,
    /// and its own. For models that write no types. And the names of all tools, alone, and an empty
    /// one where the answer is calls and nothing else.
    pub text_arguments: Vec<String>,
    /// Whether no more than one call of each answer is told of.
    pub one_call: bool,
    /// Whether token counts are told at the end.
    pub usage: bool,
    /// Whether it is told how far the prefill is.
    pub progress: bool,
    /// What its caller is to be told besides.
    pub warnings: Vec<String>,
    /// The public part of the API key that its caller has shown; empty where none was asked for.
    pub holder: String,
    /// Tokens of all turns up to the prompt's end, which is not kept for as long as the answer.
    pub prompt_tokens: u32,
    /// When it was asked for, in seconds since 1970.
    pub created_at_s: u64,
    /// By what its caller, or a member of the group by way of which it came, may ask for it more
    /// than once; `None`: each time it is another one.
    pub once: Option<StartKey>,
}

/// Where that is told which a model thinks before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThoughtsTold {
    /// Beside the answer's text, without the tags.
    #[default]
    Apart,
    /// The same, where the prompt ends with the opening tag.
    ApartFromTheStart,
    /// In the text, as they were generated.
    AsText,
    /// Nowhere: the prompt ends behind them, where the words begin that are for the caller.
    Over,
}

/// By what the start of a request is known: one that is made again, because its answer was lost,
/// is the same one. A key is its caller's, so that of another API key is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartKey {
    /// As the caller made it: visible ASCII.
    pub name: String,
    /// A digest of all that was asked for under it.
    pub content: [u8; 32],
}

impl StartKey {
    /// Checks the key.
    ///
    /// # Errors
    /// One that is empty, too long, or not of visible ASCII characters.
    pub fn validate(&self) -> Result<(), Refusal> {
        let (name, most) = (&self.name, limits::IDEMPOTENCY_KEY_BYTES_MAX);
        Refusal::unless_within("idempotency_key bytes", name.len(), 1, most)?;
        match name.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(()),
            false => Err(Refusal::new("idempotency_key", format!("{name:?}"), "visible ASCII")),
        }
    }

    /// Why a request of other content is not started: `request` has the key.
    pub fn taken_by(&self, request: RequestId) -> Refusal {
        let bound = format!("one of its own, for {request} was asked for something else with it");
        Refusal::new("idempotency_key", &self.name, bound)
    }
}

impl Telling {
    /// Checks every field against its bound.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn validate(&self) -> Result<(), Refusal> {
        Refusal::unless_within("stop", self.stop.len(), 0, limits::STOP_STRINGS_MAX)?;
        for (idx, stop) in self.stop.iter().enumerate() {
            let field = format!("stop[{idx}] bytes");
            Refusal::unless_within(&field, stop.len(), 1, limits::STOP_BYTES_MAX)?;
        }
        let bytes = self.warnings.iter().map(String::len).sum();
        Refusal::unless_within("warnings bytes", bytes, 0, limits::WARNING_BYTES_MAX)?;
        let bytes = self.text_arguments.iter().map(String::len).sum();
        let most = limits::TEXT_ARGUMENTS_BYTES_MAX;
        Refusal::unless_within("text_arguments bytes", bytes, 0, most)?;
        let most = limits::API_KEY_BYTES_MAX;
        Refusal::unless_within("holder bytes", self.holder.len(), 0, most)?;
        let most = limits::PROMPT_TOKENS_MAX;
        Refusal::unless_within("prompt_tokens", self.prompt_tokens, 0, most)?;
        self.once.as_ref().map_or(Ok(()), StartKey::validate)
    }

    /// Whether `holder`, by whose key it was asked for or not, may come back to it.
    pub fn is_for(&self, holder: &str) -> bool {
        self.resumable && self.holder == holder
    }

    /// Whether a member of the group that has passed its call on stays with it: it has a name, and
    /// nobody comes back to it.
    pub fn is_escorted(&self) -> bool {
        self.once.is_some() && !self.resumable
    }

    /// About how much memory it takes; the same wherever it is kept.
    pub fn bytes(&self) -> u64 {
        let texts = self.stop.iter().chain(&self.warnings).chain(&self.text_arguments);
        let texts = texts.chain([&self.holder]);
        let once = self.once.as_ref().map_or(0, |once| once.name.len() + once.content.len());
        texts.map(|text| text.len() as u64).sum::<u64>() + once as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_by_field() {
        let check = |change: fn(&mut Telling), want: &str| {
            let mut telling = Telling { stop: vec!["\n".into()], ..Telling::default() };
            change(&mut telling);
            let got = telling.validate().map_err(|refusal| refusal.to_string()).err();
            assert_eq!(got.unwrap_or_default(), want);
        };
        check(|_| (), "");
        check(|bad| bad.stop = vec!["a".into(); 17], "stop = 17: must be between 0 and 16");
        let empty = "stop[1] bytes = 0: must be between 1 and 1024";
        check(|bad| bad.stop.push(String::new()), empty);
        let long = "warnings bytes = 16385: must be between 0 and 16384";
        check(|bad| bad.warnings = vec!["a".repeat(16385)], long);
        let long = "text_arguments bytes = 65537: must be between 0 and 65536";
        check(|bad| bad.text_arguments = vec!["a".repeat(65537)], long);
        let long = "holder bytes = 129: must be between 0 and 128";
        check(|bad| bad.holder = "a".repeat(129), long);
        let most = "prompt_tokens = 4294967295: must be between 0 and 16777216";
        check(|bad| bad.prompt_tokens = u32::MAX, most);
        fn keyed(bad: &mut Telling, name: &str) {
            bad.once = Some(StartKey { name: name.to_owned(), content: [0; 32] });
        }
        check(|bad| keyed(bad, &"k".repeat(255)), "");
        let long = "idempotency_key bytes = 256: must be between 1 and 255";
        check(|bad| keyed(bad, &"k".repeat(256)), long);
        check(|bad| keyed(bad, ""), "idempotency_key bytes = 0: must be between 1 and 255");
        let spaced = "idempotency_key = \"two words\": must be visible ASCII";
        check(|bad| keyed(bad, "two words"), spaced);
    }
}

//! What an answer to a chat is made to be: how long it may think, and what it must look like.

use aqueduct_core::{Constraint, Form, Grammar, Refusal, Thinking, ThoughtsTold, TokenId};

use super::hearing::Behind;
use super::{Ending, TextModel};

/// Field of a call that has the budget.
pub(crate) const BUDGET: &str = "thinking_token_budget";

/// An answer of fewer tokens that must look like something has no room for thoughts: where they
/// begin and end takes a dozen.
const FEW_TOKENS: u32 = 64;

/// How many tokens a model may think.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Budget {
    /// Nobody said: any number, and before what follows a grammar half of those that there are,
    /// none of fewer than 64.
    #[default]
    Unsaid,
    Any,
    Most(u32),
}

/// What a caller wants of an answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    pub(crate) budget: Budget,
    /// What it must look like, and the field that says so.
    pub(crate) grammar: Option<(&'static str, Grammar)>,
    /// Whether the grammar has what stands around words, heads of messages for instance.
    pub(crate) has_heads: bool,
    /// Whether tools may be called.
    pub(crate) tools: bool,
}

impl Wanted {
    /// Where the prompt ends that asks for such an answer of at most `max_tokens`.
    pub(crate) fn ending(&self, max_tokens: u32) -> Ending {
        match self.grammar.is_some() && !self.has_heads && self.most(max_tokens) == Some(0) {
            true => Ending::Says,
            false => Ending::Asks,
        }
    }

    /// Tokens of thoughts, if there is a bound, of an answer of at most `max_tokens`.
    fn most(&self, max_tokens: u32) -> Option<u32> {
        match self.budget {
            Budget::Most(most) => Some(most),
            Budget::Unsaid if self.grammar.is_none() => None,
            Budget::Unsaid if max_tokens < FEW_TOKENS => Some(0),
            Budget::Unsaid => Some(max_tokens / 2),
            Budget::Any => None,
        }
    }
}

impl TextModel {
    /// What makes the answers to `prompt`, which ends so, what is wanted, and where their thoughts
    /// are told. An answer has `max_tokens` at most.
    ///
    /// # Errors
    /// A grammar that cannot be followed; a budget for thoughts of which nothing is known.
    pub(crate) fn form(
        &self,
        (prompt, ending): (&str, Ending),
        max_tokens: u32,
        wanted: Wanted,
    ) -> Result<(Option<Constraint>, ThoughtsTold), Refusal> {
        let speech = self.template().speech();
        if matches!(wanted.budget, Budget::Most(_)) && !speech.thinks() {
            let bound = "absent: nothing is known of thoughts of this model's";
            return Err(Refusal::new(BUDGET, "present", bound));
        }
        let has_grammar = wanted.grammar.is_some();
        let most = wanted.most(max_tokens);
        let behind = match (has_grammar, wanted.has_heads) {
            (true, true) => Behind::Messages,
            (true, false) => Behind::Words,
            (false, _) if wanted.tools => Behind::Calls,
            (false, _) => Behind::Anything,
        };
        let is_asked = ending == Ending::Asks && (has_grammar || most.is_some());
        let thinking = match is_asked {
            true => self.thinking(prompt, behind, most)?,
            false => None,
        };
        let told = match behind == Behind::Words && thinking.is_none() {
            true => ThoughtsTold::Over,
            false => speech.thoughts_behind(prompt),
        };
        let (field, grammar) = wanted.grammar.unzip();
        let form = Form { thinking, grammar };
        let constraint = (!form.is_any()).then(|| self.constraint(field.unwrap_or(BUDGET), form));
        Ok((constraint.transpose()?, told))
    }

    /// What an answer to `prompt` thinks; `None` where that is over, or cannot begin.
    fn thinking(
        &self,
        prompt: &str,
        behind: Behind,
        most: Option<u32>,
    ) -> Result<Option<Thinking>, Refusal> {
        let Some(marks) = self.template().speech().marks(prompt, behind) else { return Ok(None) };
        let in_grammar = matches!(behind, Behind::Words | Behind::Messages);
        if in_grammar && most == Some(0) && !marks.begun {
            return Ok(None);
        }
        let spelled = |text: &str| -> Result<Vec<TokenId>, Refusal> {
            if text.is_empty() { Ok(Vec::new()) } else { self.encode(text, false) }
        };
        Ok(Some(Thinking {
            begun: marks.begun,
            always: marks.always,
            open: marks.open.to_owned(),
            close: marks.close.to_owned(),
            ending: spelled(&marks.ending)?,
            head: spelled(&marks.head)?,
            most,
        }))
    }
}

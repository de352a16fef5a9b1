//! Forms of answers, and the vocabulary that they are spelled in.

use std::sync::Arc;

use aqueduct_core::{Constraint, Refusal, TokenBytes};
use aqueduct_grammar::{Follower, Vocabulary};

/// The last vocabulary that a coordinator named: all coordinators of a cluster name the same.
#[derive(Default)]
pub(super) struct Grammars {
    known: Option<(Arc<TokenBytes>, Vocabulary)>,
}

impl Grammars {
    /// An answer that follows `constraint`, before its first token.
    ///
    /// # Errors
    /// A form that cannot be followed.
    pub(super) fn begin(
        &mut self,
        constraint: Option<&Constraint>,
    ) -> Result<Option<Follower>, Refusal> {
        let Some(Constraint { form, vocabulary }) = constraint else { return Ok(None) };
        if self.known.as_ref().is_none_or(|(known, _)| known != vocabulary) {
            self.known = Some((vocabulary.clone(), Vocabulary::new(vocabulary)?));
        }
        let known = self.known.as_ref();
        known.map(|(_, known)| known.compile("grammar", form)).transpose()
    }
}

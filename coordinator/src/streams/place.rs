//! Where in an answer somebody stands, whatever order its completions came in.

use std::fmt;
use std::str::FromStr;

use aqueduct_core::{Refusal, RequestId, limits};

use crate::generation::TextEvent;

/// What stands in place of numbers when nothing is left to be told.
const END: &str = "end";

/// The tokens of each completion that is known to have ended.
pub type Ended = [Option<u32>];

/// How far somebody has come with each completion: 0 before it, then one more with its beginning,
/// with each of its tokens and with its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place(Vec<u32>);

impl Place {
    /// Before everything.
    pub fn start(choices: u32) -> Self {
        Self(vec![0; choices as usize])
    }

    /// After so many events of each completion, of its tokens and its end; of none if there are
    /// no numbers.
    ///
    /// # Errors
    /// Numbers of other completions than there are.
    pub fn after(events: &[u32], choices: u32) -> Result<Self, Refusal> {
        if events.is_empty() {
            return Ok(Self(vec![1; choices as usize]));
        }
        let place = Self(events.iter().map(|events| events.saturating_add(1)).collect());
        place.check("next", choices)?;
        Ok(place)
    }

    /// Checks that it is one in an answer of so many completions; it comes from `field`.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self, field: &str, choices: u32) -> Result<(), Refusal> {
        let field = format!("completions in {field}");
        Refusal::unless_within(&field, self.0.len() as u32, choices, choices).map(drop)
    }

    /// Checks that it is not behind the end of a completion; it comes from `field`.
    ///
    /// # Errors
    /// It is.
    pub fn check_told(&self, field: &str, ended: &Ended) -> Result<(), Refusal> {
        let is_beyond = |(steps, tokens): (&u32, &Option<u32>)| {
            tokens.filter(|tokens| *steps > tokens.saturating_add(2))
        };
        match self.0.iter().zip(ended).find_map(is_beyond) {
            None => Ok(()),
            Some(tokens) => {
                let bound = format!("no place behind the end of a completion of {tokens} tokens");
                Err(Refusal::new(field, self, bound))
            }
        }
    }

    /// Whether the beginning of a completion is new; then it is no more.
    pub(crate) fn takes_beginning(&mut self, choice: usize) -> bool {
        self.0.get_mut(choice).is_some_and(|steps| *steps == 0 && std::mem::replace(steps, 1) == 0)
    }

    /// Whether an event is new; then it is no more. What is no part of a completion is, until
    /// there are tokens.
    pub(crate) fn takes(&mut self, event: &TextEvent) -> bool {
        let (choice, steps) = match event {
            TextEvent::Token(token) => (token.emitted.choice, token.emitted.token_idx + 2),
            TextEvent::ChoiceDone { choice, tokens, .. } => (*choice, tokens + 2),
            TextEvent::Accepted { .. } => return true,
            _ => return self.0.iter().all(|steps| *steps <= 1),
        };
        let known = self.0.get_mut(choice as usize);
        known.is_some_and(|known| std::mem::replace(known, steps.max(*known)) < steps)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, steps) in self.0.iter().enumerate() {
            let dot = if idx > 0 { "." } else { "" };
            write!(f, "{dot}{steps}")?;
        }
        Ok(())
    }
}

/// The id of an event of a stream: the answer's, and the place behind the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventId {
    /// The request.
    pub request: RequestId,
    /// Where its caller stands; `None`: at the end.
    pub place: Option<Place>,
}

impl EventId {
    /// The id behind `place` of the answer that is called `answer`.
    pub(crate) fn of(answer: &str, place: Option<&Place>) -> String {
        match place {
            Some(place) => format!("{answer}:{place}"),
            None => format!("{answer}:{END}"),
        }
    }
}

/// The request whose answer is called so.
///
/// # Errors
/// A name that is none of an answer.
pub(crate) fn request_of(answer: &str) -> Result<RequestId, Refusal> {
    let name = ["cmpl-", "chatcmpl-"].iter().find_map(|kind| answer.strip_prefix(kind));
    name.unwrap_or(answer).parse()
}

impl FromStr for EventId {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let refusal = || Refusal::new("last-event-id", text, "the id of an event of an answer");
        if text.len() > limits::EVENT_ID_BYTES_MAX {
            return Err(refusal());
        }
        let (answer, place) = text.split_once(':').ok_or_else(refusal)?;
        let request = request_of(answer)?;
        if place == END {
            return Ok(Self { request, place: None });
        }
        let number = |digits: &str| {
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| is_number)
        };
        let steps: Option<Vec<u32>> = place.split('.').map(number).collect();
        Ok(Self { request, place: Some(Place(steps.ok_or_else(refusal)?)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        let request = RequestId(0xa1);
        for answer in [format!("cmpl-{request}"), format!("chatcmpl-{request}")] {
            for place in [Some(Place(vec![5, 0, 17])), Some(Place(vec![1])), None] {
                let id = EventId::of(&answer, place.as_ref());
                assert_eq!(id.parse(), Ok(EventId { request, place }), "{id}");
            }
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        let request = RequestId(7).to_string();
        let long = format!("{request}:{}", "1.".repeat(limits::EVENT_ID_BYTES_MAX));
        for place in [":", ":1.", ":.1", ":+1", ":4294967296", ":1,2", ":End", ""] {
            let id = format!("{request}{place}");
            assert_eq!(id.parse::<EventId>().unwrap_err().field, "last-event-id", "{id}");
        }
        for id in ["", "7:1", "other-r0000000000000007:1", &long] {
            assert!(id.parse::<EventId>().is_err(), "{id}");
        }
    }

    #[test]
    fn a_place_is_one_of_its_answer() {
        assert_eq!(Place::after(&[], 2), Ok(Place(vec![1, 1])));
        assert_eq!(Place::after(&[0, 4], 2), Ok(Place(vec![1, 5])));
        let refused = Place::after(&[3], 2).unwrap_err().to_string();
        assert_eq!(refused, "completions in next = 1: must be between 2 and 2");
        let check = |steps: u32, ended: Option<u32>, want: bool| {
            let told = Place(vec![1, steps]).check_told("last-event-id", &[None, ended]);
            assert_eq!(told.is_ok(), want, "{steps} of {ended:?}");
        };
        check(5, Some(3), true);
        check(6, Some(3), false);
        check(u32::MAX, None, true);
        check(u32::MAX, Some(u32::MAX), true);
    }
}

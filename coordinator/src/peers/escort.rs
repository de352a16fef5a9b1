//! A call that a member passes on and stays with until it is answered: where whoever answers is
//! lost, it is made once more, and who leads then knows it by its name.

use std::hash::{BuildHasher, RandomState};

use aqueduct_core::StartKey;
use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// Header by which a member says so: the call's name and, where it is made again, what for.
pub(super) const ESCORT: HeaderName = HeaderName::from_static("aqueduct-escort");

/// What stands behind the name: after this one, what was told last.
const FROM: &str = "from";
/// Or this alone, where nothing was told.
const AGAIN: &str = "again";

/// How such a call is made, beside the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Escort {
    /// No other call has it.
    pub(crate) name: String,
    pub(crate) made: Made,
}

/// Why a call is not answered that may be in a moment, here or elsewhere: said to the member that
/// stays with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotNow {
    /// Who had it has stopped, or does not lead any more: it goes on with the next one.
    Stopping,
    /// There is nobody who could.
    Unavailable,
}

impl NotNow {
    const STOPPING: &str = "stopping";
    const UNAVAILABLE: &str = "unavailable";

    /// Says so in the headers of an answer.
    pub(super) fn write(self, headers: &mut HeaderMap) {
        let text = match self {
            Self::Stopping => Self::STOPPING,
            Self::Unavailable => Self::UNAVAILABLE,
        };
        headers.insert(ESCORT, HeaderValue::from_static(text));
    }

    /// What was said in them.
    pub(super) fn take(headers: &mut HeaderMap) -> Option<Self> {
        match headers.remove(ESCORT)?.to_str().ok()? {
            Self::STOPPING => Some(Self::Stopping),
            Self::UNAVAILABLE => Some(Self::Unavailable),
            _ => None,
        }
    }
}

/// For what time a call is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Made {
    /// The first.
    First,
    /// Another one: nothing was told.
    Again,
    /// Another one: this was told last, as it was named.
    From(String),
}

impl Escort {
    /// A name for a call.
    pub(crate) fn draw_name() -> String {
        let draw = || RandomState::new().hash_one(());
        format!("passed-on-{:016x}{:016x}", draw(), draw())
    }

    /// By what the request is known that the call asks for with its prompt `idx`.
    pub(crate) fn start_key(&self, idx: usize) -> StartKey {
        // What is asked for under it is the same each time.
        StartKey { name: format!("{}.{idx}", self.name), content: [0; 32] }
    }

    /// Says so in the headers of a call.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        let Self { name, made } = self;
        let text = match made {
            Made::First => name.clone(),
            Made::Again => format!("{name} {AGAIN}"),
            Made::From(place) => format!("{name} {FROM} {place}"),
        };
        // Names and places are visible ASCII.
        headers.extend(HeaderValue::try_from(text).ok().map(|value| (ESCORT, value)));
    }

    /// What a member says in them, which is nothing for anybody else to read.
    pub(super) fn take(headers: &mut HeaderMap) -> Option<Self> {
        let value = headers.remove(ESCORT)?;
        let mut words = value.to_str().ok()?.split(' ');
        let name = words.next()?.to_owned();
        let made = match (words.next(), words.next(), words.next()) {
            (None, ..) => Made::First,
            (Some(AGAIN), None, _) => Made::Again,
            (Some(FROM), Some(place), None) => Made::From(place.to_owned()),
            _ => return None,
        };
        Some(Self { name, made })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read_once() {
        for made in [Made::First, Made::Again, Made::From("cmpl-r1:2.3".into())] {
            let escort = Escort { name: Escort::draw_name(), made };
            let mut headers = HeaderMap::new();
            escort.write(&mut headers);
            assert_eq!(Escort::take(&mut headers), Some(escort));
            assert_eq!(Escort::take(&mut headers), None);
        }
    }

    #[test]
    fn what_no_member_says_is_nothing() {
        for text in ["a when", "a from", "a from b c", "a again b", "a  from b"] {
            let mut headers = HeaderMap::new();
            headers.insert(ESCORT, HeaderValue::from_static(text));
            assert_eq!(Escort::take(&mut headers), None, "{text}");
        }
    }

    #[test]
    fn why_there_is_no_answer_is_said_to_members() {
        for not_now in [NotNow::Stopping, NotNow::Unavailable] {
            let mut headers = HeaderMap::new();
            not_now.write(&mut headers);
            assert_eq!(NotNow::take(&mut headers), Some(not_now));
            assert!(headers.is_empty());
        }
    }

    #[test]
    fn no_two_calls_have_one_name() {
        let names: std::collections::BTreeSet<_> = (0..64).map(|_| Escort::draw_name()).collect();
        assert_eq!(names.len(), 64);
    }
}

//! A call whose arguments stand apart from text, told as it comes once they begin as an object.

use super::Call;
use super::scan::{End, Scan, Taken};

/// One call.
#[derive(Debug, Clone, Default)]
pub(super) struct Calling {
    /// Until it is told.
    name: Option<String>,
    /// What no object begins with.
    held: String,
    scan: Scan,
    /// Whether its object is whole: what follows belongs to no call.
    is_whole: bool,
}

impl Calling {
    /// Of the tool of this name.
    pub(super) fn new(name: String) -> Self {
        Self { name: Some(name), scan: Scan::with_space(), ..Self::default() }
    }

    /// Takes more of its arguments; what can be told now.
    pub(super) fn say(&mut self, text: &str) -> Option<Call> {
        if self.is_whole {
            return None;
        }
        let begins = self.name.is_some() && self.held.is_empty();
        let text = if begins { text.trim_start() } else { text };
        if self.name.is_some() && !(begins && text.starts_with('{')) {
            self.held.push_str(text);
            return None;
        }
        let Taken { json, end, .. } = self.scan.take(text, ["", ""]);
        self.is_whole = end == End::Value;
        (!json.is_empty()).then(|| Call { name: self.name.take(), arguments: json })
    }

    /// Its name, and what there is of arguments that are no object, if nothing was told of it.
    pub(super) fn untold(self) -> Option<(String, String)> {
        let Self { name, held, .. } = self;
        name.map(|name| (name, held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_from_where_an_object_begins() {
        let mut calling = Calling::new("f".to_owned());
        assert_eq!(calling.say(" \n"), None);
        let begun = Call { name: Some("f".to_owned()), arguments: "{\"x\":".to_owned() };
        assert_eq!(calling.say("{\"x\": "), Some(begun));
        assert_eq!(calling.say(" "), None);
        let more = Call { name: None, arguments: "  1}".to_owned() };
        assert_eq!(calling.say("1} "), Some(more));
        assert_eq!(calling.say("} So"), None, "behind the object");
        assert_eq!(calling.untold(), None);
        let mut lines = Calling::new("f".to_owned());
        let mended = lines.say("{\"x\": \"a\nb\\d\"}").unwrap();
        assert_eq!(mended.arguments, r#"{"x": "a\nb\\d"}"#);
        let mut other = Calling::new("f".to_owned());
        assert_eq!(other.say("[1]"), None);
        assert_eq!(other.untold(), Some(("f".to_owned(), "[1]".to_owned())));
    }
}

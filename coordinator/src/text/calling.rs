//! A call whose arguments stand apart from text, told as it comes once they begin as an object.

use super::Call;

/// One call.
#[derive(Debug, Clone, Default)]
pub(super) struct Calling {
    /// Until it is told.
    name: Option<String>,
    /// Space that may be the last, or what no object begins with.
    held: String,
}

impl Calling {
    /// Of the tool of this name.
    pub(super) fn new(name: String) -> Self {
        Self { name: Some(name), held: String::new() }
    }

    /// Takes more of its arguments; what can be told now.
    pub(super) fn say(&mut self, text: &str) -> Option<Call> {
        self.held.push_str(text);
        if self.name.is_some() {
            let begun = self.held.trim_start();
            if !begun.starts_with('{') {
                return None;
            }
            self.held = begun.to_owned();
        }
        let rest = self.held.split_off(self.held.trim_end().len());
        let arguments = std::mem::replace(&mut self.held, rest);
        (!arguments.is_empty()).then(|| Call { name: self.name.take(), arguments })
    }

    /// Its name, and what there is of arguments that are no object, if nothing was told of it.
    pub(super) fn untold(self) -> Option<(String, String)> {
        let Self { name, held } = self;
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
        assert_eq!(calling.untold(), None);
        let mut other = Calling::new("f".to_owned());
        assert_eq!(other.say("[1]"), None);
        assert_eq!(other.untold(), Some(("f".to_owned(), "[1]".to_owned())));
    }
}

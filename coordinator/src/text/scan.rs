//! Arguments that are JSON, gone through as they come. What models write into them that is no JSON
//! is mended where it is clear what they mean: callers parse what they are told.

/// Goes through one JSON value as it comes.
#[derive(Debug, Clone, Default)]
pub(super) struct Scan {
    /// Lists and objects that are open.
    depth: usize,
    /// Within a text; whether a backslash stands before, which is told with what follows it.
    in_text: Option<bool>,
    /// White space outside texts that what follows is told behind, if it needs any.
    space: String,
    /// What was told last.
    last: Option<char>,
    /// Whether all white space is told.
    keeps_space: bool,
}

/// What was taken of a value.
pub(super) struct Taken {
    pub(super) json: String,
    pub(super) bytes: usize,
    pub(super) end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// More must come.
    Open,
    /// The value is whole.
    Value,
    /// It is not, and a mark follows.
    Mark,
}

/// What follows where a mark may.
enum Follows {
    Mark,
    /// The beginning of one.
    Part,
    Other,
}

fn follows(rest: &str, marks: [&str; 2]) -> Follows {
    let mut marks = marks.iter().filter(|mark| !mark.is_empty());
    if marks.clone().any(|mark| rest.starts_with(mark)) {
        Follows::Mark
    } else if marks.any(|mark| mark.starts_with(rest)) {
        Follows::Part
    } else {
        Follows::Other
    }
}

impl Scan {
    /// Goes on in an object that is open.
    pub(super) fn in_object() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// Tells white space as it is written, and not what is needed of it.
    pub(super) fn with_space() -> Self {
        Self { keeps_space: true, ..Self::default() }
    }

    /// Takes what there is of the value, up to its end or to one of `ends`, which stand in no JSON
    /// but in its texts.
    pub(super) fn take(&mut self, held: &str, ends: [&str; 2]) -> Taken {
        let mut json = String::new();
        for (bytes, c) in held.char_indices() {
            let rest = &held[bytes..];
            // No text of JSON has a line end as it is: before a mark, the text's end is missing.
            let line = match c {
                _ if self.in_text.is_none() => 0,
                '\r' if rest.starts_with("\r\n") => 2,
                '\r' | '\n' => 1,
                _ => 0,
            };
            if self.in_text.is_none() || line > 0 {
                match follows(&rest[line..], ends) {
                    Follows::Mark => {
                        return Taken { json, bytes: bytes + line, end: End::Mark };
                    }
                    Follows::Part => return Taken { json, bytes, end: End::Open },
                    Follows::Other => {}
                }
            }
            if let Some(is_escaped) = self.in_text {
                self.say_in_text(c, is_escaped, &mut json);
            } else if self.say(c, &mut json) {
                return Taken { json, bytes: bytes + c.len_utf8(), end: End::Value };
            }
        }
        Taken { json, bytes: held.len(), end: End::Open }
    }

    /// What stands outside texts; whether it ends the value.
    fn say(&mut self, c: char, json: &mut String) -> bool {
        match c {
            ' ' | '\t' | '\n' | '\r' => {
                self.space.push(c);
                return false;
            }
            '{' | '[' => self.depth += 1,
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            '"' => self.in_text = Some(false),
            _ => {}
        }
        if self.keeps_space {
            json.push_str(&self.space);
        } else if !self.space.is_empty() && is_of_word(c) && self.last.is_some_and(is_of_word) {
            // Two numbers stay two.
            json.push(' ');
        }
        self.space.clear();
        self.last = Some(c);
        json.push(c);
        self.depth == 0
    }

    /// Models write lines and backslashes into texts as they are, which is no JSON.
    fn say_in_text(&mut self, c: char, is_escaped: bool, json: &mut String) {
        self.in_text = Some(false);
        match c {
            '\\' if !is_escaped => {
                self.in_text = Some(true);
                return;
            }
            '"' if !is_escaped => self.in_text = None,
            _ if is_escaped && "\"\\/bfnrtu".contains(c) => json.push('\\'),
            _ if is_escaped => json.push_str("\\\\"),
            _ => {}
        }
        match c {
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            c if c < ' ' => json.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => json.push(c),
        }
        self.last = Some(c);
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || "+-._".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: [&str; 2] = ["", "</call>"];

    /// However it comes.
    fn check(written: &str, json: &str, behind: &str) {
        for size in [1, 2, 1000] {
            let (mut scan, mut held, mut told) = (Scan::default(), String::new(), String::new());
            let mut is_over = false;
            let characters: Vec<char> = written.chars().collect();
            for piece in characters.chunks(size) {
                held.extend(piece);
                if !is_over {
                    let taken = scan.take(&held, ENDS);
                    told += &taken.json;
                    held.drain(..taken.bytes);
                    is_over = taken.end != End::Open;
                }
            }
            assert_eq!((&*told, &*held), (json, behind), "{written:?} by {size}");
        }
    }

    #[test]
    fn what_is_no_json_is_mended() {
        check("{\"x\": \"a\nb\t\u{1}\"} c", "{\"x\":\"a\\nb\\t\\u0001\"}", " c");
        let valid = r#"{"x":"\"\\\/\b\f\n\r\t\u0041"}"#;
        check(valid, valid, "");
        check(r#"{"x": "C:\dir\'a\ b"}"#, r#"{"x":"C:\\dir\\'a\\ b"}"#, "");
        check("{\"x\": \"a\\\nb\"}", r#"{"x":"a\\\nb"}"#, "");
        check("{\"x\": [1 2, true  false , \"a\" ]}", "{\"x\":[1 2,true false,\"a\"]}", "");
    }

    #[test]
    fn a_text_without_an_end_ends_with_the_call() {
        for line in ["\n", "\r\n"] {
            let call = format!("{{\"x\": \"a}}{line}</call>{{}}");
            check(&call, "{\"x\":\"a}", "</call>{}");
        }
        check("{\"x\": \"</call>\n</cal\"}", "{\"x\":\"</call>\\n</cal\"}", "");
    }

    #[test]
    fn space_may_be_told() {
        let mut scan = Scan::with_space();
        let mut say = |text: &str| scan.take(text, ["", ""]).json;
        assert_eq!(say("{ \"x\":  "), "{ \"x\":");
        assert_eq!(say("\n"), "");
        assert_eq!(say("\"a\n\" }"), "  \n\"a\\n\" }");
    }
}

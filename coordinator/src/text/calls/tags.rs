//! Calls whose arguments stand between tags, each as its own text:
//!
//! ```text
//! <tool_call>
//! <function=read>
//! <parameter=path>
//! walden.txt
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! A text's type is not written, so whoever reads it must know which arguments are texts.

use serde_json::{Map, Value};

/// How a family of models writes such calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArgumentTags {
    /// What of it stands in chat templates, in which quotes may be escaped.
    taught: &'static str,
    /// Around one call, or several.
    pub(super) block: (&'static str, &'static str),
    /// Around a function's name. Where there are none, it ends with its line or the first argument.
    pub(super) name: (&'static str, &'static str),
    /// Ends a function's arguments; empty where the block's end does.
    pub(super) end: &'static str,
    pub(super) key: (&'static str, &'static str),
    pub(super) value: (&'static str, &'static str),
    /// Between an argument's tags and its text.
    pub(super) pad: &'static str,
}

const PARAMETERS: ArgumentTags = ArgumentTags {
    taught: "<parameter=",
    block: ("<tool_call>", "</tool_call>"),
    name: ("<function=", ">"),
    end: "</function>",
    key: ("<parameter=", ">"),
    value: ("", "</parameter>"),
    pad: "\n",
};

const KNOWN: [ArgumentTags; 4] = [
    // Seed-OSS, whose block is its own.
    ArgumentTags {
        taught: "<seed:tool_call>",
        block: ("<seed:tool_call>", "</seed:tool_call>"),
        ..PARAMETERS
    },
    // Qwen3 Coder, and Qwen since 3.5.
    PARAMETERS,
    // MiniMax M2.
    ArgumentTags {
        taught: "<minimax:tool_call>",
        block: ("<minimax:tool_call>", "</minimax:tool_call>"),
        name: ("<invoke name=\"", "\">"),
        end: "</invoke>",
        key: ("<parameter name=\"", "\">"),
        value: ("", "</parameter>"),
        pad: "",
    },
    // GLM since 4.5.
    ArgumentTags {
        taught: "<arg_key>",
        block: ("<tool_call>", "</tool_call>"),
        name: ("", ""),
        end: "",
        key: ("<arg_key>", "</arg_key>"),
        value: ("<arg_value>", "</arg_value>"),
        pad: "",
    },
];

impl ArgumentTags {
    /// Those that a chat template teaches.
    pub(super) fn of(template: &str) -> Option<Self> {
        KNOWN.into_iter().find(|tags| {
            let has_block = template.contains(tags.block.0);
            has_block && template.contains(tags.taught)
        })
    }

    /// What models write before a call's arguments, and behind them.
    pub(crate) fn around_call(self, name: &str) -> (String, String) {
        let lines = if self.end.is_empty() { ["", ""] } else { ["\n"; 2] };
        let (open, close) = self.block;
        let head = format!("{open}{}{}{name}{}\n", lines[0], self.name.0, self.name.1);
        (head, format!("{}{}{close}", self.end, lines[1]))
    }

    /// What they write before an argument's text, and behind it.
    pub(crate) fn around_argument(self, key: &str) -> (String, String) {
        let line = if self.value.0.is_empty() { "" } else { "\n" };
        let head = format!("{}{key}{}{line}{}{}", self.key.0, self.key.1, self.value.0, self.pad);
        (head, format!("{}{}\n", self.pad, self.value.1))
    }

    /// Whether an argument may have this name: what is read is what was written.
    pub(crate) fn can_name(self, key: &str) -> bool {
        let ends = format!("{key}{}", self.key.1).find(self.key.1);
        key.trim() == key && ends == Some(key.len())
    }

    /// Whether calls may begin with `text`, behind the block's tag.
    pub(super) fn may_begin(self, text: &str) -> bool {
        let (text, open) = (text.trim_start(), self.name.0);
        match open.is_empty() {
            true => {
                let behind = text.trim_start_matches(is_of_name);
                let (is_named, rest) = (behind.len() < text.len(), behind.trim_start());
                let may_be = |mark: &str| rest.starts_with(mark) || mark.starts_with(rest);
                text.is_empty() || is_named && (may_be(self.key.0) || may_be(self.block.1))
            }
            false => text.starts_with(open) || open.starts_with(text),
        }
    }

    /// The calls within a block; `None` where that is something else. `is_text` says of a function
    /// and an argument whether that is a text whatever it looks like; what else looks like JSON is
    /// that.
    pub(super) fn calls(
        self,
        block: &str,
        is_text: impl Fn(&str, &str) -> bool,
    ) -> Option<Vec<(String, Map<String, Value>)>> {
        let (mut rest, mut calls) = (block.trim(), Vec::new());
        while !rest.is_empty() {
            let (name, mut behind) = self.name(rest)?;
            let mut arguments = Map::new();
            while let Some((key, value, after)) = self.argument(behind) {
                let value = value.strip_prefix(self.pad).unwrap_or(value);
                let value = value.strip_suffix(self.pad).unwrap_or(value);
                arguments.insert(key.to_owned(), typed(value, is_text(name, key)));
                behind = after;
            }
            calls.push((name.to_owned(), arguments));
            rest = behind.trim_start().strip_prefix(self.end)?.trim_start();
            if self.end.is_empty() && !rest.is_empty() {
                return None;
            }
        }
        (!calls.is_empty()).then_some(calls)
    }

    /// A function's name, and what follows it.
    fn name(self, text: &str) -> Option<(&str, &str)> {
        let text = text.strip_prefix(self.name.0)?;
        let (name, behind) = if self.name.1.is_empty() {
            let ends = [text.find('\n'), text.find(self.key.0), Some(text.len())];
            text.split_at(ends.into_iter().flatten().min()?)
        } else {
            text.split_once(self.name.1)?
        };
        let name = name.trim();
        (!name.is_empty() && name.chars().all(is_of_name)).then_some((name, behind))
    }

    /// An argument's name and text, and what follows it; `None` where none is. Its end is the tag
    /// that another argument, or nothing more of the call, stands behind.
    fn argument(self, text: &str) -> Option<(&str, &str, &str)> {
        let text = text.trim_start().strip_prefix(self.key.0)?;
        let (key, text) = text.split_once(self.key.1)?;
        let opened = if self.value.0.is_empty() { text } else { text.trim_start() };
        let text = opened.strip_prefix(self.value.0)?;
        let is_end = |rest: &str| match self.end.is_empty() {
            true => rest.is_empty(),
            false => rest.starts_with(self.end),
        };
        let mut ends = text.match_indices(self.value.1).map(|(at, tag)| (at, at + tag.len()));
        let (end, next) = ends.find(|(_, next)| {
            let rest = text[*next..].trim_start();
            rest.starts_with(self.key.0) || is_end(rest)
        })?;
        Some((key.trim(), &text[..end], &text[next..]))
    }
}

/// Whether callers may have it in the name of a function.
pub(super) fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.".contains(c)
}

/// What an argument's text stands for. Templates write other values than texts as JSON, or as
/// Python does.
pub(super) fn typed(text: &str, is_text: bool) -> Value {
    let as_text = || Value::from(text);
    match text.trim() {
        _ if is_text => as_text(),
        "True" => Value::from(true),
        "False" => Value::from(false),
        "None" => Value::Null,
        json => serde_json::from_str(json).unwrap_or_else(|_| as_text()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(tags: ArgumentTags, block: &str, want: Option<Value>) {
        let is_text = |name: &str, key: &str| format!("{name} {key}") == "f text";
        let calls = tags.calls(block, is_text);
        let got = calls.map(|calls| {
            let list = calls.into_iter().map(|(name, arguments)| json!([name, arguments]));
            list.collect::<Value>()
        });
        assert_eq!(got, want, "{block:?}");
    }

    #[test]
    fn functions_and_parameters() {
        let check = |block: &str, want: Option<Value>| check(PARAMETERS, block, want);
        let f = |arguments: Value| Some(json!([["f", arguments]]));
        check(
            "\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=text>\n2\n</parameter>\n\
             </function>\n",
            f(json!({ "x": 1, "text": "2" })),
        );
        check("<function=f></function>", f(json!({})));
        check("<function=f>\n</function>", f(json!({})));
        let one = |value: &str| format!("<function=f><parameter=x>{value}</parameter></function>");
        check(&one("True"), f(json!({ "x": true })));
        check(&one("None"), f(json!({ "x": null })));
        check(&one("\n{\"a\": [1]}\n"), f(json!({ "x": { "a": [1] } })));
        check(&one("a\n\nb"), f(json!({ "x": "a\n\nb" })));
        check(&one("\n\n a \n\n"), f(json!({ "x": "\n a \n" })));
        check(&one(""), f(json!({ "x": "" })));
        let nested = "a </parameter> b </function>";
        check(&one(nested), f(json!({ "x": nested })));
        let both = "<function=f></function>\n<function=g-1.h></function>";
        check(both, Some(json!([["f", {}], ["g-1.h", {}]])));
        for bad in [
            "",
            "f",
            "<function=></function>",
            "<function=f",
            "<function=f>",
            "<function=a b></function>",
            "<function=f></function>x",
            "<function=f>x</function>",
            "<function=f><parameter=x>1</function>",
            "<function=f><parameter=x>1</parameter>",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn invocations() {
        let tags = ArgumentTags::of("<minimax:tool_call>").unwrap();
        let block = "\n<invoke name=\"f\">\n<parameter name=\"x\">[1]</parameter>\n\
             <parameter name=\"text\">[1]</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n";
        check(tags, block, Some(json!([["f", { "x": [1], "text": "[1]" }], ["g", {}]])));
    }

    #[test]
    fn keys_and_values() {
        let tags = ArgumentTags::of("<tool_call>{{ n }}<arg_key>").unwrap();
        let check = |block: &str, want: Option<Value>| check(tags, block, want);
        let one = "f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n<arg_key>text</arg_key>\n\
             <arg_value>1</arg_value>\n";
        check(one, Some(json!([["f", { "x": 1, "text": "1" }]])));
        check(
            "f<arg_key>x</arg_key><arg_value>a b</arg_value>",
            Some(json!([["f", { "x": "a b" }]])),
        );
        check("f", Some(json!([["f", {}]])));
        check("f\n", Some(json!([["f", {}]])));
        for bad in ["f g", "f\ng", "f<arg_key>x</arg_key>", "f<arg_key>x</arg_key><arg_value>1"] {
            check(bad, None);
        }
        assert!(tags.may_begin("\n") && tags.may_begin("f") && !tags.may_begin("{\"name\""));
        for begun in ["", "\nf", "f\n", "f\n<arg", "f\n</tool_call>", "tag. "] {
            assert!(tags.may_begin(begun), "{begun:?}");
        }
        for words in ["tag.\nLong", "tag, of", "<arg_key>"] {
            assert!(!tags.may_begin(words), "{words:?}");
        }
        for (tags, bad) in [(PARAMETERS, "a>b"), (PARAMETERS, " a"), (tags, "a</arg_key>")] {
            assert!(tags.can_name("a b") && tags.can_name("</") && !tags.can_name(bad), "{bad}");
        }
        assert!(PARAMETERS.may_begin("\n<func") && !PARAMETERS.may_begin("<fn"));
    }
}

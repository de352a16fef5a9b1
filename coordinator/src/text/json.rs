//! JSON as chat templates write it.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, Value};

/// JSON as Python writes it: a space after commas and colons, or each entry on a line of its
/// own; nothing escaped for HTML.
pub(super) struct JsonWriter {
    /// Spaces that each depth is moved in by; `None` for one line.
    indent: Option<usize>,
    /// Behind an entry, and behind a name.
    separators: (String, String),
    ensures_ascii: bool,
    sorts_keys: bool,
}

impl JsonWriter {
    /// With the options that the `transformers` library's filter has.
    pub(super) fn of(options: &Kwargs) -> Result<Self, Error> {
        let indent = options.get::<Option<usize>>("indent")?;
        let separators = options.get::<Option<Value>>("separators")?;
        let part = |idx: usize, default: &str| -> Result<String, Error> {
            separators.as_ref().map_or_else(
                || Ok(default.to_owned()),
                |both| Ok(both.get_item(&Value::from(idx))?.to_string()),
            )
        };
        let comma = if indent.is_some() { "," } else { ", " };
        let json = Self {
            indent,
            separators: (part(0, comma)?, part(1, ": ")?),
            ensures_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
            sorts_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        };
        options.assert_all_used()?;
        Ok(json)
    }

    /// On one line, with nothing said otherwise.
    pub(super) fn plain() -> Self {
        let separators = (", ".to_owned(), ": ".to_owned());
        Self { indent: None, separators, ensures_ascii: false, sorts_keys: false }
    }

    pub(super) fn text(&self, value: &Value) -> Result<String, Error> {
        self.at(0, value)
    }

    /// `value` inside of `depth` lists and mappings.
    fn at(&self, depth: usize, value: &Value) -> Result<String, Error> {
        Ok(match value.kind() {
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorts_keys {
                    keys.sort();
                }
                let entry = |key: Value| {
                    let field = self.at(depth + 1, &value.get_item(&key)?)?;
                    Ok(format!("{}{}{field}", self.string(&key.to_string()), self.separators.1))
                };
                let entries = keys.into_iter().map(entry).collect::<Result<_, Error>>()?;
                self.enclose('{', entries, '}', depth)
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let entries = value.try_iter()?.map(|entry| self.at(depth + 1, &entry));
                self.enclose('[', entries.collect::<Result<_, _>>()?, ']', depth)
            }
            ValueKind::None | ValueKind::Undefined => "null".to_owned(),
            ValueKind::Bool => value.is_true().to_string(),
            ValueKind::Number if value.is_integer() => value.to_string(),
            ValueKind::Number => f64::try_from(value.clone()).map_or(value.to_string(), float),
            _ => self.string(&value.to_string()),
        })
    }

    fn enclose(&self, open: char, parts: Vec<String>, close: char, depth: usize) -> String {
        let comma = &self.separators.0;
        match self.indent {
            Some(width) if !parts.is_empty() => {
                let line = |depth: usize| format!("\n{}", " ".repeat(width * depth));
                let parts = parts.join(&format!("{comma}{}", line(depth + 1)));
                format!("{open}{}{parts}{}{close}", line(depth + 1), line(depth))
            }
            _ => format!("{open}{}{close}", parts.join(comma)),
        }
    }

    fn string(&self, text: &str) -> String {
        let quoted = serde_json::Value::from(text).to_string();
        if !self.ensures_ascii {
            return quoted;
        }
        let escape = |c: char| {
            if c.is_ascii() {
                return c.to_string();
            }
            c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
        };
        quoted.chars().map(escape).collect()
    }
}

/// As Python writes it: both write the shortest digits, and from the same sizes on an exponent, for
/// which Python has a sign and two digits at least.
fn float(x: f64) -> String {
    let text = format!("{x:?}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    match exponent.strip_prefix('-') {
        Some(small) => format!("{digits}e-{small:0>2}"),
        None => format!("{digits}e+{exponent:0>2}"),
    }
}

//! Values as Python writes them, or as JSON does: models mix the two.

use serde_json::{Map, Number, Value};

/// Lists and mappings within each other, as `serde_json` bounds them.
const DEPTH_MAX: usize = 127;

/// Reads a text from its beginning.
pub(super) struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { rest: text }
    }

    /// Whether nothing follows but space.
    pub(super) fn is_over(&self) -> bool {
        self.rest.trim_start().is_empty()
    }

    /// Takes `mark`, and space before it, if that comes next.
    pub(super) fn take(&mut self, mark: char) -> bool {
        let behind = self.rest.trim_start().strip_prefix(mark);
        self.rest = behind.unwrap_or(self.rest);
        behind.is_some()
    }

    /// Takes a word of these characters, and space before it.
    pub(super) fn word(&mut self, is_of_it: impl Fn(char) -> bool) -> Option<&'t str> {
        let rest = self.rest.trim_start();
        let end = rest.find(|c| !is_of_it(c)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        self.rest = behind;
        (!word.is_empty()).then_some(word)
    }

    /// Takes a value.
    pub(super) fn value(&mut self) -> Option<Value> {
        self.value_at(0)
    }

    /// One that is within `depth` others.
    fn value_at(&mut self, depth: usize) -> Option<Value> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.rest = self.rest.trim_start();
        match self.rest.chars().next()? {
            '"' | '\'' => self.texts().map(Value::from),
            '[' => self.list(depth).map(Value::Array),
            '(' => self.tuple(depth),
            '{' => self.mapping(depth).map(Value::Object),
            _ => self.plain(),
        }
    }

    fn list(&mut self, depth: usize) -> Option<Vec<Value>> {
        let mut list = Vec::new();
        self.take('[');
        while !self.take(']') {
            list.push(self.value_at(depth + 1)?);
            if !self.take(',') {
                return self.take(']').then_some(list);
            }
        }
        Some(list)
    }

    /// A list that does not change, or one value, which no comma follows.
    fn tuple(&mut self, depth: usize) -> Option<Value> {
        let mut list = Vec::new();
        self.take('(');
        while !self.take(')') {
            list.push(self.value_at(depth + 1)?);
            if !self.take(',') {
                self.take(')').then_some(())?;
                return if list.len() == 1 { list.pop() } else { Some(Value::Array(list)) };
            }
        }
        Some(Value::Array(list))
    }

    fn mapping(&mut self, depth: usize) -> Option<Map<String, Value>> {
        let mut fields = Map::new();
        self.take('{');
        while !self.take('}') {
            let Value::String(name) = self.value_at(depth + 1)? else { return None };
            self.take(':').then_some(())?;
            fields.insert(name, self.value_at(depth + 1)?);
            if !self.take(',') {
                return self.take('}').then_some(fields);
            }
        }
        Some(fields)
    }

    /// What is neither a text nor holds others.
    fn plain(&mut self) -> Option<Value> {
        let word = self.word(|c| c.is_ascii_alphanumeric() || "+-._".contains(c))?;
        match word {
            "True" | "true" => Some(Value::from(true)),
            "False" | "false" => Some(Value::from(false)),
            "None" | "null" => Some(Value::Null),
            // Python has `1.`, `.5`, `+1` and `1_000` besides.
            number => {
                let number = without_marks(number.strip_prefix('+').unwrap_or(number))?;
                let whole = serde_json::from_str::<Number>(&number).ok();
                whole.or_else(|| Number::from_f64(number.parse().ok()?)).map(Value::Number)
            }
        }
    }

    /// Texts that stand beside each other are one.
    fn texts(&mut self) -> Option<String> {
        let mut all = self.text()?;
        loop {
            let rest = self.rest.trim_start();
            if !rest.starts_with(['"', '\'']) {
                return Some(all);
            }
            self.rest = rest;
            all += &self.text()?;
        }
    }

    /// A text, whose quotes may be three each.
    fn text(&mut self) -> Option<String> {
        let quotes = ["\"\"\"", "'''", "\"", "'"];
        let quote = quotes.into_iter().find(|quote| self.rest.starts_with(quote))?;
        let (mut rest, mut text) = (&self.rest[quote.len()..], String::new());
        loop {
            if let Some(behind) = rest.strip_prefix(quote) {
                self.rest = behind;
                return Some(text);
            }
            let first = rest.chars().next()?;
            rest = &rest[first.len_utf8()..];
            match first {
                '\\' => rest = escaped(rest, &mut text)?,
                other => text.push(other),
            }
        }
    }
}

/// Whether `text` ends within a text that it has.
pub(super) fn ends_in_text(text: &str) -> bool {
    let mut reader = Reader::new(text);
    while let Some(at) = reader.rest.find(['"', '\'']) {
        reader.rest = &reader.rest[at..];
        if reader.text().is_none() {
            return true;
        }
    }
    false
}

/// A number without what may stand between two of its digits.
fn without_marks(number: &str) -> Option<String> {
    let mut parts = number.split('_').peekable();
    let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    let mut all = String::new();
    while let Some(part) = parts.next() {
        all += part;
        if let Some(next) = parts.peek() {
            let is_between = is_digit(part.chars().next_back()) && is_digit(next.chars().next());
            is_between.then_some(())?;
        }
    }
    Some(all)
}

/// Adds what `rest`, behind a backslash, begins with, and gives what follows it.
fn escaped<'t>(rest: &'t str, text: &mut String) -> Option<&'t str> {
    let first = rest.chars().next()?;
    let behind = &rest[first.len_utf8()..];
    let digits = match first {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        '0'..='7' => {
            let is_octal = |byte: &u8| (b'0'..=b'7').contains(byte);
            let digits = rest.bytes().take(3).take_while(is_octal).count();
            text.push(char::from_u32(u32::from_str_radix(&rest[..digits], 8).ok()?)?);
            return Some(&rest[digits..]);
        }
        _ => {
            match first {
                'n' => text.push('\n'),
                'r' => text.push('\r'),
                't' => text.push('\t'),
                'a' => text.push('\u{7}'),
                'v' => text.push('\u{b}'),
                'b' => text.push('\u{8}'),
                'f' => text.push('\u{c}'),
                '\n' => {} // the line goes on
                '\\' | '\'' | '"' | '/' => text.push(first),
                other => text.extend(['\\', other]),
            }
            return Some(behind);
        }
    };
    let (code, behind) = number(behind, digits)?;
    // JSON writes one character as two such halves.
    let low = behind.strip_prefix("\\u").and_then(|behind| number(behind, 4));
    let (code, behind) = match (code, low) {
        (0xd800..0xdc00, Some((low @ 0xdc00..0xe000, behind))) => {
            (0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00), behind)
        }
        _ => (code, behind),
    };
    text.push(char::from_u32(code)?);
    Some(behind)
}

/// The number that so many hexadecimal digits are, and what follows them.
fn number(text: &str, digits: usize) -> Option<(u32, &str)> {
    let (number, behind) = text.split_at_checked(digits)?;
    let is_hex = number.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u32::from_str_radix(number, 16).ok().filter(|_| is_hex)?;
    Some((number, behind))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Option<Value> {
        let mut reader = Reader::new(text);
        reader.value().filter(|_| reader.is_over())
    }

    fn check(text: &str, want: Value) {
        assert_eq!(read(text), Some(want), "{text}");
    }

    #[test]
    fn values_are_python_s_or_json_s() {
        check(" 12 ", json!(12));
        check("-1.5e3", json!(-1500.0));
        check("+1.", json!(1.0));
        check("+1", json!(1));
        check("-1_000_000", json!(-1_000_000));
        check("(1, 'a',)", json!([1, "a"]));
        check("[(), (1,), (1), ((2, 3))]", json!([[], [1], 1, [2, 3]]));
        check(".5", json!(0.5));
        check("[True, false, None, null]", json!([true, false, null, null]));
        check("[ ]", json!([]));
        check("[1, [2,],]", json!([1, [2]]));
        check("{'a': {\"b\": 1}, 'c': [],}", json!({ "a": { "b": 1 }, "c": [] }));
        check("{}", json!({}));
        for bad in ["", "x", "nan", "inf", "1 2", "[1", "[1 2]", "[,]", "{1: 2}", "{'a'}", "(1"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        for bad in ["_1", "1_", "1__0", "1_.5", "(,)", "(1]", "(1 2)"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        for [open, close] in [["[", "]"], ["(", ")"]] {
            let deep = |depth: usize| format!("{}{}", open.repeat(depth), close.repeat(depth));
            assert!(read(&deep(100)).is_some() && read(&deep(100_000)).is_none());
        }
    }

    #[test]
    fn a_text_may_not_be_over() {
        for open in ["f('", "f(x=\"a'", "'a\\'", "'''a'", "'a' \"", "{\"a\": \"b\\\""] {
            assert!(ends_in_text(open), "{open}");
        }
        for over in ["", "f(", "f(x='a', y=\"'\"", "'''a''''b'", "''", "{\"it's\": 1"] {
            assert!(!ends_in_text(over), "{over}");
        }
    }

    #[test]
    fn texts_are_python_s_or_json_s() {
        check("'a \"b\"'", json!("a \"b\""));
        check("\"it's\"", json!("it's"));
        check("''", json!(""));
        check("'''a'\nb'''", json!("a'\nb"));
        check("\"\"\"\"a\"\"\"", json!("\"a"));
        check(r"'\n\t\\\'\x41\u00e9\U0001F600\d'", json!("\n\t\\'Aé😀\\d"));
        check(r#""\ud83d\ude00\/""#, json!("😀/"));
        check("'a\\\nb'", json!("ab"));
        check(r"'\0\101\1012\a\v'", json!("\0AA2\u{7}\u{b}"));
        check("'a' \"b\"\n'''c'''", json!("abc"));
        for bad in ["'a", "'a\\", r"'\x4'", r"'\ud83d'", r"'\u+041'", "'a\"", "f'a'", "'a' 'b"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn all_of_json_is_read(text in "\\PC{0,12}", number: i64, flag: bool) {
            let value = json!({ "a": [text, { (text.clone()): number }], "b": flag });
            prop_assert_eq!(read(&value.to_string()), Some(value));
        }
    }
}

//! Expressions of `tokenizer.json` in the dialect of the engine that is here. They are written for
//! Oniguruma, with which the library is built for Python; that one is in C.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::Tokenizer;

/// Has the expressions of `tokenizer` match what they match in Oniguruma, and warns of those that
/// may still not.
///
/// # Errors
/// One that cannot be said here.
pub(super) fn translate(tokenizer: &mut Tokenizer) -> tokenizers::Result<()> {
    if let Some(normalizer) = translated(tokenizer.get_normalizer())? {
        tokenizer.with_normalizer(Some(normalizer))?;
    }
    if let Some(pretokenizer) = translated(tokenizer.get_pre_tokenizer())? {
        tokenizer.with_pre_tokenizer(Some(pretokenizer));
    }
    if let Some(decoder) = translated(tokenizer.get_decoder())? {
        tokenizer.with_decoder(Some(decoder));
    }
    Ok(())
}

/// None where nothing is to be changed.
fn translated<T: Serialize + DeserializeOwned>(part: Option<&T>) -> serde_json::Result<Option<T>> {
    let mut described = serde_json::to_value(part)?;
    match translate_all(&mut described) {
        true => serde_json::from_value(described).map(Some),
        false => Ok(None),
    }
}

/// Whether some expression is another one now.
fn translate_all(part: &mut Value) -> bool {
    match part {
        Value::Object(fields) => fields.iter_mut().fold(false, |is_other, (name, value)| {
            let seen = match value {
                Value::String(expression) if name == "Regex" => translate_one(expression),
                value => translate_all(value),
            };
            is_other | seen
        }),
        Value::Array(parts) => {
            parts.iter_mut().fold(false, |is_other, part| translate_all(part) | is_other)
        }
        _ => false,
    }
}

fn translate_one(expression: &mut String) -> bool {
    let (ours, is_exact) = ours(expression);
    if !is_exact {
        tracing::warn!(
            expression = expression.as_str(),
            "an expression of the tokeniser may match otherwise here than in Python: such as \\w \
             and \\b, to which ²³¹¼½¾ and joiners are not the same"
        );
    }
    let is_other = ours != *expression;
    *expression = ours;
    is_other
}

/// What matches as Oniguruma's `theirs` does, and whether it always does.
fn ours(theirs: &str) -> (String, bool) {
    let ours = String::with_capacity(theirs.len());
    let mut all = Translation { left: theirs, ours, groups: Vec::new(), is_exact: true };
    while let Some(first) = all.left.chars().next() {
        all.step(first);
    }
    (all.ours, all.is_exact)
}

/// Behind every line's end but the text's; here it would be behind that one, too.
const LINE_START: &str = r"(?m:^)(?!\z)";
const LINE_END: &str = "(?m:$)";

struct Translation<'e> {
    /// What is not yet read.
    left: &'e str,
    ours: String,
    /// Where in `ours` those groups begin that are open.
    groups: Vec<usize>,
    is_exact: bool,
}

impl Translation<'_> {
    /// Takes what stands before all else that is left, and how often it comes.
    fn step(&mut self, first: char) {
        let mut start = self.ours.len();
        match first {
            '(' => return self.open(),
            '|' => return self.copy(1),
            '^' => return self.put(1, LINE_START),
            '$' => return self.put(1, LINE_END),
            ')' => {
                start = self.groups.pop().unwrap_or(start);
                self.copy(1);
            }
            '[' => self.class(),
            '\\' => self.escape(),
            other => self.copy(other.len_utf8()),
        }
        self.repeat(start);
    }

    fn put(&mut self, bytes: usize, ours: &str) {
        self.ours.push_str(ours);
        self.left = &self.left[bytes..];
    }

    fn copy(&mut self, bytes: usize) {
        let left = self.left;
        self.put(bytes, &left[..bytes]);
    }

    /// A group's beginning, a comment, or what changes how all behind it matches.
    fn open(&mut self) {
        let Some(inside) = self.left.strip_prefix("(?") else {
            self.groups.push(self.ours.len());
            return self.copy(1);
        };
        if inside.starts_with('#') {
            return self.copy(self.left.find(')').map_or(self.left.len(), |at| at + 1));
        }
        let is_flag = |c: char| c.is_ascii_alphabetic() || c == '-';
        let behind = inside.trim_start_matches(is_flag);
        let flags = &inside[..inside.len() - behind.len()];
        if flags.is_empty() || !behind.starts_with([':', ')']) {
            self.groups.push(self.ours.len());
            return self.copy(2);
        }
        if flags.contains('x') {
            // Spaces and comments of another kind.
            self.is_exact = false;
            return self.copy(self.left.len());
        }
        if behind.starts_with(':') {
            self.groups.push(self.ours.len());
        } else {
            // There it is for the rest of its group, here up to the next `|`.
            self.is_exact &= self.ours.is_empty();
        }
        // What they call so has dots match line ends.
        let flags = format!("(?{}", flags.replace('m', "s"));
        self.put(flags.len(), &flags);
        self.copy(1);
    }

    /// From bracket to bracket.
    fn class(&mut self) {
        let mut depth = 1;
        self.copy(1);
        for first in ['^', ']'] {
            if self.left.starts_with(first) {
                self.copy(1);
            }
        }
        while let Some(first) = self.left.chars().next().filter(|_| depth > 0) {
            match first {
                '\\' => {
                    let escaped = self.left[1..].chars().next();
                    self.is_exact &= !matches!(escaped, Some('w' | 'W'));
                    self.copy(1 + escaped.map_or(0, char::len_utf8));
                }
                '[' => match posix(self.left) {
                    Some((bytes, ours)) => self.put(bytes, &ours),
                    None => {
                        depth += 1;
                        self.copy(1);
                    }
                },
                ']' => {
                    depth -= 1;
                    self.copy(1);
                }
                other => self.copy(other.len_utf8()),
            }
        }
    }

    fn escape(&mut self) {
        let Some(escaped) = self.left[1..].chars().next() else { return self.copy(1) };
        let bytes = 1 + escaped.len_utf8();
        let tail = &self.left[bytes..];
        let within = |open: char, close: char| {
            tail.find(close).filter(|_| tail.starts_with(open)).map(|at| at + 1)
        };
        let hex = |most: usize| tail.bytes().take(most).take_while(u8::is_ascii_hexdigit).count();
        let more = match escaped {
            // Here these stand for the beginning and the end of a word.
            '<' => return self.put(bytes, "<"),
            '>' => return self.put(bytes, ">"),
            'p' | 'P' => within('{', '}').unwrap_or(0),
            'x' => within('{', '}').unwrap_or_else(|| hex(2)),
            'u' => within('{', '}').unwrap_or_else(|| hex(4)),
            'k' | 'g' => within('<', '>').unwrap_or(0),
            '0'..='9' => tail.bytes().take_while(u8::is_ascii_digit).count(),
            _ => 0,
        };
        self.is_exact &= !matches!(escaped, 'w' | 'W' | 'b' | 'B' | 'Z');
        self.copy(bytes + more);
    }

    /// Takes all that say how often what begins at `start` comes. There each is for what is before
    /// it; here there may be one, and a `+` behind a count says that nothing is given back.
    fn repeat(&mut self, start: usize) {
        let mut is_first = true;
        loop {
            let bytes = quantifier_bytes(self.left);
            if bytes == 0 {
                return;
            }
            if !is_first {
                self.ours.insert_str(start, "(?:");
                self.ours.push(')');
            }
            self.copy(bytes);
            is_first = false;
        }
    }
}

/// Bytes of Oniguruma's quantifier at the beginning of `text`, 0 where there is none.
fn quantifier_bytes(text: &str) -> usize {
    let with = |bytes: usize, more: &[char]| bytes + usize::from(text[bytes..].starts_with(more));
    if text.starts_with(['?', '*', '+']) {
        return with(1, &['?', '+']);
    }
    let Some((count, _)) = text.strip_prefix('{').and_then(|text| text.split_once('}')) else {
        return 0;
    };
    let is_count = count.bytes().all(|byte| byte.is_ascii_digit() || byte == b',');
    match (count.bytes().filter(|byte| *byte == b',').count(), count.len()) {
        (0, 1..) if is_count => count.len() + 2, // of which a `?` behind it makes none or one
        (1, 2..) if is_count => with(count.len() + 2, &['?']),
        _ => 0,
    }
}

/// The bytes of a class by its POSIX name, and what is inside of one that has the same characters:
/// all of Unicode's there, ASCII's here.
fn posix(text: &str) -> Option<(usize, String)> {
    let (whole, _) = text.strip_prefix("[:")?.split_once(":]")?;
    let name = whole.strip_prefix('^').unwrap_or(whole);
    let inside = match name {
        "alpha" => r"\p{Alphabetic}",
        "digit" => r"\p{Nd}",
        "alnum" => r"\p{Alphabetic}\p{Nd}",
        "upper" => r"\p{Uppercase}",
        "lower" => r"\p{Lowercase}",
        "space" => r"\s",
        "blank" => r"\p{Zs}\t",
        "punct" => r"\p{P}\p{S}",
        "cntrl" => r"\p{Cc}",
        "graph" => r"[^\s\p{Cc}\p{Cn}]",
        "print" => r"[^\s\p{Cc}\p{Cn}]\p{Zs}",
        "word" => r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}",
        "xdigit" => "0-9A-Fa-f",
        "ascii" => r"\x00-\x7F",
        _ => return None,
    };
    let is_not = name.len() < whole.len();
    let ours = if is_not { format!("[^{inside}]") } else { inside.to_owned() };
    Some((whole.len() + "[::]".len(), ours))
}

#[cfg(test)]
mod tests {
    use tokenizers::models::bpe::BPE;
    use tokenizers::normalizers::Replace;
    use tokenizers::normalizers::replace::ReplacePattern;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::utils::SysRegex;
    use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

    use super::*;

    #[test]
    fn what_differs_is_written_otherwise() {
        let check = |theirs: &str, want: &str| {
            assert_eq!(ours(theirs), (want.to_owned(), true), "{theirs}");
        };
        check("", "");
        check(r"\s+$|^a", r"\s+(?m:$)|(?m:^)(?!\z)a");
        check(r"[$^]\$\^[^$]", r"[$^]\$\^[^$]");
        check(r"[]$^]$", r"[]$^](?m:$)");
        check(r"[\]$[a^$]]$", r"[\]$[a^$]](?m:$)");
        check("(?<=^)a(?!$)", r"(?<=(?m:^)(?!\z))a(?!(?m:$))");
        check(r"\p{N}{1,3}+", r"(?:\p{N}{1,3})+");
        check("x(?i:a|b){2}+?", "x(?:(?i:a|b){2})+?");
        check("[a-z]{,2}+y", "(?:[a-z]{,2})+y");
        check(r"\x41{1,2}+\u00e9{3}?", r"(?:\x41{1,2})+(?:\u00e9{3})?");
        check("a{1,2}?+é{1,}*", "(?:a{1,2}?)+(?:é{1,})*");
        check("(a{1}{2}b){1}{2}", "(?:((?:a{1}){2}b){1}){2}");
        check("a{2}b{1,2}?c{x}+{1,2", "a{2}b{1,2}?c{x}+{1,2");
        check("a?+b*+c++d??e+?", "a?+b*+c++d??e+?");
        check("(?m:a.)(?i-m:b)(?P<m>c)", "(?s:a.)(?i-s:b)(?P<m>c)");
        check("(?#^a$)b", "(?#^a$)b");
        check(r"\<a\>", "<a>");
        check("[[:alpha:]_]", r"[\p{Alphabetic}_]");
        check("[^[:punct:][:^digit:]]", r"[^\p{P}\p{S}[^\p{Nd}]]");
        check("[:alpha:][[:none:]]", "[:alpha:][[:none:]]");
        check(r"[\p{L}\d][\[:alpha:]", r"[\p{L}\d][\[:alpha:]");
    }

    #[test]
    fn what_stays_another_is_told() {
        for theirs in [r"\w+", r"\W", r"\ba", r"a\B", r"[^\w]", r"a\Z", "(?x) a", "a(?i)b|c"] {
            assert_eq!(ours(theirs), (theirs.to_owned(), false));
        }
        for theirs in [r"\\w", r"[\b]", "(?i)a|b", r"[\\w]"] {
            assert_eq!(ours(theirs), (theirs.to_owned(), true));
        }
    }

    /// What models have is read as it stands.
    #[test]
    fn published_expressions_stay_as_they_are() {
        for theirs in [
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+",
            r"[^\r\n\p{L}\p{N}]?+\p{L}++| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s+(?!\S)|\s",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}]?[\p{L}\p{M}]+"##,
            r" ?[^(\s|.,!?…。，、।۔،)]+",
        ] {
            assert_eq!(ours(theirs), (theirs.to_owned(), true));
        }
    }

    /// As the library for Python does.
    #[test]
    fn texts_are_matched_as_oniguruma_does() {
        let check = |theirs: &str, text: &str, want: &str| {
            let regex = SysRegex::new(&ours(theirs).0).unwrap();
            let (mut seen, mut last) = (String::new(), 0);
            for (start, end) in regex.find_iter(text) {
                seen = seen + &text[last..start] + "X";
                last = end;
            }
            assert_eq!(seen + &text[last..], want, "{theirs}");
        };
        check("^", "a\nb\n", "Xa\nXb\n");
        check("$", "a\nb\n", "aX\nbX\nX");
        check(r"\n^", "a\n", "a\n");
        check(r"^\s", "\n a", "XXa");
        check("a{2}?", "aaaa", "XX");
        check("a{1,3}+b?", "aaaaab", "X");
        check("a{1,2}?+", "aaa", "X");
        check("a{2}+", "aaaaa", "Xa");
        check("a{1,2}+?c", "aaac", "X");
        check(r"\x41{1,2}+A", "AAAA", "X");
        check("(?:ab|c){1,2}+d", "ababcd", "X");
        check("(?m:a.b)", "a\nb", "X");
        check("[[:^punct:]]+", "a!b", "X!X");
        check("[^[:punct:]a]+", "b!ab", "X!aX");
        check("[[:punct:]]", "+€«a", "XXXa");
        check("[[:digit:][:alpha:]]+", "é1٣_", "X_");
        check("[[:word:]]", "²_", "²X");
        check("[[:print:]]+", "a \u{a0}\n", "X\n");
        check("[[:graph:]]+", "a\u{300}\u{a0}", "X\u{a0}");
        check("[[:blank:][:cntrl:]]", " \t\u{85}a", "XXXa");
        check("[[:ascii:]&&[:^xdigit:]]", "afgé", "afXé");
    }

    #[test]
    fn all_parts_of_a_tokenizer_are_translated() {
        let mut tokenizer = Tokenizer::new(BPE::default());
        let pattern = || SplitPattern::Regex(r"\s+$".to_owned());
        let split = Split::new(pattern(), SplitDelimiterBehavior::Isolated, false).unwrap();
        let replace =
            |pattern: &str| Replace::new(ReplacePattern::Regex(pattern.to_owned()), "$").unwrap();
        tokenizer.with_normalizer(Some(replace("^"))).unwrap();
        tokenizer.with_pre_tokenizer(Some(split));
        tokenizer.with_decoder(Some(replace("a")));
        translate(&mut tokenizer).unwrap();
        let Some(PreTokenizerWrapper::Split(split)) = tokenizer.get_pre_tokenizer() else {
            panic!("another pre-tokeniser");
        };
        assert_eq!(split.pattern, SplitPattern::Regex(r"\s+(?m:$)".to_owned()));
        let described = serde_json::to_value(tokenizer.get_normalizer()).unwrap();
        assert_eq!(described["pattern"]["Regex"], LINE_START);
        assert_eq!(described["content"], "$");
        let described = serde_json::to_value(tokenizer.get_decoder()).unwrap();
        assert_eq!(described["pattern"]["Regex"], "a");
    }
}

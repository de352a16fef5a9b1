//! What stands before a call's arguments, read while it comes: a call is told as it comes once its
//! name is known, and its arguments have begun.

use super::tags::is_of_name;
use super::{ArgumentTags, Blocks, CallNotation, braces};

/// Heads are short: what is longer is looked at when it is whole.
const BYTES_MAX: usize = 512;
/// Longer than any mark behind a head.
const MARK_BYTES_MAX: usize = 64;

/// What text may be that stands where a call's head does.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// One, if more follows.
    Open,
    /// None that can be told before the call is whole.
    Other,
    /// One of so many bytes.
    Call {
        /// Of the tool.
        name: String,
        bytes: usize,
        /// Whether a list begins before it.
        in_list: bool,
    },
}

/// Why something could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// More must follow.
    Yet,
    /// It is something else.
    Ever,
}

type Read<T> = Result<T, Unread>;

/// The head that `text` begins with; `is_first`: a list may begin there too.
pub(super) fn read(notation: CallNotation, text: &str, is_first: bool) -> Head {
    let mut cursor = Cursor { text, at: 0 };
    match named(&mut cursor, notation, is_first) {
        Ok((name, in_list)) if cursor.at <= BYTES_MAX => {
            Head::Call { name, bytes: cursor.at, in_list }
        }
        Err(Unread::Yet) if text.len() <= BYTES_MAX + MARK_BYTES_MAX => Head::Open,
        _ => Head::Other,
    }
}

/// A call's name, and whether a list begins before it.
fn named(cursor: &mut Cursor<'_>, notation: CallNotation, is_first: bool) -> Read<(String, bool)> {
    let blocks = match notation {
        CallNotation::ArgumentTags(tags) => return Ok((behind_tags(cursor, tags)?, false)),
        CallNotation::Braces => return Ok((before_brace(cursor)?, false)),
        CallNotation::Blocks(blocks) => Some(blocks),
        _ => None,
    };
    if let Some((blocks, marks)) = blocks.and_then(|blocks| Some((blocks, blocks.marks()?))) {
        return Ok((behind_marks(cursor, blocks, marks)?, false));
    }
    let may_list = is_first && !matches!(notation, CallNotation::Tagged | CallNotation::Bare);
    let in_list = may_list && cursor.peek()? == '[';
    if in_list {
        cursor.take("[")?;
    }
    let names = match blocks {
        Some(blocks) => blocks.object_names(),
        None => Some(["name", notation.arguments_name()]),
    };
    let name = match names {
        Some(names) => in_object(cursor, names)?,
        None => in_field(cursor)?,
    };
    Ok((name, in_list))
}

/// The name in an object that has it before the arguments, with nothing but plain values there.
fn in_object(cursor: &mut Cursor<'_>, [name, arguments]: [&str; 2]) -> Read<String> {
    cursor.take("{")?;
    let mut found = None;
    loop {
        let key = cursor.string()?;
        cursor.take(":")?;
        match cursor.peek()? {
            '{' if key == arguments => return found.ok_or(Unread::Ever),
            '"' => {
                let value = cursor.string()?;
                found = if key == name { Some(value) } else { found };
            }
            first if first.is_ascii_alphanumeric() || first == '-' => cursor.plain()?,
            _ => return Err(Unread::Ever),
        }
        cursor.take(",")?;
    }
}

/// The name that the only field of an object has.
fn in_field(cursor: &mut Cursor<'_>) -> Read<String> {
    cursor.take("{")?;
    let name = cursor.string()?;
    cursor.take(":")?;
    if cursor.peek()? == '{' { Ok(name) } else { Err(Unread::Ever) }
}

/// The name between marks, or behind both of them: see [`Blocks`].
fn behind_marks(
    cursor: &mut Cursor<'_>,
    blocks: Blocks,
    [open, between, _]: [&str; 3],
) -> Read<String> {
    let is_near_name = |c: char| is_of_name(c) || c.is_whitespace() || c == ':';
    cursor.take(open)?;
    let head = cursor.until(between, is_near_name)?;
    let name = match cursor.peek()? {
        '{' | '`' => head,
        _ => cursor.up_to(['\n', '{', '`'], is_near_name)?,
    };
    if cursor.peek()? == '`' {
        cursor.take("```")?;
        match cursor.take("json") {
            Err(Unread::Yet) => return Err(Unread::Yet),
            Ok(()) | Err(Unread::Ever) => {}
        }
    }
    if cursor.peek()? != '{' {
        return Err(Unread::Ever);
    }
    name_of(blocks.function_in(name))
}

/// The name between tags that an argument, or the call's end, stands behind.
fn behind_tags(cursor: &mut Cursor<'_>, tags: ArgumentTags) -> Read<String> {
    let name = if tags.name.1.is_empty() {
        cursor.space();
        let rest = cursor.rest();
        let end = rest.find(|c| !is_of_name(c) && c != ' ').ok_or(Unread::Yet)?;
        cursor.at += end;
        &rest[..end]
    } else {
        cursor.take(tags.name.0)?;
        cursor.until(tags.name.1, |c| is_of_name(c) || c.is_whitespace())?
    };
    let name = name_of(name)?;
    cursor.space();
    let rest = cursor.rest();
    let next = [tags.key.0, tags.end];
    let mut next = next.iter().filter(|mark| !mark.is_empty());
    if next.clone().any(|mark| rest.starts_with(mark)) {
        return Ok(name);
    }
    let is_begun = next.any(|mark| mark.starts_with(rest));
    Err(if is_begun { Unread::Yet } else { Unread::Ever })
}

/// The name that a brace stands behind.
fn before_brace(cursor: &mut Cursor<'_>) -> Read<String> {
    cursor.take(braces::CALL)?;
    name_of(cursor.up_to(['{'; 3], |c| is_of_name(c) || c.is_whitespace())?)
}

fn name_of(text: &str) -> Read<String> {
    let name = text.trim();
    let is_name = !name.is_empty() && name.chars().all(is_of_name);
    if is_name { Ok(name.to_owned()) } else { Err(Unread::Ever) }
}

/// Bytes at the end of `text` that begin `mark`.
pub(super) fn begun(text: &str, mark: &str) -> usize {
    let begins = |&bytes: &usize| mark.get(..bytes).is_some_and(|begun| text.ends_with(begun));
    (1..mark.len()).rev().find(begins).unwrap_or(0)
}

/// Reads text of which more may come.
pub(super) struct Cursor<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
}

impl<'t> Cursor<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// What comes behind space.
    fn peek(&mut self) -> Read<char> {
        self.space();
        self.rest().chars().next().ok_or(Unread::Yet)
    }

    /// Takes `mark`, and space before it.
    pub(super) fn take(&mut self, mark: &str) -> Read<()> {
        self.space();
        let rest = self.rest();
        if rest.starts_with(mark) {
            self.at += mark.len();
            return Ok(());
        }
        Err(if mark.starts_with(rest) { Unread::Yet } else { Unread::Ever })
    }

    /// Takes what stands before `mark`, of characters that `may_be` there, and the mark.
    pub(super) fn until(&mut self, mark: &str, may_be: impl Fn(char) -> bool) -> Read<&'t str> {
        let rest = self.rest();
        let end = rest.find(mark);
        let text = &rest[..end.unwrap_or(rest.len() - begun(rest, mark))];
        if !text.chars().all(may_be) {
            return Err(Unread::Ever);
        }
        self.at += end.ok_or(Unread::Yet)? + mark.len();
        Ok(text)
    }

    /// Takes what stands before one of `marks`, which it leaves.
    fn up_to(&mut self, marks: [char; 3], may_be: impl Fn(char) -> bool) -> Read<&'t str> {
        let rest = self.rest();
        let end = rest.find(marks);
        let text = &rest[..end.unwrap_or(rest.len())];
        if !text.chars().all(may_be) {
            return Err(Unread::Ever);
        }
        self.at += end.ok_or(Unread::Yet)?;
        Ok(text)
    }

    /// Takes a text as JSON has it.
    fn string(&mut self) -> Read<String> {
        self.take("\"")?;
        let (begin, mut escaped) = (self.at - 1, false);
        for (at, byte) in self.rest().bytes().enumerate() {
            match byte {
                b'"' if !escaped => {
                    self.at += at + 1;
                    let json = &self.text[begin..self.at];
                    return serde_json::from_str(json).map_err(|_| Unread::Ever);
                }
                b'\\' => escaped = !escaped,
                _ => escaped = false,
            }
        }
        Err(Unread::Yet)
    }

    /// Takes a number or a word.
    fn plain(&mut self) -> Read<()> {
        let is_other = |c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c));
        self.at += self.rest().find(is_other).ok_or(Unread::Yet)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{BLOCKS, TAGS};
    use super::*;

    /// However little of a head there is, it may become one; all of it is one.
    fn check(notation: CallNotation, head: &str, behind: &str) {
        let text = format!("{head}{behind}");
        for end in (0..head.len()).filter(|end| text.is_char_boundary(*end)) {
            assert_eq!(read(notation, &text[..end], true), Head::Open, "{:?}", &text[..end]);
        }
        let in_list = head.starts_with('[');
        let want = Head::Call { name: "f".to_owned(), bytes: head.len(), in_list };
        assert_eq!(read(notation, &text, true), want, "{text:?}");
    }

    #[test]
    fn heads_are_known_when_arguments_begin() {
        let named = |taught: &str| CallNotation::of(&format!("{{{{ tools }}}}{taught}")).unwrap();
        let object = "{\"id\": 1, \"name\": \"f\", \"arguments\": ";
        check(CallNotation::Tagged, &format!("\n{object}"), "{");
        check(CallNotation::Listed, &format!("[{object}"), "{");
        check(CallNotation::Bare, "{\"name\": \"f\", \"parameters\": ", "{");
        let [v3, v31, kimi, phi, lists] = BLOCKS.map(named);
        let fenced = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n";
        check(v3, fenced, "{");
        check(v31, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>", "{");
        check(kimi, "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|> ", "{");
        check(phi, &format!("[{object}"), "{");
        check(lists, object, "{");
        let apertus = named("<|tools_prefix|><|tools_suffix|>");
        check(apertus, "[{\"f\": ", "{");
        let [coder, seed, minimax, glm] = TAGS.map(named);
        for tags in [coder, seed] {
            check(tags, "\n<function=f>\n", "<parameter=");
        }
        check(minimax, "<invoke name=\"f\">", "</invoke>");
        check(glm, "f\n", "<arg_key>");
        check(CallNotation::Braces, "\ncall:f", "{");
    }

    #[test]
    fn what_is_none_is_told_when_it_is_whole() {
        let check = |text: &str| {
            assert_eq!(read(CallNotation::Tagged, text, true), Head::Other, "{text:?}");
        };
        check("f");
        check("[{");
        check("{\"arguments\": {");
        check("{\"name\": 5}");
        check("{\"name\": \"f\", \"arguments\": \"{}\"}");
        check("{\"function\": {");
        check(&format!("{{\"{}", "a".repeat(BYTES_MAX + MARK_BYTES_MAX)));
    }
}

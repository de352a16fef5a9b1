//! Arguments between tags, as JSON while they come: a text as it comes, and what else there is when
//! its end has come, as before that it is not known what it is.

use std::sync::Arc;

use serde_json::Value;

use super::ArgumentTags;
use super::head::{Cursor, Unread, begun};
use super::tags::typed;

/// The arguments of one call.
#[derive(Debug, Clone)]
pub(super) struct LiveTags {
    tags: ArgumentTags,
    function: String,
    texts: Arc<[String]>,
    at: At,
    /// Whether the object was begun, which callers take nothing else for.
    has_begun: bool,
    /// Whether any was told.
    has_any: bool,
    /// Bytes of what is held in which no argument ends: looked through once.
    looked: usize,
}

/// Names of arguments are short: what is longer is none.
const KEY_BYTES_MAX: usize = 512;

#[derive(Debug, Clone)]
enum At {
    /// Where an argument may begin.
    Arguments,
    /// In the text of this one, which is no text by its type.
    Value(String),
    /// In one that is; `begins`: nothing of it was told.
    Text { begins: bool },
    /// Behind something that is no argument.
    Malformed,
}

/// Where an argument's text ends.
enum End {
    At {
        end: usize,
        next: usize,
    },
    /// Not before so many bytes.
    Open(usize),
}

impl LiveTags {
    /// Of a call of `function`; `texts` as the parser has them.
    pub(super) fn new(tags: ArgumentTags, function: String, texts: Arc<[String]>) -> Self {
        let (at, has_begun, has_any) = (At::Arguments, false, false);
        Self { tags, function, texts, at, has_begun, has_any, looked: 0 }
    }

    /// Takes what it can of what is held, and gives the JSON of that, and whether the call is over.
    /// `is_last`: nothing follows.
    pub(super) fn step(&mut self, held: &mut String, is_last: bool) -> (String, bool) {
        let begin = if self.has_begun { "" } else { "{" };
        let mut told = begin.to_owned();
        self.has_begun = true;
        loop {
            let step = match self.at.clone() {
                At::Arguments => self.argument(held, is_last, &mut told),
                At::Value(key) => self.value(held, is_last, &key, &mut told),
                At::Text { begins } => self.text(held, is_last, begins, &mut told),
                At::Malformed => Some(self.malformed(held, &mut told)),
            };
            if let Some(is_over) = step {
                return (told, is_over);
            }
        }
    }

    /// What ends a function's arguments.
    fn end(&self) -> &'static str {
        if self.tags.end.is_empty() { self.tags.block.1 } else { self.tags.end }
    }

    /// Whether `rest`, which nothing follows, is what there is of the arguments' end.
    fn is_cut_end(&self, rest: &str) -> bool {
        let is_begun = [self.end(), self.tags.block.1].iter().any(|end| end.starts_with(rest));
        // Where nothing else ends them, they are whole.
        is_begun && (self.tags.end.is_empty() || !self.tags.key.0.starts_with(rest))
    }

    /// Goes on where an argument, or the end of all, may come; `None`: with what comes next.
    fn argument(&mut self, held: &mut String, is_last: bool, told: &mut String) -> Option<bool> {
        let rest = held.trim_start();
        let (space, end, close) = (held.len() - rest.len(), self.end(), self.tags.block.1);
        // Models forget a call's end before the block's.
        let is_end = rest.starts_with(end) || rest.starts_with(close);
        if is_end || is_last && self.is_cut_end(rest) {
            told.push('}');
            // The block's end is for who reads on.
            let bytes = match rest {
                rest if rest.starts_with(close) => space,
                rest if rest.starts_with(end) => space + end.len(),
                _ => held.len(),
            };
            held.drain(..bytes);
            return Some(true);
        }
        if end.starts_with(rest) || close.starts_with(rest) {
            return Some(false);
        }
        let (key, bytes) = match self.key(rest) {
            Ok(found) if found.1 <= KEY_BYTES_MAX => found,
            Err(Unread::Yet) if rest.len() <= KEY_BYTES_MAX => return Some(false),
            _ => {
                self.at = At::Malformed;
                return None;
            }
        };
        held.drain(..space + bytes);
        let own = (self.function.as_str(), key.as_str());
        if self.texts.iter().any(|text| text.split_once(' ') == Some(own)) {
            self.begin(&key, told);
            told.push('"');
            self.at = At::Text { begins: true };
        } else {
            self.at = At::Value(key);
        }
        None
    }

    /// The name of the argument that `text` begins with, and the bytes before its own text.
    fn key(&self, text: &str) -> Result<(String, usize), Unread> {
        let mut cursor = Cursor { text, at: 0 };
        cursor.take(self.tags.key.0)?;
        let key = cursor.until(self.tags.key.1, |_| true)?.trim().to_owned();
        if !self.tags.value.0.is_empty() {
            cursor.take(self.tags.value.0)?;
        }
        Ok((key, cursor.at))
    }

    fn begin(&mut self, key: &str, told: &mut String) {
        told.push_str(if self.has_any { "," } else { "" });
        told.push_str(&Value::from(key).to_string());
        told.push(':');
        self.has_any = true;
    }

    fn value(
        &mut self,
        held: &mut String,
        is_last: bool,
        key: &str,
        told: &mut String,
    ) -> Option<bool> {
        let (end, next) = match self.find_end(held, is_last) {
            End::At { end, next } => (end, next),
            End::Open(_) if is_last && held.contains(self.tags.block.1) => {
                // It was not cut off: its tags are not as they should be.
                self.begin(key, told);
                self.at = At::Malformed;
                return None;
            }
            End::Open(_) => return Some(false),
        };
        let (value, pad) = (&held[..end], self.tags.pad);
        let value = value.strip_prefix(pad).unwrap_or(value);
        let value = typed(value.strip_suffix(pad).unwrap_or(value), false);
        self.begin(key, told);
        told.push_str(&value.to_string());
        held.drain(..next);
        self.at = At::Arguments;
        None
    }

    fn text(
        &mut self,
        held: &mut String,
        is_last: bool,
        begins: bool,
        told: &mut String,
    ) -> Option<bool> {
        let pad = self.tags.pad;
        if begins {
            if held.len() < pad.len() && !is_last {
                return Some(false);
            }
            if held.starts_with(pad) {
                held.drain(..pad.len());
            }
            self.at = At::Text { begins: false };
        }
        let (bytes, next) = match self.find_end(held, is_last) {
            End::At { end, next } => (end, Some(next)),
            End::Open(bytes) => (bytes, None),
        };
        // What may be the space before the tag is told with what follows it.
        let text = held[..bytes].strip_suffix(pad).unwrap_or(&held[..bytes]);
        told.push_str(&escaped(text));
        let bytes = text.len();
        let Some(next) = next else {
            held.drain(..bytes);
            self.looked -= bytes;
            return Some(false);
        };
        told.push('"');
        held.drain(..next);
        self.at = At::Arguments;
        None
    }

    /// Where the text of an argument ends: before the tag that another argument, or the end of all,
    /// stands behind.
    fn find_end(&mut self, held: &str, is_last: bool) -> End {
        let tag = self.tags.value.1;
        let next = [self.tags.key.0, self.end(), self.tags.block.1];
        let from = std::mem::take(&mut self.looked);
        for (at, tag) in held[from..].match_indices(tag) {
            let end = from + at;
            let behind = end + tag.len();
            let rest = held[behind..].trim_start();
            if next.iter().any(|mark| rest.starts_with(mark)) {
                return End::At { end, next: behind };
            }
            if next.iter().any(|mark| mark.starts_with(rest)) {
                if is_last {
                    return End::At { end, next: behind };
                }
                self.looked = end;
                return End::Open(end);
            }
        }
        self.looked = held.len() - begun(held, tag);
        End::Open(self.looked)
    }

    /// What was told cannot be taken back, so the rest of the call is told as it is.
    fn malformed(&self, held: &mut String, told: &mut String) -> bool {
        let close = self.tags.block.1;
        let end = held.find(close);
        let bytes = end.unwrap_or(held.len() - begun(held, close));
        told.push_str(&held[..bytes]);
        held.drain(..bytes);
        end.is_some()
    }
}

/// A part of a text as JSON has it.
pub(super) fn escaped(text: &str) -> String {
    let json = Value::from(text).to_string();
    json[1..json.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::CallNotation;
    use super::super::tests::TAGS;
    use super::*;

    #[test]
    fn what_is_held_is_looked_through_once() {
        let notation = CallNotation::of(&format!("{{{{ tools }}}}{}", TAGS[0])).unwrap();
        let CallNotation::ArgumentTags(tags) = notation else { panic!("{notation:?}") };
        let mut live = LiveTags::new(tags, "f".to_owned(), Arc::from(["f text".to_owned()]));
        let mut held = "<parameter=x>[</parameter> 1".to_owned();
        assert_eq!(live.step(&mut held, false), ("{".to_owned(), false));
        assert_eq!((held.as_str(), live.looked), ("[</parameter> 1", held.len()));
        held += "]</para";
        assert_eq!(live.step(&mut held, false), (String::new(), false));
        assert_eq!(live.looked, held.len() - "</para".len());
        held += "meter><parameter=text>a</par";
        let told = "\"x\":\"[</parameter> 1]\",\"text\":\"a";
        assert_eq!(live.step(&mut held, false), (told.to_owned(), false));
        assert_eq!((held.as_str(), live.looked), ("</par", 0));
        held += "ameter></tool_call>";
        assert_eq!(live.step(&mut held, false), ("\"}".to_owned(), true));
        assert_eq!(held, "</tool_call>");
    }
}

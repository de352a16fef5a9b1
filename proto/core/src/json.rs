//! JSON from elsewhere, before it is parsed.

use std::borrow::Cow;

/// `text` with null for each number that is none: Python writes these as words without quotes,
/// which JSON does not have.
pub fn plain_json(text: &[u8]) -> Cow<'_, [u8]> {
    const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let (mut plain, mut copied) = (Vec::new(), 0);
    let (mut at, mut is_inside) = (0, false);
    while at < text.len() {
        let is_here = |word: &&&[u8]| !is_inside && text[at..].starts_with(word);
        if let Some(word) = WORDS.iter().find(is_here) {
            plain.extend_from_slice(&text[copied..at]);
            plain.extend_from_slice(b"null");
            at += word.len();
            copied = at;
            continue;
        }
        match text[at] {
            b'"' => is_inside = !is_inside,
            b'\\' => at += 1, // what is escaped ends no string
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    plain.extend_from_slice(&text[copied..]);
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_outside_of_strings_are_null() {
        let check = |text: &str, want: &str| {
            let seen = plain_json(text.as_bytes());
            assert_eq!(String::from_utf8_lossy(&seen), want);
            assert_eq!(matches!(seen, Cow::Borrowed(_)), text == want, "{text}");
        };
        check("", "");
        check(r#"{"a": 1}"#, r#"{"a": 1}"#);
        check(r#"{"a": [0.0, Infinity]}"#, r#"{"a": [0.0, null]}"#);
        check(r#"{"a":-Infinity,"b":NaN}"#, r#"{"a":null,"b":null}"#);
        check("NaN", "null");
        check(r#"{"NaN": "Infinity"}"#, r#"{"NaN": "Infinity"}"#);
        check(r#"["\"", NaN, "\\", NaN, "NaN\" NaN"]"#, r#"["\"", null, "\\", null, "NaN\" NaN"]"#);
        check(r#"["é", NaN"#, r#"["é", null"#);
        check("\"\\", "\"\\");
    }
}

//! JSON values as YAML. Every JSON string is a YAML string too, so what is not plainly a word is
//! written as JSON writes it.

use serde_json::Value;

/// `value` as a YAML document.
pub(crate) fn document(value: &Value) -> String {
    let mut text = String::new();
    write(&mut text, value, 0);
    text
}

/// Writes `value` at this depth, which begins a line, and ends the line.
fn write(text: &mut String, value: &Value, depth: usize) {
    let pad = "  ".repeat(depth);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                text.push_str(&format!("{pad}{}:", scalar(&Value::from(key.as_str()))));
                write_behind(text, value, depth + 1);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let start = text.len();
                write(text, item, depth + 1);
                text.replace_range(start..start + pad.len() + 2, &format!("{pad}- "));
            }
        }
        plain => text.push_str(&format!("{pad}{}\n", scalar(plain))),
    }
}

/// Writes `value` behind a key: on its line if it is plain, below it otherwise.
fn write_behind(text: &mut String, value: &Value, depth: usize) {
    let is_nested = match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    if is_nested {
        text.push('\n');
        write(text, value, depth);
    } else {
        text.push_str(&format!(" {}\n", scalar(value)));
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(word) if is_plain(word) => word.clone(),
        other => other.to_string(),
    }
}

/// Whether YAML takes `word` as this string without quotes: letters first, nothing that has a
/// meaning, and not one of the words that are no strings.
fn is_plain(word: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    let is_word = word.starts_with(|first: char| first.is_ascii_alphabetic());
    let is_taken = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .iter()
        .any(|taken| word.eq_ignore_ascii_case(taken));
    is_word && word.bytes().all(is_fit) && !is_taken
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_yaml() {
        let check = |value: Value, want: &str| assert_eq!(document(&value), want);
        check(json!("up"), "up\n");
        check(json!([]), "[]\n");
        check(
            json!({
                "name": "http://w:7001", "up": true, "none": {}, "word": "No", "number": "12",
                "work": [{ "chunk_idx": 0, "layers": [1, 2] }, { "chunk_idx": 1, "layers": [] }],
                "text": "two words\n", "share": 0.5, "lists": [[1], []],
            }),
            "name: \"http://w:7001\"\nup: true\nnone: {}\nword: \"No\"\nnumber: \"12\"\nwork:\n  \
             - chunk_idx: 0\n    layers:\n      - 1\n      - 2\n  - chunk_idx: 1\n    layers: []\n\
             text: \"two words\\n\"\nshare: 0.5\nlists:\n  - - 1\n  - []\n",
        );
    }
}

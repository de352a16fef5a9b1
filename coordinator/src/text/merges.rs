//! Tokenisers of folders that have no `tokenizer.json` but the two files that GPT-2's was published
//! in, as OPT's and many that were made of GPT-2 have: tokens by their ids, and merges.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use aqueduct_core::{Refusal, limits};
use serde_json::Value;
use tokenizers::{AddedToken, Tokenizer};

use super::TextError;
use super::gguf::{GgufVocabulary, kind};
use super::hf::{bounded, token_text};

/// What the files are called.
pub(super) const FILES: [&str; 2] = ["vocab.json", "merges.txt"];
/// More than any of them has.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// What merges may begin with that is none.
const VERSION: &str = "#version";
/// What begins and ends texts of the classes below, where nothing is said of it.
const END_OF_TEXT: &str = "<|endoftext|>";
/// Fields of `tokenizer_config.json` with tokens that no text is made of, and whether the classes
/// below have one where nothing is said.
const SPECIAL: [(&str, bool); 4] =
    [("bos_token", true), ("eos_token", true), ("unk_token", true), ("pad_token", false)];

/// Whose words are cut as GPT-2's, and whose as Qwen2's.
const GPT2_CLASSES: [&str; 4] =
    ["GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer", "CodeGenTokenizerFast"];
const QWEN2_CLASSES: [&str; 2] = ["Qwen2Tokenizer", "Qwen2TokenizerFast"];
/// Types of models whose tokeniser is GPT-2's where no class is said.
const GPT2_MODELS: [&str; 6] = ["gpt2", "gpt_neo", "gptj", "opt", "phi", "codegen"];
const QWEN2_MODELS: [&str; 3] = ["qwen2", "qwen2_moe", "qwen3"];

/// The tokeniser in these files of `folder`, of which `texts` is `tokenizer_config.json`, where the
/// tokens that are `described` there stand at their ids. `model` is the model's type.
///
/// # Errors
/// A file that cannot be read, ids that are none, or a class that cuts texts in another way.
pub(super) fn read(
    folder: &Path,
    texts: &Value,
    model: &Value,
    described: &BTreeMap<u64, AddedToken>,
) -> Result<Tokenizer, TextError> {
    let pre = pretokenizer(texts, model)?;
    for (field, want) in [("add_prefix_space", false), ("add_eos_token", false)] {
        if texts[field] == !want {
            return Err(Refusal::new(field, !want, want.to_string()).into());
        }
    }
    let text = |path: &Path| std::fs::read_to_string(path);
    let [tokens, merges] = FILES.map(|name| bounded(&folder.join(name), FILE_BYTES_MAX, text));
    let named = |name: &str, what: String| TextError::invalid(name, what);
    let tokens = tokens_by_id(&tokens?).map_err(|what| named(FILES[0], what))?;
    let kinds = tokens.iter().map(|token| kind_of(token, texts, pre)).collect();
    let at = |name: &str| tokens.iter().position(|token| token == name).map(|id| id as u32);
    let vocabulary = GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        bos: said(texts, "bos_token", pre == GPT2).and_then(at),
        adds_bos: Some(texts["add_bos_token"] == true),
        merges: merges_of(&merges?).map_err(|what| named(FILES[1], what))?,
        kinds,
        tokens,
        ..GgufVocabulary::default()
    };
    let mut tokenizer = vocabulary.build()?.tokenizer;
    // Those that are there already take what they are said to take.
    let known = described.values().filter(|token| tokenizer.token_to_id(&token.content).is_some());
    let known: Vec<AddedToken> = known.cloned().collect();
    tokenizer
        .add_tokens(known)
        .map_err(|error| TextError::invalid("added_tokens_decoder", error))?;
    Ok(tokenizer)
}

/// What words are cut by, by the names that GGUF files have for it.
const GPT2: &str = "gpt-2";
const QWEN2: &str = "qwen2";

fn pretokenizer(texts: &Value, model: &Value) -> Result<&'static str, Refusal> {
    let is = |known: &[&str], name: &str| known.contains(&name);
    match (texts["tokenizer_class"].as_str(), model.as_str().unwrap_or("none")) {
        (Some(class), _) if is(&GPT2_CLASSES, class) => Ok(GPT2),
        (Some(class), _) if is(&QWEN2_CLASSES, class) => Ok(QWEN2),
        (None, model) if is(&GPT2_MODELS, model) => Ok(GPT2),
        (None, model) if is(&QWEN2_MODELS, model) => Ok(QWEN2),
        (class, model) => {
            let bound = format!(
                "{} or {}, beside a {} and no tokenizer.json",
                GPT2_CLASSES.join(", "),
                QWEN2_CLASSES.join(", "),
                FILES[0],
            );
            let class = class.map_or_else(|| format!("none, of {model}"), str::to_owned);
            Err(Refusal::new("tokenizer_class", class, bound))
        }
    }
}

/// The token of a field, or of what the class has where there is no such field.
fn said<'t>(texts: &'t Value, field: &str, has_unsaid: bool) -> Option<&'t str> {
    match texts.get(field) {
        None if has_unsaid => Some(END_OF_TEXT),
        given => token_text(given?),
    }
}

fn kind_of(token: &str, texts: &Value, pre: &str) -> i32 {
    let is = |(field, unsaid): (&str, bool)| {
        let unsaid = unsaid && (pre == GPT2 || field != "bos_token");
        said(texts, field, unsaid) == Some(token)
    };
    if SPECIAL.into_iter().any(is) { kind::CONTROL } else { kind::NORMAL }
}

/// `{"token": id}`, of which no id is missing.
fn tokens_by_id(text: &str) -> Result<Vec<String>, String> {
    let ids: HashMap<String, u32> =
        serde_json::from_str(text).map_err(|error| error.to_string())?;
    let count = ids.len();
    Refusal::unless_within("tokens", count, 1, limits::VOCAB_MAX as usize)
        .map_err(|refusal| refusal.to_string())?;
    let mut tokens = vec![None; count];
    for (token, id) in ids {
        let place = tokens.get_mut(id as usize).ok_or_else(|| {
            format!("token {token:?} has id {id}, of {count} tokens: some id is missing")
        })?;
        if let Some(other) = place.replace(token) {
            return Err(format!("id {id} is that of {other:?} and of another token"));
        }
    }
    Ok(tokens.into_iter().flatten().collect())
}

/// A pair in each line, best first.
fn merges_of(text: &str) -> Result<Vec<String>, String> {
    let lines = text.lines().enumerate().filter(|(idx, line)| {
        let is_version = *idx == 0 && line.starts_with(VERSION);
        !is_version && !line.trim().is_empty()
    });
    let pair = |(idx, line): (usize, &str)| match line.split(' ').collect::<Vec<_>>()[..] {
        [left, right] if !left.is_empty() && !right.is_empty() => Ok(line.to_owned()),
        _ => Err(format!("line {} is not two pieces and a space", idx + 1)),
    };
    lines.map(pair).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(texts: &Value, model: &str, files: [&str; 2]) -> Result<Tokenizer, String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in FILES.iter().zip(files) {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        read(folder.path(), texts, &json!(model), &BTreeMap::new())
            .map_err(|error| error.to_string())
    }

    /// Byte-level: `Ġ` stands for a space.
    const VOCAB: &str = r#"{"</s>": 0, "a": 1, "b": 2, "Ġ": 3, "ab": 4, "<|endoftext|>": 5}"#;
    const MERGES: &str = "#version: 0.2\na b\n";

    #[test]
    fn begins_and_marks_as_it_is_told() {
        let check = |texts: Value, model: &str, said: &str, want: &[u32]| {
            let tokenizer = of(&texts, model, [VOCAB, MERGES]).unwrap();
            let seen = tokenizer.encode(said, true).unwrap();
            assert_eq!(seen.get_ids(), want, "{texts} {model} {said}");
        };
        check(Value::Null, "gpt2", "ab<|endoftext|> a", &[4, 5, 3, 1]);
        check(json!({ "add_bos_token": true }), "gpt2", "ab", &[5, 4]);
        let opt = json!({
            "tokenizer_class": "GPT2Tokenizer", "add_bos_token": true,
            "bos_token": { "content": "</s>" }, "eos_token": "</s>", "unk_token": "</s>",
        });
        check(opt, "opt", "a</s>b", &[0, 1, 0, 2]);
        let qwen = json!({ "tokenizer_class": "Qwen2Tokenizer", "add_bos_token": true });
        check(qwen, "none", "ab<|endoftext|>", &[4, 5]);
    }

    #[test]
    fn what_is_no_such_tokeniser_is_refused() {
        let check = |texts: Value, model: &str, files: [&str; 2], want: &str| {
            let error = of(&texts, model, files).unwrap_err();
            assert!(error.contains(want), "{error}: {want}");
        };
        let both = [VOCAB, MERGES];
        let class = |name: &str| json!({ "tokenizer_class": name });
        check(class("RobertaTokenizer"), "gpt2", both, "tokenizer_class = RobertaTokenizer: ");
        check(Value::Null, "whisper", both, "tokenizer_class = none, of whisper: must be ");
        let spaced = json!({ "add_prefix_space": true });
        check(spaced, "gpt2", both, "add_prefix_space = true: must be false");
        check(json!({ "add_eos_token": true }), "gpt2", both, "add_eos_token = true: must be ");
        let refused = |vocab, want| check(Value::Null, "gpt2", [vocab, MERGES], want);
        refused(r#"{"a": 0, "b": 2}"#, "vocab.json: token \"b\" has id 2, of 2 tokens: some id");
        refused(r#"{"a": 0, "b": 0}"#, "vocab.json: id 0 is that of ");
        refused("{}", "vocab.json: tokens = 0: must be ");
        refused("[]", "vocab.json: invalid type");
        refused("", "bytes of vocab.json = 0: must be ");
        let merges = |text, want| check(Value::Null, "gpt2", [VOCAB, text], want);
        merges("a b\na  b\n", "merges.txt: line 2 is not two pieces and a space");
        merges("a b\na c\n", "c");
    }
}

//! Tokenisers of folders that have no `tokenizer.json` but SentencePiece's own file, as Llama's
//! first models and InternLM have.

use std::collections::BTreeMap;
use std::path::Path;

use aqueduct_core::Refusal;
use prost::Message;
use serde_json::Value;
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::{AddedToken, Tokenizer};

use super::TextError;
use super::gguf::{GgufVocabulary, LLAMA, kind};
use super::hf::{bounded, token_text};

/// What such a file is called. Others are called so that are written for tiktoken; their classes
/// have other names.
pub(super) const FILE: &str = "tokenizer.model";
/// More than any of them has.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The classes that read it as Llama's does.
const CLASSES: [&str; 6] = [
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "CodeLlamaTokenizer",
    "CodeLlamaTokenizerFast",
    "InternLM2Tokenizer",
    "InternLM2TokenizerFast",
];
/// Joins pairs by score; others choose among all ways to cut a text.
const BPE: i32 = 2;

/// What `sentencepiece_model.proto` of SentencePiece says of a file, as far as it is needed. Fields
/// that are not there are as that says.
#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
}

#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(float, tag = "2")]
    score: f32,
    /// Its role, numbered as in GGUF files.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Trainer {
    /// How a text is cut.
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
    #[prost(bool, tag = "24")]
    treat_whitespace_as_suffix: bool,
    #[prost(int32, optional, tag = "41")]
    bos_id: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Normalizer {
    #[prost(bytes = "vec", tag = "2")]
    precompiled_charsmap: Vec<u8>,
    #[prost(bool, optional, tag = "3")]
    add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    escape_whitespaces: Option<bool>,
}

/// The tokeniser in the file at `path`, of which `texts` is `tokenizer_config.json`, where the
/// tokens that are `described` there stand at their ids.
///
/// # Errors
/// A file that cannot be read or is another one's, or one that cuts texts in another way.
pub(super) fn read(
    path: &Path,
    texts: &Value,
    described: &BTreeMap<u64, AddedToken>,
) -> Result<Tokenizer, TextError> {
    if let Some(class) = texts["tokenizer_class"].as_str().filter(|it| !CLASSES.contains(it)) {
        let bound = format!("{}, beside a {FILE} and no tokenizer.json", CLASSES.join(", "));
        return Err(Refusal::new("tokenizer_class", class, bound).into());
    }
    let bytes = bounded(path, FILE_BYTES_MAX, |path| std::fs::read(path))?;
    let invalid = |what: String| TextError::invalid(path.display().to_string(), what);
    let model = Model::decode(bytes.as_slice()).map_err(|error| invalid(error.to_string()))?;
    if model.pieces.is_empty() {
        return Err(invalid("it has no pieces".to_owned())); // as other files may be read
    }
    model.tokenizer(texts, described)
}

impl Model {
    fn tokenizer(
        self,
        texts: &Value,
        described: &BTreeMap<u64, AddedToken>,
    ) -> Result<Tokenizer, TextError> {
        let (trainer, normalizer) =
            (self.trainer.unwrap_or_default(), self.normalizer.unwrap_or_default());
        refuse_others(&trainer, &normalizer, texts)?;
        let spaced = normalizer.add_dummy_prefix.unwrap_or(true);
        let adds_space = texts["add_prefix_space"].as_bool().unwrap_or(spaced);
        let mut vocabulary = GgufVocabulary {
            model: LLAMA.to_owned(),
            adds_space: Some(adds_space),
            adds_bos: Some(texts["add_bos_token"].as_bool().unwrap_or(true)),
            ..GgufVocabulary::default()
        };
        for Piece { text, score, kind } in self.pieces {
            vocabulary.tokens.push(text);
            vocabulary.scores.push(score);
            vocabulary.kinds.push(kind.unwrap_or(kind::NORMAL));
        }
        // Some have names for what was left free when it was trained.
        let described = described.iter().filter_map(|(id, token)| {
            let id = usize::try_from(*id).ok().filter(|id| *id < vocabulary.tokens.len())?;
            Some((id, token))
        });
        let described: Vec<_> = described.collect();
        for (id, token) in &described {
            vocabulary.tokens[*id].clone_from(&token.content);
            let is_unknown = vocabulary.kinds[*id] == kind::UNKNOWN;
            vocabulary.kinds[*id] = match token.special {
                _ if is_unknown => kind::UNKNOWN,
                true => kind::CONTROL,
                false => kind::USER_DEFINED,
            };
        }
        let own = u32::try_from(trainer.bos_id.unwrap_or(1)).ok();
        let named = token_text(&texts["bos_token"])
            .and_then(|name| vocabulary.tokens.iter().position(|token| token == name));
        vocabulary.bos = named.map(|id| id as u32).or(own);
        let mut tokenizer = vocabulary.build()?.tokenizer;
        tokenizer
            .add_tokens(described.into_iter().map(|(_, token)| token.clone()))
            .map_err(|error| TextError::invalid("added_tokens_decoder", error))?;
        // Else every text behind a special token gets a space too, as in the first of them.
        if texts["legacy"] == false && adds_space {
            tokenizer
                .with_normalizer(None::<NFC>)
                .map_err(|error| TextError::invalid(FILE, error))?
                .with_pre_tokenizer(Some(Metaspace::new('▁', PrependScheme::First, false)));
        }
        Ok(tokenizer)
    }
}

/// What cuts texts in another way than Llama's.
fn refuse_others(
    trainer: &Trainer,
    normalizer: &Normalizer,
    texts: &Value,
) -> Result<(), TextError> {
    match trainer.model_type.unwrap_or(1) {
        BPE => {}
        other => return Err(Refusal::new("model_type", other, "2, which is BPE").into()),
    }
    let says = |field: &Option<bool>| field.unwrap_or(true);
    for (field, given, want) in [
        ("treat_whitespace_as_suffix", trainer.treat_whitespace_as_suffix, false),
        ("remove_extra_whitespaces", says(&normalizer.remove_extra_whitespaces), false),
        ("escape_whitespaces", says(&normalizer.escape_whitespaces), true),
        ("add_eos_token", texts["add_eos_token"] == true, false),
    ] {
        if given != want {
            return Err(Refusal::new(field, given, want.to_string()).into());
        }
    }
    match normalizer.precompiled_charsmap.len() {
        0 => Ok(()),
        bytes => Err(Refusal::new("precompiled_charsmap", format!("{bytes} bytes"), "none").into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn piece(text: &str, kind: i32) -> Piece {
        Piece { text: text.to_owned(), score: 0.0, kind: Some(kind) }
    }

    fn model(trainer: Trainer, normalizer: Normalizer) -> Model {
        let special = [("<unk>", kind::UNKNOWN), ("<s>", kind::CONTROL), ("</s>", kind::CONTROL)];
        let special = special.map(|(text, kind)| piece(text, kind));
        let letters = ["▁", "a", "b"].map(|text| piece(text, kind::NORMAL));
        let joined = Piece { score: -1.0, ..piece("ab", kind::NORMAL) };
        let pieces = special.into_iter().chain(letters).chain([joined]).collect();
        Model { pieces, trainer: Some(trainer), normalizer: Some(normalizer) }
    }

    fn usual() -> (Trainer, Normalizer) {
        let trainer = Trainer { model_type: Some(BPE), ..Trainer::default() };
        (trainer, Normalizer { remove_extra_whitespaces: Some(false), ..Normalizer::default() })
    }

    fn of(model: &Model, texts: &Value) -> Result<Tokenizer, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::write(&path, model.encode_to_vec()).unwrap();
        read(&path, texts, &BTreeMap::new()).map_err(|error| error.to_string())
    }

    #[test]
    fn begins_as_it_is_told() {
        let (trainer, normalizer) = usual();
        let check = |trainer: &Trainer, normalizer: &Normalizer, texts: Value, want: &[u32]| {
            let tokenizer = of(&model(trainer.clone(), normalizer.clone()), &texts).unwrap();
            let seen = tokenizer.encode("ab", true).unwrap();
            assert_eq!(seen.get_ids(), want, "{trainer:?} {normalizer:?} {texts}");
        };
        check(&trainer, &normalizer, Value::Null, &[1, 3, 6]);
        check(&trainer, &normalizer, json!({ "add_bos_token": false }), &[3, 6]);
        check(&trainer, &normalizer, json!({ "add_prefix_space": false }), &[1, 6]);
        check(&trainer, &normalizer, json!({ "bos_token": "</s>" }), &[2, 3, 6]);
        let other = Trainer { bos_id: Some(2), ..trainer.clone() };
        check(&other, &normalizer, Value::Null, &[2, 3, 6]);
        let unspaced = Normalizer { add_dummy_prefix: Some(false), ..normalizer };
        check(&trainer, &unspaced, Value::Null, &[1, 6]);
    }

    #[test]
    fn what_cuts_in_another_way_is_refused() {
        let check = |trainer: Trainer, normalizer: Normalizer, texts: Value, want: &str| {
            let error = of(&model(trainer, normalizer), &texts).unwrap_err();
            assert!(error.starts_with(want), "{error}: {want}");
        };
        let (trainer, normalizer) = usual();
        let check_usual =
            |texts: Value, want: &str| check(trainer.clone(), normalizer.clone(), texts, want);
        check_usual(json!({ "tokenizer_class": "ChatGLM4Tokenizer" }), "tokenizer_class = Chat");
        check_usual(json!({ "add_eos_token": true }), "add_eos_token = true: must be false");
        let unigram = Trainer { model_type: None, ..trainer.clone() };
        check(unigram, normalizer.clone(), Value::Null, "model_type = 1: must be 2, which is BPE");
        let suffix = Trainer { treat_whitespace_as_suffix: true, ..trainer.clone() };
        check(suffix, normalizer.clone(), Value::Null, "treat_whitespace_as_suffix = true");
        let mapped = Normalizer { precompiled_charsmap: vec![1, 2], ..normalizer.clone() };
        check(trainer.clone(), mapped, Value::Null, "precompiled_charsmap = 2 bytes: must be none");
        let collapsed = Normalizer { remove_extra_whitespaces: None, ..normalizer.clone() };
        check(trainer.clone(), collapsed, Value::Null, "remove_extra_whitespaces = true");
        let plain = Normalizer { escape_whitespaces: Some(false), ..normalizer };
        check(trainer, plain, Value::Null, "escape_whitespaces = false: must be true");
    }

    #[test]
    fn what_is_no_such_file_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let check = |bytes: &[u8], want: &str| {
            std::fs::write(&path, bytes).unwrap();
            let error = read(&path, &Value::Null, &BTreeMap::new()).unwrap_err().to_string();
            assert!(error.contains(want), "{error}: {want}");
        };
        check(b"", "bytes of tokenizer.model = 0");
        check(b"IQ== 0\nIg== 1\n", "tokenizer.model: it has no pieces");
        check(&[0x0a, 0x7f], "tokenizer.model: failed to decode Protobuf message");
        let (trainer, normalizer) = usual();
        let empty = Model { pieces: Vec::new(), ..model(trainer, normalizer) };
        check(&empty.encode_to_vec(), "it has no pieces");
    }
}

//! Tokenisers of folders that have no `tokenizer.json` but Mistral's own file, as Devstral's and
//! Magistral's have.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use aqueduct_core::{Refusal, limits};
use serde::Deserialize;
use tokenizers::models::bpe::Vocab;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{SplitDelimiterBehavior, Tokenizer};

use super::TextError;
use super::gguf::{GgufVocabulary, kind};
use super::hf::bounded;
use super::pieces::byte_level_alphabet;
use super::ranks;

/// What such a file is called.
pub(super) const FILE: &str = "tekken.json";
/// More than any of them has.
const FILE_BYTES_MAX: u64 = 128 << 20;
/// Special tokens of files that do not list them, in the order of their ids (mistral-common).
const UNLISTED: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];
/// Begins every text.
const BOS: &str = "<s>";

#[derive(Deserialize)]
struct Tekken {
    config: Config,
    vocab: Vec<Token>,
    special_tokens: Option<Vec<Special>>,
}

#[derive(Deserialize)]
struct Config {
    /// Cuts texts into words.
    pattern: String,
    /// With special tokens, which come first; what is listed beyond it is none.
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct Token {
    rank: usize,
    /// In base64.
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
    #[serde(default = "yes")]
    is_control: bool,
}

fn yes() -> bool {
    true
}

/// The tokeniser in the file at `path`.
///
/// # Errors
/// A file that cannot be read, or ranks that are no ids.
pub(super) fn read(path: &Path) -> Result<Tokenizer, TextError> {
    let bytes = bounded(path, FILE_BYTES_MAX, |path| std::fs::read(path))?;
    let invalid = |what: String| TextError::invalid(path.display().to_string(), what);
    let file: Tekken = serde_json::from_slice(&bytes).map_err(|err| invalid(err.to_string()))?;
    let pattern = SplitPattern::Regex(file.config.pattern.clone());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
        .map_err(|error| invalid(format!("pattern: {error}")))?;
    let vocabulary = file.vocabulary().map_err(invalid)?;
    let mut tokenizer = vocabulary.build()?.tokenizer;
    let bytes = ByteLevel::new(false, true, false);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![split.into(), bytes.into()])));
    Ok(tokenizer)
}

impl Tekken {
    fn vocabulary(self) -> Result<GgufVocabulary, String> {
        let said = |refusal: Refusal| refusal.to_string();
        let Config { default_vocab_size: size, default_num_special_tokens: first, .. } =
            self.config;
        Refusal::unless_within("default_vocab_size", size, 1, limits::VOCAB_MAX as usize)
            .map_err(said)?;
        Refusal::unless_within("default_num_special_tokens", first, UNLISTED.len(), size)
            .map_err(said)?;
        let (mut tokens, mut kinds): (Vec<String>, Vec<i32>) =
            (0..first).map(|id| (format!("<SPECIAL_{id}>"), kind::CONTROL)).unzip();
        let unlisted = || {
            let all = UNLISTED.iter().enumerate();
            let special = |(rank, name): (usize, &&str)| Special {
                rank,
                token_str: (*name).to_owned(),
                is_control: true,
            };
            all.map(special).collect()
        };
        for Special { rank, token_str, is_control } in self.special_tokens.unwrap_or_else(unlisted)
        {
            let place = tokens.get_mut(rank).ok_or_else(|| {
                format!("special token {token_str:?} has rank {rank}, of {first}")
            })?;
            *place = token_str;
            kinds[rank] = if is_control { kind::CONTROL } else { kind::USER_DEFINED };
        }
        let words = words(self.vocab, size - first)?;
        let ids: Vocab = (0..).zip(&words).map(|(id, word)| (word.clone(), id)).collect();
        let merges = ranks::merges(&words, &ids);
        kinds.extend(words.iter().map(|_| kind::NORMAL));
        let bos = tokens.iter().position(|token| token == BOS);
        tokens.extend(words);
        Ok(GgufVocabulary {
            model: "gpt2".to_owned(),
            pre: Some("tekken".to_owned()),
            merges: merges.into_iter().map(|(left, right)| format!("{left} {right}")).collect(),
            bos: bos.map(|id| id as u32),
            adds_bos: Some(true),
            tokens,
            kinds,
            ..GgufVocabulary::default()
        })
    }
}

/// The first `count` tokens, in the characters that byte-level tokenisers write for bytes.
fn words(vocab: Vec<Token>, count: usize) -> Result<Vec<String>, String> {
    let spelled: HashMap<u8, char> =
        byte_level_alphabet().into_iter().map(|(letter, byte)| (byte, letter)).collect();
    if vocab.len() < count {
        return Err(format!("vocab has {} tokens: must be at least {count}", vocab.len()));
    }
    let word = |(want, Token { rank, token_bytes }): (usize, Token)| {
        let bytes = ranks::base64(&token_bytes).filter(|bytes| !bytes.is_empty());
        let bytes = bytes.ok_or_else(|| format!("token {rank} is not in base64"))?;
        match rank == want {
            true => Ok(bytes.iter().map(|byte| spelled[byte]).collect()),
            false => Err(format!("token {rank} stands where token {want} must")),
        }
    };
    let words: Vec<String> =
        vocab.into_iter().take(count).enumerate().map(word).collect::<Result<_, _>>()?;
    // Texts that have such a byte would lose it.
    let known: HashSet<&str> = words.iter().map(String::as_str).collect();
    match (0..=u8::MAX).find(|byte| !known.contains(spelled[byte].to_string().as_str())) {
        Some(byte) => Err(format!("byte {byte} is no token")),
        None => Ok(words),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    /// All bytes and three words, behind 21 special tokens.
    fn file() -> Value {
        let letter = |value: u8| ALPHABET[usize::from(value)] as char;
        let of_one = |byte: u8| format!("{}{}==", letter(byte >> 2), letter((byte & 3) << 4));
        let words = ["YWI=", "YWJj", "IGE="].map(str::to_owned); // "ab", "abc" and " a"
        let all = (0..=u8::MAX).map(of_one).chain(words).enumerate();
        let all = all.map(|(rank, bytes)| json!({ "rank": rank, "token_bytes": bytes }));
        json!({
            "config": {
                "pattern": r" ?\p{L}+|.", "default_vocab_size": 280,
                "default_num_special_tokens": 21,
            },
            "vocab": all.collect::<Vec<_>>(),
        })
    }

    fn of(file: &Value) -> Result<Tokenizer, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::write(&path, file.to_string()).unwrap();
        read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn special_tokens_come_first() {
        let check = |file: &Value, text: &str, want: &[u32]| {
            let seen = of(file).unwrap().encode(text, true).unwrap();
            assert_eq!(seen.get_ids(), want, "{text}");
        };
        let mut file = file();
        check(&file, "abc a", &[1, 278, 279]);
        check(&file, "[INST]ab<SPECIAL_20>", &[1, 3, 277, 20]);
        file["config"]["default_vocab_size"] = 278.into(); // without the last two words
        check(&file, "abc a", &[1, 277, 21 + 99, 21 + 32, 21 + 97]);
        file["special_tokens"] = json!([
            { "rank": 0, "token_str": "<s>", "is_control": true },
            { "rank": 7, "token_str": "[THINK]", "is_control": false },
        ]);
        check(&file, "[THINK]ab[INST]", &[0, 7, 277, 21 + 91, 94, 99, 104, 105, 114]);
    }

    #[test]
    fn ranks_are_ids() {
        let check = |at: &str, value: Value, want: &str| {
            let mut file = file();
            *file.pointer_mut(at).unwrap() = value;
            let error = of(&file).unwrap_err();
            assert!(error.contains(want), "{error}: {want}");
        };
        check("/vocab/3/rank", 4.into(), "token 4 stands where token 3 must");
        check("/vocab/3/token_bytes", "A".into(), "token 3 is not in base64");
        check("/vocab/3/token_bytes", "AA==".into(), "byte 3 is no token");
        check("/config/default_vocab_size", 281.into(), "vocab has 259 tokens: must be at least");
        check("/config/default_vocab_size", 0.into(), "default_vocab_size = 0: must be");
        check("/config/default_num_special_tokens", 19.into(), "default_num_special_tokens = 19");
        check("/config/pattern", "(".into(), "pattern: ");
        let mut other = file();
        other["special_tokens"] = json!([{ "rank": 21, "token_str": "<s>" }]);
        let error = of(&other).unwrap_err();
        assert!(error.ends_with("special token \"<s>\" has rank 21, of 21"), "{error}");
    }
}

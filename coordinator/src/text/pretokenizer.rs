//! How a text is cut into words before merging, by the name that GGUF files give it.

use aqueduct_core::Refusal;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// What a byte-level tokeniser does before and while merging.
pub(super) struct Family {
    pub(super) pretokenizer: PreTokenizerWrapper,
    /// Unicode is composed first.
    pub(super) composes: bool,
    /// A word that is a token is taken whole, whatever its merges.
    pub(super) ignores_merges: bool,
    /// The begin token is added unless the file says otherwise.
    pub(super) adds_bos: bool,
}

/// # Errors
/// A name that is not known: other rules would give other tokens without a word.
pub(super) fn family(name: &str) -> Result<Family, Refusal> {
    let byte_level = |use_regex| ByteLevel::new(false, true, use_regex).into();
    let words = |regex: &str| -> Result<PreTokenizerWrapper, Refusal> {
        let pattern = SplitPattern::Regex(regex.to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
        let split =
            split.map_err(|error| Refusal::new("tokenizer.ggml.pre", name, error.to_string()))?;
        Ok(Sequence::new(vec![split.into(), byte_level(false)]).into())
    };
    let plain = |pretokenizer| Family {
        pretokenizer,
        composes: false,
        ignores_merges: false,
        adds_bos: false,
    };
    Ok(match name {
        "gpt-2" | "default" => plain(byte_level(true)),
        "smollm" => plain(Sequence::new(vec![Digits::new(true).into(), byte_level(true)]).into()),
        "llama-bpe" | "llama3" | "llama-v3" => {
            Family { ignores_merges: true, adds_bos: true, ..plain(words(LLAMA3)?) }
        }
        "qwen2" | "deepseek-r1-qwen" => Family { composes: true, ..plain(words(QWEN2)?) },
        "tekken" => Family { ignores_merges: true, adds_bos: true, ..plain(words(TEKKEN)?) },
        _ => {
            let bound = "gpt-2, default, smollm, llama-bpe, qwen2 or tekken";
            return Err(Refusal::new("tokenizer.ggml.pre", name, bound));
        }
    })
}

//! Long texts, encoded in parts: on all cores, and in as much memory as a few parts take. The
//! library needs some 300 bytes for a token while it encodes a text.
//!
//! The tokens are those of the whole. A text is cut between an ASCII letter and a space that such
//! a letter follows, and this is done only for tokenisers of which it is known that nothing they
//! look for reaches over such a place: see [`Parts::new`].

use aqueduct_core::TokenId;
use tokenizers::{
    AddedToken, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    Tokenizer,
};

use super::pretokenizer::Expression;

/// Bytes of a part, and a few more until there is a place to cut.
pub(super) const PART_BYTES: usize = 64 << 10;
/// Parts that are encoded at a time.
const BATCH: usize = 16;

/// What whole texts have around their parts.
#[derive(Debug)]
pub(super) struct Parts {
    before: Vec<TokenId>,
    after: Vec<TokenId>,
}

impl Parts {
    /// None where the parts of a text may have other tokens than the whole: where words are not
    /// cut, before they are merged, by expressions that are known to end a word before a space;
    /// where text is rewritten otherwise than by composing characters; and where an added token
    /// reaches over such a place, or changes with what is beyond.
    pub(super) fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let composes = matches!(tokenizer.get_normalizer(), None | Some(NormalizerWrapper::NFC(_)));
        let merges = match tokenizer.get_model() {
            ModelWrapper::BPE(merges) => merges.dropout.is_none(),
            _ => false,
        };
        let words = words(tokenizer.get_pre_tokenizer()?) == Some(Expression::EndsWords);
        let added = tokenizer.get_added_tokens_decoder().values().all(is_local);
        (composes && merges && words && added).then_some(())?;
        let ids = |add_special| -> Option<Vec<TokenId>> {
            Some(tokenizer.encode_fast("a", add_special).ok()?.get_ids().to_vec())
        };
        let (with, without) = (ids(true)?, ids(false)?);
        let (before, after) = around(&with, &without)?;
        Some(Self { before: before.to_vec(), after: after.to_vec() })
    }

    /// The tokens of `text` in parts of `part_bytes` or more.
    ///
    /// # Errors
    /// The tokeniser's.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        (text, part_bytes): (&str, usize),
        add_special: bool,
    ) -> tokenizers::Result<Vec<TokenId>> {
        let mut tokens = if add_special { self.before.clone() } else { Vec::new() };
        for batch in cut(text, part_bytes).chunks(BATCH) {
            for part in tokenizer.encode_batch_fast(batch.to_vec(), false)? {
                tokens.extend_from_slice(part.get_ids());
            }
        }
        tokens.extend(self.after.iter().filter(|_| add_special));
        Ok(tokens)
    }
}

/// What stands before and behind `text` in `whole`.
pub(super) fn around<'w>(
    whole: &'w [TokenId],
    text: &[TokenId],
) -> Option<(&'w [TokenId], &'w [TokenId])> {
    let at = whole.windows(text.len().max(1)).position(|tokens| tokens == text)?;
    Some((&whole[..at], &whole[at + text.len()..]))
}

/// What the expressions of a pretokeniser together do at such a place; None if that is not known.
/// Each cuts further what the one before it has cut.
fn words(pretokenizer: &PreTokenizerWrapper) -> Option<Expression> {
    match pretokenizer {
        PreTokenizerWrapper::Sequence(all) => {
            let all = all.as_ref();
            let (_, before) = all.split_last()?;
            // Behind `ByteLevel` a space is a letter: what looks for spaces comes before it.
            let reads_text = |one: &PreTokenizerWrapper| {
                matches!(one, PreTokenizerWrapper::Split(_) | PreTokenizerWrapper::Digits(_))
            };
            if !before.iter().all(reads_text) {
                return None;
            }
            all.iter().map(words).reduce(|first, next| Some(first?.max(next?))).flatten()
        }
        PreTokenizerWrapper::Split(split) => {
            let isolates = split.behavior == SplitDelimiterBehavior::Isolated && !split.invert;
            Expression::of(&split.pattern).filter(|_| isolates)
        }
        PreTokenizerWrapper::Digits(_) => Some(Expression::IsLocal),
        PreTokenizerWrapper::ByteLevel(bytes) if bytes.add_prefix_space => None,
        PreTokenizerWrapper::ByteLevel(bytes) if bytes.use_regex => Some(Expression::EndsWords),
        PreTokenizerWrapper::ByteLevel(_) => Some(Expression::IsLocal),
        _ => None,
    }
}

/// Whether such a place is nowhere in the token, and the token is found in the part before and
/// in the part behind it wherever it is found in the whole.
fn is_local(token: &AddedToken) -> bool {
    let (bytes, letter) = (token.content.as_bytes(), u8::is_ascii_alphabetic);
    let reaches_over = bytes.array_windows().any(|[first, next]| letter(first) && *next == b' ');
    let takes_spaces = token.rstrip && bytes.last().is_some_and(letter);
    let looks_back = token.single_word && bytes.first() == Some(&b' ');
    !reaches_over && !takes_spaces && !looks_back
}

/// Cut behind every `part_bytes`, at the next place where that may be.
fn cut(mut text: &str, part_bytes: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    while let Some((part, rest)) = next_cut(text, part_bytes).map(|at| text.split_at(at)) {
        parts.push(part);
        text = rest;
    }
    parts.push(text);
    parts
}

fn next_cut(text: &str, part_bytes: usize) -> Option<usize> {
    let bytes = text.as_bytes().get(part_bytes - 1..)?;
    let letter = u8::is_ascii_alphabetic;
    let mut around = bytes.array_windows();
    let at = around.position(|[last, cut, next]| letter(last) && *cut == b' ' && letter(next))?;
    Some(part_bytes + at)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use serde_json::Value;
    use tokenizers::normalizers::Lowercase;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::pre_tokenizers::sequence::Sequence;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

    use super::*;
    use crate::text::{GgufVocabulary, hf};

    const FAMILIES: [&str; 13] = [
        "default",
        "gpt-2",
        "smollm",
        "llama-bpe",
        "smaug-bpe",
        "qwen2",
        "tekken",
        "seed-coder",
        "minicpm5",
        "viking",
        "deepseek-coder",
        "deepseek-llm",
        "deepseek-v3",
    ];

    fn fixture(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizers").join(name)
    }

    fn vocabulary(name: &str) -> GgufVocabulary {
        let bytes = std::fs::read(fixture(name)).unwrap();
        GgufVocabulary::from_gguf(&aqueduct_gguf::Gguf::parse_metadata(&bytes).unwrap()).unwrap()
    }

    /// The shipped model's, and of each family of pretokenisers one.
    fn tokenizers() -> Vec<(String, Tokenizer)> {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model");
        let shipped = ("shipped".to_owned(), hf::read(&model).unwrap().tokenizer);
        let families = vocabulary("families.gguf");
        let family = |name: &&str| {
            let named = GgufVocabulary { pre: Some((*name).to_owned()), ..families.clone() };
            ((*name).to_owned(), named.build().unwrap().tokenizer)
        };
        let whole = ["qwen2.gguf", "llama3.gguf"]
            .map(|name| (name.to_owned(), vocabulary(name).build().unwrap().tokenizer));
        [shipped].into_iter().chain(whole).chain(FAMILIES.iter().map(family)).collect()
    }

    fn same(name: &str, tokenizer: &Tokenizer, text: &str, part_bytes: usize) {
        let parts = Parts::new(tokenizer).unwrap_or_else(|| panic!("{name} has parts"));
        for add_special in [true, false] {
            let seen = parts.encode(tokenizer, (text, part_bytes), add_special).unwrap();
            let whole = tokenizer.encode_fast(text, add_special).unwrap();
            assert_eq!(seen, whole.get_ids(), "{name}, {part_bytes} bytes: {text:?}");
        }
    }

    #[test]
    fn parts_have_the_tokens_of_the_whole() {
        let cases = std::fs::read_to_string(fixture("families.json")).unwrap();
        let cases: Value = serde_json::from_str(&cases).unwrap();
        let texts = cases["texts"].as_array().unwrap().iter();
        let said = |text: &Value| format!("{} and so on ", text.as_str().unwrap());
        let text: String = texts.map(said).collect();
        for (name, tokenizer) in tokenizers() {
            [1, 100, 1000].into_iter().for_each(|bytes| same(&name, &tokenizer, &text, bytes));
        }
    }

    #[test]
    fn whose_parts_may_differ_has_none() {
        let check = |change: &dyn Fn(&mut Tokenizer), has_parts| {
            let mut tokenizer = vocabulary("qwen2.gguf").build().unwrap().tokenizer;
            change(&mut tokenizer);
            assert_eq!(Parts::new(&tokenizer).is_some(), has_parts);
        };
        let adds = |content: &'static str, change: fn(AddedToken) -> AddedToken| {
            move |tokenizer: &mut Tokenizer| {
                let added = tokenizer.add_tokens([change(AddedToken::from(content, false))]);
                assert_eq!(added.unwrap(), 1);
            }
        };
        let split = |pattern: &'static str| {
            move |tokenizer: &mut Tokenizer| {
                let pattern = SplitPattern::Regex(pattern.to_owned());
                let isolated = SplitDelimiterBehavior::Isolated;
                let split = Split::new(pattern, isolated, false).unwrap();
                tokenizer.with_pre_tokenizer(Some(split));
            }
        };
        check(&|_| {}, true);
        check(&adds("<of its own>", |token| token), false);
        check(&adds("<own>", |token| token.rstrip(true)), true);
        check(&adds("own", |token| token.rstrip(true)), false);
        check(&adds("own ", |token| token), false);
        check(&adds(" own", |token| token), true);
        check(&adds(" own", |token| token.single_word(true)), false);
        check(&split(r"\p{N}"), false); // does not cut there
        check(&split(r"\w+ \w+"), false); // is not known
        let lowers = |tokenizer: &mut Tokenizer| _ = tokenizer.with_normalizer(Some(Lowercase));
        let cuts_none =
            |tokenizer: &mut Tokenizer| _ = tokenizer.with_pre_tokenizer(None::<ByteLevel>);
        check(&lowers, false);
        check(&cuts_none, false);
        let turned = |tokenizer: &mut Tokenizer| {
            let Some(PreTokenizerWrapper::Sequence(all)) = tokenizer.get_pre_tokenizer() else {
                panic!("Qwen's is a sequence");
            };
            let turned = all.as_ref().iter().rev().cloned().collect();
            tokenizer.with_pre_tokenizer(Some(Sequence::new(turned)));
        };
        check(&turned, false); // no spaces are left for what cuts
        assert!(Parts::new(&vocabulary("llama2.gguf").build().unwrap().tokenizer).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn whatever_is_said(
            words in prop::collection::vec(
                prop_oneof![
                    "[a-zA-Z]{1,6}", "[ \n\t]{1,3}", "[0-9]{1,4}", "\\PC{1,3}", "['.,!-]{1,3}",
                    Just("'s".to_owned()), Just("<|end|>".to_owned()), Just("中文".to_owned()),
                ],
                0..60,
            ),
            spaced in any::<bool>(),
            part_bytes in 1usize..40,
        ) {
            thread_local! { static ALL: Vec<(String, Tokenizer)> = tokenizers(); }
            let text = words.join(if spaced { " " } else { "" });
            ALL.with(|all| {
                all.iter().for_each(|(name, tokenizer)| same(name, tokenizer, &text, part_bytes));
            });
        }
    }
}

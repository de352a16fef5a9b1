//! Long texts, encoded in parts: on all cores, and in as much memory as a few parts take. The
//! library needs some 300 bytes for a token while it encodes a text.
//!
//! The tokens are those of the whole: a text is cut only where nothing that the tokeniser does
//! reaches over, see [`Places`].

use aqueduct_core::TokenId;
use tokenizers::{ModelWrapper, Tokenizer};

use super::places::Places;

/// Bytes of a part, and a few more until there is a place to cut.
pub(super) const PART_BYTES: usize = 64 << 10;
/// Parts that are encoded at a time.
const BATCH: usize = 16;

/// How the texts of a tokeniser are encoded in parts.
#[derive(Debug)]
pub(super) struct Parts {
    places: Places,
    /// What whole texts have around their parts.
    before: Vec<TokenId>,
    after: Vec<TokenId>,
}

/// A part of a text, behind what is encoded with it and belongs to the part before.
#[derive(Debug, Clone, Copy)]
struct Part<'t> {
    text: &'t str,
    seen_bytes: usize,
}

impl Parts {
    /// None where the parts of a text may have other tokens than the whole.
    pub(super) fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let ModelWrapper::BPE(merges) = tokenizer.get_model() else { return None };
        let places = Places::of(tokenizer, merges).filter(|_| merges.dropout.is_none())?;
        let ids = |add_special| -> Option<Vec<TokenId>> {
            Some(tokenizer.encode_fast("a", add_special).ok()?.get_ids().to_vec())
        };
        let (with, without) = (ids(true)?, ids(false)?);
        let (before, after) = around(&with, &without)?;
        Some(Self { places, before: before.to_vec(), after: after.to_vec() })
    }

    /// The tokens of `text` in parts of `part_bytes` or more; of one that has more than `most`, as
    /// many as there are when that is known.
    ///
    /// # Errors
    /// The tokeniser's.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        (text, part_bytes): (&str, usize),
        add_special: bool,
        most: usize,
    ) -> tokenizers::Result<Vec<TokenId>> {
        let mut tokens = if add_special { self.before.clone() } else { Vec::new() };
        for batch in self.cut(text, part_bytes).chunks(BATCH) {
            let texts = batch.iter().map(|part| part.text).collect();
            for (part, encoded) in batch.iter().zip(tokenizer.encode_batch_fast(texts, false)?) {
                let seen = tokenizer.encode_fast(&part.text[..part.seen_bytes], false)?.len();
                tokens.extend_from_slice(&encoded.get_ids()[seen..]);
            }
            if tokens.len() > most {
                return Ok(tokens);
            }
        }
        tokens.extend(self.after.iter().filter(|_| add_special));
        Ok(tokens)
    }

    /// Cut behind every `part_bytes`, at the next place where that may be.
    fn cut<'t>(&self, text: &'t str, part_bytes: usize) -> Vec<Part<'t>> {
        let (mut parts, mut start, mut seen_bytes) = (Vec::new(), 0, 0);
        while let Some(bytes) = self.places.next(&text[start..], part_bytes) {
            parts.push(Part { text: &text[start - seen_bytes..start + bytes], seen_bytes });
            start += bytes;
            seen_bytes = if self.places.looks_back() { last_bytes(&text[..start]) } else { 0 };
        }
        parts.push(Part { text: &text[start - seen_bytes..], seen_bytes });
        parts
    }
}

/// Bytes of the last character.
fn last_bytes(text: &str) -> usize {
    text.chars().next_back().map_or(0, char::len_utf8)
}

/// What stands before and behind `text` in `whole`.
pub(super) fn around<'w>(
    whole: &'w [TokenId],
    text: &[TokenId],
) -> Option<(&'w [TokenId], &'w [TokenId])> {
    let at = whole.windows(text.len().max(1)).position(|tokens| tokens == text)?;
    Some((&whole[..at], &whole[at + text.len()..]))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use serde_json::Value;
    use tokenizers::models::bpe::BPE;
    use tokenizers::normalizers::{Lowercase, NFC};
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
    use tokenizers::pre_tokenizers::sequence::Sequence;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior};

    use super::*;
    use crate::text::{GgufVocabulary, hf};

    const FAMILIES: [&str; 16] = [
        "default",
        "gpt-2",
        "smollm",
        "llama-bpe",
        "jais-2",
        "smaug-bpe",
        "qwen2",
        "qwen35",
        "tekken",
        "gpt-4o",
        "seed-coder",
        "minicpm5",
        "viking",
        "deepseek-coder",
        "deepseek-llm",
        "deepseek-v3",
    ];
    /// Words of many scripts, with marks, joiners and characters that are composed.
    const WORDS: [&str; 25] = [
        "'s",
        "'LL",
        "<|end|>",
        "</s>",
        "<s>",
        "ü",
        "中文",
        "，",
        "。",
        "、中",
        "Привет",
        "ж",
        "мир",
        "й",
        "γεια",
        "مرحبا",
        "،",
        "नमस्ते",
        "क\u{958}",
        "क\u{93c}",
        "e\u{301}",
        "\u{301}",
        "한글",
        "\u{1112}\u{1161}\u{11ab}",
        "👩\u{200d}👧",
    ];

    fn fixture(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizers").join(name)
    }

    fn vocabulary(name: &str) -> GgufVocabulary {
        let bytes = std::fs::read(fixture(name)).unwrap();
        GgufVocabulary::from_gguf(&aqueduct_gguf::Gguf::parse_metadata(&bytes).unwrap()).unwrap()
    }

    fn tokenizer(name: &str) -> Tokenizer {
        vocabulary(name).build().unwrap().tokenizer
    }

    /// The shipped model's, and of each family of pretokenisers one.
    fn byte_level() -> Vec<(String, Tokenizer)> {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model");
        let shipped = ("shipped".to_owned(), hf::read(&model).unwrap().tokenizer);
        let families = vocabulary("families.gguf");
        let family = |name: &&str| {
            let named = GgufVocabulary { pre: Some((*name).to_owned()), ..families.clone() };
            ((*name).to_owned(), named.build().unwrap().tokenizer)
        };
        let whole = ["qwen2.gguf", "llama3.gguf"].map(|name| (name.to_owned(), tokenizer(name)));
        [shipped].into_iter().chain(whole).chain(FAMILIES.iter().map(family)).collect()
    }

    /// Llama 2's, as a GGUF file has it and as `tokenizer.json` may.
    fn sentence_piece() -> Vec<(String, Tokenizer)> {
        use PrependScheme::{Always, First, Never};
        let kinds = [(Always, false), (First, false), (Never, false), (Always, true)];
        let metaspace = kinds.map(|(prepend, split)| {
            let mut tokenizer = tokenizer("llama2.gguf");
            tokenizer.with_normalizer(None::<NFC>).unwrap();
            tokenizer.with_pre_tokenizer(Some(Metaspace::new('▁', prepend, split)));
            (format!("metaspace {prepend} {split}"), tokenizer)
        });
        let named = GgufVocabulary { adds_space: Some(false), ..vocabulary("llama2.gguf") };
        let plain = ("no space".to_owned(), named.build().unwrap().tokenizer);
        let mut normalized = tokenizer("llama2.gguf");
        // With the space that is put before them, which the text may have too.
        normalized.add_tokens(["in a", "ж"].map(|text| AddedToken::from(text, false))).unwrap();
        let normalized = ("normalized".to_owned(), normalized);
        let llama2 = ("llama2.gguf".to_owned(), tokenizer("llama2.gguf"));
        let mut gemma = plain.1.clone();
        let idle = Split::new(" ", SplitDelimiterBehavior::MergedWithPrevious, false).unwrap();
        gemma.with_pre_tokenizer(Some(idle));
        gemma
            .add_tokens(["\n\n", "  ", "<table>"].map(|text| AddedToken::from(text, false)))
            .unwrap();
        let gemma = ("gemma".to_owned(), gemma);
        [llama2, plain, normalized, gemma].into_iter().chain(metaspace).collect()
    }

    fn tokenizers() -> Vec<(String, Tokenizer)> {
        byte_level().into_iter().chain(sentence_piece()).collect()
    }

    /// Tokens of each piece that is merged.
    fn pieces(tokenizer: &Tokenizer, text: &str) -> Vec<usize> {
        let whole = tokenizer.encode(text, false).unwrap();
        whole.get_word_ids().chunk_by(|one, next| one == next).map(<[_]>::len).collect()
    }

    fn same(name: &str, tokenizer: &Tokenizer, text: &str, part_bytes: usize) {
        let parts = Parts::new(tokenizer).unwrap_or_else(|| panic!("{name} has parts"));
        for add_special in [true, false] {
            let seen =
                parts.encode(tokenizer, (text, part_bytes), add_special, usize::MAX).unwrap();
            let whole = tokenizer.encode_fast(text, add_special).unwrap();
            assert_eq!(seen, whole.get_ids(), "{name}, {part_bytes} bytes: {text:?}");
        }
        if !parts.places.looks_back() {
            // Tokens may be the same by chance: few words have merges that could reach over.
            let cut = parts.cut(text, part_bytes);
            let seen: Vec<_> = cut.iter().flat_map(|part| pieces(tokenizer, part.text)).collect();
            assert_eq!(seen, pieces(tokenizer, text), "{name}, {part_bytes} bytes: {text:?}");
        }
    }

    #[test]
    fn parts_have_the_tokens_of_the_whole() {
        let cases = std::fs::read_to_string(fixture("families.json")).unwrap();
        let cases: Value = serde_json::from_str(&cases).unwrap();
        let texts = cases["texts"].as_array().unwrap().iter();
        let said = |text: &Value| format!("{} and so on ", text.as_str().unwrap());
        let text: String = texts.map(said).chain([WORDS.join(" "), WORDS.concat()]).collect();
        for (name, tokenizer) in tokenizers() {
            [1, 100, 1000].into_iter().for_each(|bytes| same(&name, &tokenizer, &text, bytes));
        }
    }

    #[test]
    fn texts_of_any_script_have_parts() {
        let check = |text: &str, least: usize| {
            for (name, tokenizer) in tokenizers() {
                let parts = Parts::new(&tokenizer).unwrap().cut(text, 1).len();
                assert!(parts >= least, "{name} has {parts}: {text}");
            }
        };
        check("Мир и труд, и май", 5);
        check("我到林中去，因为我希望\n谨慎地生活。", 3);
        check("森へ行ったのは\n思慮深く、\n生きるため", 2);
        check("숲으로 간 것은 깊이", 4);
        check("ذهبت إلى الغابة\nلأنني أردت", 2);
        check("मैं जंगल गया\nकारण", 2);
        check("1\t20\n300,4000\r\n5", 5);
    }

    #[test]
    fn only_what_stays_itself_ends_a_word() {
        // Composed, the letter is another one and a mark, which a newline belongs to.
        let (qwen2, text) = (tokenizer("qwen2.gguf"), "क\u{958}\nक");
        let parts = Parts::new(&qwen2).unwrap();
        assert_eq!(parts.cut(text, 1).len(), 1);
        assert_eq!(parts.cut("कक\nक", 1).len(), 2);
        same("qwen2.gguf", &qwen2, text, 1);
    }

    #[test]
    fn whose_parts_may_differ_has_none() {
        let check = |file: &str, change: &dyn Fn(&mut Tokenizer), has_parts| {
            let mut tokenizer = tokenizer(file);
            change(&mut tokenizer);
            assert_eq!(Parts::new(&tokenizer).is_some(), has_parts);
        };
        let (qwen2, llama2) = ("qwen2.gguf", "llama2.gguf");
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
        check(qwen2, &|_| {}, true);
        check(qwen2, &adds("<of its own>", |token| token), false);
        check(qwen2, &adds("<own>", |token| token.rstrip(true)), true);
        check(qwen2, &adds("own", |token| token.rstrip(true)), false);
        check(qwen2, &adds("соб", |token| token.rstrip(true)), false);
        check(qwen2, &adds("own ", |token| token), false);
        check(qwen2, &adds("自，", |token| token), false);
        check(qwen2, &adds("e\u{301} ", |token| token), false); // is `é ` where it is looked for
        check(qwen2, &adds(" own", |token| token), true);
        check(qwen2, &adds(" own", |token| token.single_word(true)), false);
        check(qwen2, &adds("、own", |token| token.single_word(true)), false);
        check(qwen2, &split(r"\p{N}"), true); // cuts behind digits only
        check(qwen2, &split(r"\w+ \w+"), false); // is not known
        let lowers = |tokenizer: &mut Tokenizer| _ = tokenizer.with_normalizer(Some(Lowercase));
        let cuts_none =
            |tokenizer: &mut Tokenizer| _ = tokenizer.with_pre_tokenizer(None::<ByteLevel>);
        check(qwen2, &lowers, false);
        check(qwen2, &cuts_none, false);
        let turned = |tokenizer: &mut Tokenizer| {
            let Some(PreTokenizerWrapper::Sequence(all)) = tokenizer.get_pre_tokenizer() else {
                panic!("Qwen's is a sequence");
            };
            let turned = all.as_ref().iter().rev().cloned().collect();
            tokenizer.with_pre_tokenizer(Some(Sequence::new(turned)));
        };
        check(qwen2, &turned, false); // no spaces are left for what cuts
        let merges = |change: fn(&mut BPE)| {
            move |tokenizer: &mut Tokenizer| {
                let ModelWrapper::BPE(merges) = tokenizer.get_model() else { panic!("no merges") };
                let mut merges = merges.clone();
                change(&mut merges);
                tokenizer.with_model(merges);
            }
        };
        check(llama2, &|_| {}, true);
        check(llama2, &adds("<own>", |token| token), true);
        check(llama2, &adds("<own>", |token| token.lstrip(true)), false);
        check(llama2, &adds("<own>", |token| token.rstrip(true)), false);
        check(llama2, &adds("<own>", |token| token.single_word(true)), false);
        check(llama2, &adds("<0x0A>.", |token| token), false); // has a byte in it
        check(llama2, &lowers, false);
        check(llama2, &|tokenizer| _ = tokenizer.with_normalizer(None::<NFC>).unwrap(), false);
        check(llama2, &split(r"\p{N}"), false);
        check(llama2, &merges(|merges| merges.dropout = Some(0.1)), false);
        check(llama2, &merges(|merges| merges.ignore_merges = true), false);
        check(llama2, &merges(|merges| merges.byte_fallback = false), false);
        check(llama2, &merges(|merges| merges.end_of_word_suffix = Some("_".into())), false);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn whatever_is_said(
            words in prop::collection::vec(
                prop_oneof![
                    "[a-zA-Z]{1,6}", "[ \n\t]{1,3}", "[0-9]{1,4}", "\\PC{1,3}", "['.,!-]{1,3}",
                    "[\\p{L}\\p{M}]{1,3}", "\r\n|[ ▁]{1,3}",
                    prop::sample::select(&WORDS[..]).prop_map(str::to_owned),
                    prop::sample::select(&WORDS[..]).prop_map(str::to_owned),
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

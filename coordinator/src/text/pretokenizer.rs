//! How a text is cut into words before merging, by the name that GGUF files give it.

use aqueduct_core::Refusal;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

// A family's expressions are those of its models' `tokenizer.json`; each cuts what the one
// before it left whole. Files of models that are none of these do not say what cuts their words.

const GPT2: &str =
    concat!(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|", r"\s+(?!\S)|\s+",);
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Spaces in runs of powers of two.
const JAIS2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|",
    r"\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// The same, in which marks belong to words.
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Phi 4 mini's, which is `o200k_base`.
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Kimi K2's, as its `tokenization_kimi.py` has it: the same with Han for itself.
const KIMI_K2: &str = concat!(
    r"[\p{Han}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Ling's and Ring's.
const BAILING: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|",
    r"\s*[\r\n]|\s+(?!\S)|\s+",
);
/// Words that follow each other with a space between are one piece.
const EXAONE_MOE: &str = concat!(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|",
    r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
);
const SEED_CODER: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}|",
    r" ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const MINICPM5: [&str; 2] = [
    r"\p{N}{1,3}",
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+|",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];
/// East Asian scripts and punctuation first, each for itself.
const YOUTU: [&str; 2] = [
    concat!(r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|", r"[一-龥\u{3040}-ゟ゠-ヿ]+",),
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
        r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];
/// Digits in threes from the right.
const TINY_AYA: [&str; 2] = [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O];
const VIKING: [&str; 2] = [r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"];
const DEEPSEEK_CODER: [&str; 5] =
    [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-\u{D7FF}]+", r"\p{N}"];
const DEEPSEEK_V3: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[一-龥\u{3040}-ゟ゠-ヿ]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];
const DEEPSEEK_LLM: [&str; 6] = [
    r"[\r\n]",
    // Letters that have two cases, as far as DeepSeek lists them.
    concat!(
        r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-Ⴥ\u{13A0}-\u{13F5}",
        r"\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}ᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ",
        r"Ὗ-\u{1F7D}ᾀ-ᾴᾶ-ᾼ\u{1FBE}ῂ-ῄῆ-ῌῐ-\u{1FD3}ῖ-\u{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ",
        r"\u{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎ\u{AB70}-\u{ABBF}ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ",
        r"\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}",
        r"\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+",
    ),
    r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+",
    r"\s+(?m:$)", // `\s+$` in Oniguruma's words
    r"[一-龥ࠀ-一가-\u{D7FF}]+",
    r"\p{N}+",
];
const FALCON: [&str; 3] = [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"];
/// What llama.cpp does where a file does not say.
const UNNAMED: [&str; 4] = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"];

/// Those that are more than one, each cutting what the one before it has cut.
const SEQUENCES: [&[&str]; 9] = [
    &MINICPM5,
    &YOUTU,
    &FALCON,
    &TINY_AYA,
    &VIKING,
    &DEEPSEEK_CODER,
    &DEEPSEEK_V3,
    &DEEPSEEK_LLM,
    &UNNAMED,
];

/// What a text may be cut before, behind a letter or an ASCII digit: see [`ends_word`].
pub(super) const BREAKS: [char; 9] = [' ', '\t', '\r', '\n', ',', '，', '、', '。', '،'];

/// Whether an expression ends a piece between two characters, whatever is before and behind them.
/// The first is a letter of any script or an ASCII digit, the second one of [`BREAKS`].
pub(super) type EndsWord = fn(char, char) -> bool;

/// Of the expressions above; None of any other.
///
/// Where else they end pieces does not depend on whether the text goes on at such a place. None
/// looks behind itself. Those that look ahead (`\s+(?!\S)`, `\s+(?m:$)`) see what follows spaces,
/// and no letter or digit is one; or where a word ends (`\b`), which it does before every break.
/// All others match runs of one class, or runs that a letter or digit may end and a break may only
/// begin.
pub(super) fn ends_word(pattern: &SplitPattern) -> Option<EndsWord> {
    const ENDS: [(&[&str], EndsWord); 8] = [
        // Every letter and digit is matched, and together with no break behind it.
        (
            &[GPT2, LLAMA3, JAIS2, QWEN2, TEKKEN, GPT4O, SEED_CODER, MINICPM5[1], VIKING[0]],
            |_, _| true,
        ),
        (&[QWEN35, KIMI_K2, BAILING, YOUTU[1]], |_, _| true),
        // So is every letter; and every break, together with nothing before it.
        (&[DEEPSEEK_V3[2]], |_, _| true),
        (&[DEEPSEEK_CODER[0]], |_, next| matches!(next, '\r' | '\n')),
        (&[DEEPSEEK_CODER[1]], |last, _| !last.is_ascii_digit()),
        (&[DEEPSEEK_LLM[1]], |last, _| matches!(last, 'A'..='Z' | 'a'..='z' | 'А'..='я')),
        (&[r"\p{N}", r"\p{N}{1,3}", r"\p{N}+"], |last, _| last.is_ascii_digit()),
        // The class has some marks beside its letters.
        (&[DEEPSEEK_LLM[4]], |last, next| {
            matches!(last, '\u{800}'..='龥' | '가'..='\u{d7ff}') && !matches!(next, '、' | '。')
        }),
    ];
    let SplitPattern::Regex(expression) = pattern else { return None };
    let expression = expression.as_str();
    let known = ENDS.iter().find(|(expressions, _)| expressions.contains(&expression));
    let never = SEQUENCES.concat().contains(&expression).then_some((|_, _| false) as EndsWord);
    known.map(|(_, ends)| *ends).or(never)
}

/// Kimi K2's name.
pub(super) const KIMI: &str = "kimi-k2";

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
    let words = |expressions: &[&str]| -> Result<PreTokenizerWrapper, Refusal> {
        let split = |regex: &&str| -> Result<PreTokenizerWrapper, Refusal> {
            let pattern = SplitPattern::Regex((*regex).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            let refusal = |error| Refusal::new("tokenizer.ggml.pre", name, format!("{error}"));
            Ok(split.map_err(refusal)?.into())
        };
        let splits = expressions.iter().map(split);
        let all = splits.chain([Ok(byte_level(false))]);
        Ok(Sequence::new(all.collect::<Result<_, _>>()?).into())
    };
    let plain = |pretokenizer| Family {
        pretokenizer,
        composes: false,
        ignores_merges: false,
        adds_bos: false,
    };
    Ok(match name {
        "default" => plain(words(&UNNAMED)?),
        "olmo" | "mpt" => Family { composes: true, ..plain(byte_level(true)) },
        "gpt-2" | "phi-2" | "exaone4" | "trillion" | "mellum" | "a.x-4.0" | "granite-docling"
        | "gigachat" => plain(byte_level(true)),
        "smollm" | "starcoder" | "refact" | "codeshell" | "command-r" | "minerva-7b"
        | "mellum2" | "exaone" => {
            let words = Sequence::new(vec![Digits::new(true).into(), byte_level(true)]).into();
            Family { composes: name == "command-r", ..plain(words) }
        }
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral" | "midm-2.0" | "lfm2" => {
            Family { ignores_merges: true, adds_bos: true, ..plain(words(&[LLAMA3])?) }
        }
        "smaug-bpe" | "dbrx" | "chatglm-bpe" | "glm4" => plain(words(&[LLAMA3])?),
        "qwen2" | "deepseek-r1-qwen" | "stablelm2" => {
            Family { composes: true, ..plain(words(&[QWEN2])?) }
        }
        "qwen35" => Family { composes: true, ..plain(words(&[QWEN35])?) },
        "megrez" | "kormo" | "solar-open" => plain(words(&[QWEN2])?),
        // Who made it takes whole words, too, though llama.cpp does not know it.
        "hunyuan" => Family { composes: true, ignores_merges: true, ..plain(words(&[QWEN2])?) },
        "tekken" => Family { ignores_merges: true, adds_bos: true, ..plain(words(&[TEKKEN])?) },
        "jais-2" => plain(words(&[JAIS2])?),
        "exaone-moe" => plain(words(&[EXAONE_MOE])?),
        "gpt-4o" | "llama4" | "minimax-m2" | "kanana2" => plain(words(&[GPT4O])?),
        "tiny_aya" => plain(words(&TINY_AYA)?),
        KIMI => Family { ignores_merges: true, ..plain(words(&[KIMI_K2])?) },
        "youtu" => Family { ignores_merges: true, ..plain(words(&YOUTU)?) },
        "bailingmoe" | "bailingmoe2" => plain(words(&[BAILING])?),
        "seed-coder" => plain(words(&[SEED_CODER])?),
        "minicpm5" => Family { ignores_merges: true, ..plain(words(&MINICPM5)?) },
        "falcon" => plain(words(&FALCON)?),
        "viking" => plain(words(&VIKING)?),
        "deepseek-coder" => plain(words(&DEEPSEEK_CODER)?),
        "deepseek-llm" => plain(words(&DEEPSEEK_LLM)?),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => plain(words(&DEEPSEEK_V3)?),
        _ => {
            let bound = "default, gpt-2, smollm, starcoder, llama-bpe, smaug-bpe, qwen2, tekken, \
                gpt-4o, glm4, deepseek-llm, deepseek-coder, deepseek-v3, kimi-k2, or another one \
                that models served here have";
            return Err(Refusal::new("tokenizer.ggml.pre", name, bound));
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn expressions() -> Vec<Split> {
        let all =
            [SEQUENCES.concat(), vec![LLAMA3, JAIS2, QWEN2, TEKKEN, GPT4O, SEED_CODER]].concat();
        let all = [all, vec![QWEN35, KIMI_K2, BAILING]].concat();
        let isolated = SplitDelimiterBehavior::Isolated;
        all.iter().map(|one| Split::new(pattern(one), isolated, false).unwrap()).collect()
    }

    fn pattern(expression: &str) -> SplitPattern {
        SplitPattern::Regex(expression.to_owned())
    }

    /// Where pieces begin or end in the text that begins `at` bytes.
    fn ends(split: &Split, at: usize, text: &str) -> BTreeSet<usize> {
        let inner = split.regex.find_iter(text).flat_map(|(start, end)| [start, end]);
        inner.chain([0, text.len()]).map(|end| at + end).collect()
    }

    fn check(split: &Split, before: &str, (last, next): (char, char), behind: &str) {
        let (before, behind) = (format!("{before}{last}"), format!("{next}{behind}"));
        let (place, whole) = (before.len(), format!("{before}{behind}"));
        let mut want = ends(split, 0, &before);
        want.extend(ends(split, place, &behind));
        let mut seen = ends(split, 0, &whole);
        let is_end = !seen.insert(place);
        let said = format!("{:?}: {before:?} {behind:?}", split.pattern);
        assert_eq!(seen, want, "{said}");
        let known = ends_word(&split.pattern).unwrap();
        assert!(is_end || !known(last, next), "{said}");
    }

    #[test]
    fn words_of_any_letters_end() {
        let letter =
            Split::new(pattern(r"\p{L}"), SplitDelimiterBehavior::Isolated, false).unwrap();
        let is_letter = |c: &char| letter.regex.find_iter(c.encode_utf8(&mut [0; 4])).count() > 0;
        let letters = ('\0'..=char::MAX).filter(is_letter).step_by(23).chain('0'..='9');
        let letters: Vec<char> = letters.chain(('a'..='я').filter(is_letter)).collect();
        for split in expressions() {
            for (idx, last) in letters.iter().enumerate() {
                let next = BREAKS[idx % BREAKS.len()];
                check(&split, "", (*last, next), letters[idx / 2].encode_utf8(&mut [0; 4]));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn a_piece_ends_where_it_is_said(
            before in "(\\PC|[a-zA-Zя中0-9 \n'.，。、]){0,6}",
            last in "[a-zA-Zа-я一-龥\\p{L}0-9]",
            next in prop::sample::select(&BREAKS[..]),
            behind in "(\\PC|[a-zA-Zя中0-9 \r\n'.，。、]){0,6}",
        ) {
            thread_local! { static ALL: Vec<Split> = expressions(); }
            let around = (last.chars().next().unwrap(), next);
            ALL.with(|all| all.iter().for_each(|split| check(split, &before, around, &behind)));
        }
    }
}

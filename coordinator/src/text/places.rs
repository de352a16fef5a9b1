//! Where a long text may be cut so that its parts have the tokens of the whole.

use std::collections::{HashMap, HashSet};

use aqueduct_core::TokenId;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::Replace;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::utils::SysRegex;
use tokenizers::{
    AddedToken, Model, NormalizedString, Normalizer, NormalizerWrapper, PreTokenizerWrapper,
    SplitDelimiterBehavior, Tokenizer,
};

use super::pretokenizer::{BREAKS, EndsWord, ends_word};

/// What SentencePiece writes for a space.
const SPACE: char = '▁';

/// Where the texts of one tokeniser may be cut.
#[derive(Debug)]
pub(super) enum Places {
    /// Behind words: where texts are cut into pieces before these are merged.
    BehindWords(Words),
    /// Between characters that no token has side by side: where whole texts are merged.
    BetweenStrangers(Strangers),
}

impl Places {
    /// None where nothing is known that would leave the tokens as they are.
    pub(super) fn of(tokenizer: &Tokenizer, merges: &BPE) -> Option<Self> {
        match tokenizer.get_pre_tokenizer() {
            None | Some(PreTokenizerWrapper::Metaspace(_)) => {
                Strangers::of(tokenizer, merges).map(Self::BetweenStrangers)
            }
            Some(PreTokenizerWrapper::Split(split)) if never_splits(split, tokenizer) => {
                Strangers::of(tokenizer, merges).map(Self::BetweenStrangers)
            }
            Some(pretokenizer) => Words::of(tokenizer, pretokenizer).map(Self::BehindWords),
        }
    }

    /// The first place that has `bytes` or more of `text` before it.
    pub(super) fn next(&self, text: &str, bytes: usize) -> Option<usize> {
        // The first character that may stand before a place ends at `bytes` or behind.
        let start = text.floor_char_boundary(bytes - 1);
        let at = match self {
            Self::BehindWords(words) => words.next(&text[start..]),
            Self::BetweenStrangers(strangers) => strangers.next(&text[start..]),
        };
        at.map(|at| start + at)
    }

    /// Whether the tokens of a part are those it has behind the character before it only.
    pub(super) fn looks_back(&self) -> bool {
        matches!(self, Self::BetweenStrangers(_))
    }
}

/// Places between a letter or an ASCII digit and one of [`BREAKS`], where some expression ends a
/// piece; the others end pieces elsewhere as if the text were not cut (see [`ends_word`]). Such a
/// place is the same before and after characters are composed: a break composes with nothing,
/// and a letter that becomes another one and a mark is passed over.
#[derive(Debug)]
pub(super) struct Words {
    /// The two characters; in the expressions' own dialect, so that both have the same letters.
    around: SysRegex,
    expressions: Vec<EndsWord>,
}

impl Words {
    fn of(tokenizer: &Tokenizer, pretokenizer: &PreTokenizerWrapper) -> Option<Self> {
        let composes = |one: &NormalizerWrapper| matches!(one, NormalizerWrapper::NFC(_));
        normalizers(tokenizer).iter().all(composes).then_some(())?;
        let breaks: String = BREAKS.iter().collect();
        let around = SysRegex::new(&format!(r"[\p{{L}}0-9][{breaks}]")).ok()?;
        let words = Self { around, expressions: expressions(pretokenizer)? };
        let added = tokenizer.get_added_tokens_decoder();
        added.values().all(|token| words.keeps(token)).then_some(words)
    }

    fn next(&self, text: &str) -> Option<usize> {
        let place = |(start, end): (usize, usize)| {
            let mut around = text[start..end].chars();
            let (last, next) = (around.next()?, around.next()?);
            let ends = self.expressions.iter().any(|ends| ends(last, next));
            let is_place = ends && composed(last).chars().eq([last]);
            is_place.then_some(start + last.len_utf8())
        };
        self.around.find_iter(text).find_map(place)
    }

    /// Whether a place is nowhere in the token, and the token is found in the part before and in
    /// the part behind it wherever it is found in the whole.
    fn keeps(&self, token: &AddedToken) -> bool {
        let has_place = |text: &str| self.around.find_iter(text).next().is_some();
        [&token.content, &composed(token.content.as_str())].into_iter().all(|content| {
            let takes_spaces = token.rstrip && has_place(&format!("{content} "));
            let looks_back = token.single_word && content.starts_with(BREAKS);
            !has_place(content) && !takes_spaces && !looks_back
        })
    }
}

/// What the expressions of a pretokeniser make of places; None if one of them is not known. Each
/// cuts further what the one before it has cut.
fn expressions(pretokenizer: &PreTokenizerWrapper) -> Option<Vec<EndsWord>> {
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
            Some(all.iter().map(expressions).collect::<Option<Vec<_>>>()?.concat())
        }
        PreTokenizerWrapper::Split(split) => {
            let isolates = split.behavior == SplitDelimiterBehavior::Isolated && !split.invert;
            Some(vec![ends_word(&split.pattern).filter(|_| isolates)?])
        }
        PreTokenizerWrapper::Digits(_) => Some(Vec::new()),
        PreTokenizerWrapper::ByteLevel(bytes) if bytes.add_prefix_space => None,
        PreTokenizerWrapper::ByteLevel(bytes) if bytes.use_regex => Some(vec![|_, _| true]),
        PreTokenizerWrapper::ByteLevel(_) => Some(Vec::new()),
        _ => None,
    }
}

/// Places between two characters that no token of the vocabulary has side by side. Two symbols
/// are merged into a token of the vocabulary, so no merge reaches over such a place, and those on
/// one side do not depend on the other. A character that is no token is spelled in bytes, which
/// no token has in it.
///
/// With `▁` for spaces there is such a place before nearly every word, for tokens have spaces
/// only where they begin, and nearly everywhere between characters that are rare.
#[derive(Debug)]
pub(super) struct Strangers {
    neighbours: HashSet<(char, char)>,
    /// The last characters of added tokens. Behind such a token a space may be put that the text
    /// does not have, and behind its last character alone it would not be.
    ends: HashSet<char>,
}

impl Strangers {
    fn of(tokenizer: &Tokenizer, merges: &BPE) -> Option<Self> {
        let affix = |affix: &Option<String>| affix.as_ref().is_some_and(|affix| !affix.is_empty());
        // The first and the last character of a part would be those of a text, or all of it.
        let sees_ends = affix(&merges.continuing_subword_prefix)
            || affix(&merges.end_of_word_suffix)
            || merges.ignore_merges;
        let vocab = tokenizer.get_vocab(true);
        let added = tokenizer.get_added_tokens_decoder();
        let looks_around = |token: &AddedToken| token.lstrip || token.rstrip || token.single_word;
        let is_known = writes_spaces(tokenizer)
            && !sees_ends
            && spells_bytes(merges, &vocab)
            && !added.values().any(looks_around);
        is_known.then_some(())?;
        let (mut neighbours, mut ends) = (HashSet::new(), HashSet::new());
        let mut add = |token: &str| {
            let pairs = token.chars().zip(token.chars().skip(1));
            neighbours.extend(pairs.map(|(last, next)| (written(last), written(next))));
        };
        vocab.keys().for_each(|token| add(token));
        for token in added.values() {
            // A token is normalised where it is looked for in texts that are.
            let mut content = NormalizedString::from(token.content.as_str());
            tokenizer.get_normalizer().map(|all| all.normalize(&mut content)).transpose().ok()?;
            add(content.get());
            ends.extend(token.content.chars().next_back().map(written));
        }
        Some(Self { neighbours, ends })
    }

    fn next(&self, text: &str) -> Option<usize> {
        let pairs = text.chars().zip(text.char_indices().skip(1));
        let mut pairs = pairs.map(|(last, (at, next))| (at, (written(last), written(next))));
        let is_place =
            |pair: &(char, char)| !self.neighbours.contains(pair) && !self.ends.contains(&pair.0);
        pairs.find(|(_, pair)| is_place(pair)).map(|(at, _)| at)
    }
}

/// How the text's character is merged.
fn written(c: char) -> char {
    if c == ' ' { SPACE } else { c }
}

/// Whether all that is done to a text before merging is that its spaces become [`SPACE`], and
/// that something is put before it.
fn writes_spaces(tokenizer: &Tokenizer) -> bool {
    let normalizers = normalizers(tokenizer);
    let prepends = |one: &NormalizerWrapper| matches!(one, NormalizerWrapper::Prepend(_));
    let replaced = match tokenizer.get_pre_tokenizer() {
        Some(PreTokenizerWrapper::Metaspace(metaspace)) => metaspace.get_replacement() == SPACE,
        _ => normalizers.iter().any(writes_space),
    };
    replaced && normalizers.iter().all(|one| writes_space(one) || prepends(one))
}

/// Whether what is looked for are spaces, and texts have none when it is (Gemma's tokenizer.json).
fn never_splits(split: &Split, tokenizer: &Tokenizer) -> bool {
    let space = SplitPattern::String(" ".to_owned());
    let last = normalizers(tokenizer).last();
    split.pattern == space && !split.invert && last.is_some_and(writes_space)
}

/// Whether it makes every space [`SPACE`].
fn writes_space(normalizer: &NormalizerWrapper) -> bool {
    match (normalizer, Replace::new(" ", SPACE.to_string())) {
        (NormalizerWrapper::Replace(replace), Ok(spaces)) => *replace == spaces,
        _ => false,
    }
}

/// Whether a character that is no token becomes tokens of its bytes, which stay as they are.
fn spells_bytes(merges: &BPE, vocab: &HashMap<String, TokenId>) -> bool {
    let byte = |byte: u8| format!("<{byte:#04X}>");
    let all = (0..=u8::MAX).all(|value| merges.token_to_id(&byte(value)).is_some());
    let has_one = |token: &String| {
        let found = token.match_indices("<0x").filter_map(|(at, _)| token.get(at..at + 6));
        let bytes = found.filter(|found| *found != token && found.ends_with('>'));
        bytes.count() > 0
    };
    merges.byte_fallback && all && !vocab.keys().any(has_one)
}

/// All normalisers of a text, one after the other.
fn normalizers(tokenizer: &Tokenizer) -> &[NormalizerWrapper] {
    match tokenizer.get_normalizer() {
        None => &[],
        Some(NormalizerWrapper::Sequence(all)) => all.as_ref(),
        Some(one) => std::slice::from_ref(one),
    }
}

/// As Unicode composes it.
fn composed(text: impl Into<String>) -> String {
    let mut text = NormalizedString::from(text.into());
    text.nfc();
    text.get().to_owned()
}

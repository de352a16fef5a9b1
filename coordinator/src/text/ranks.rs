//! Tokenisers of folders that have no `tokenizer.json`: what Kimi K2 has is written for tiktoken.
//! A line is a token in base64 and its rank, which is its id; what cuts words is in Python beside
//! it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use aqueduct_core::{Refusal, limits};
use serde_json::Value;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::{AddedToken, Tokenizer};

use super::TextError;
use super::hf::bounded;
use super::pieces::byte_level_alphabet;
use super::pretokenizer::{Family, KIMI, family};

/// What such a file is called.
pub(super) const FILE: &str = "tiktoken.model";
/// More than any of them has.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The class that reads it. Its expression is one; other classes have others.
const CLASS: &str = "TikTokenTokenizer";
/// So many tokens follow those that are merged, whether they have a name or not.
const RESERVED: u64 = 256;

/// The tokeniser in the file at `path`, of which `texts` is `tokenizer_config.json`, and those of
/// its tokens that are no merges by their ids.
///
/// # Errors
/// A file that cannot be read or is another one's, or ranks that are no ids.
pub(super) fn read(
    path: &Path,
    texts: &Value,
    described: BTreeMap<u64, AddedToken>,
) -> Result<Tokenizer, TextError> {
    let class = texts["tokenizer_class"].as_str().unwrap_or("none");
    if class != CLASS {
        let bound = format!("{CLASS}, beside a {FILE} and no tokenizer.json");
        return Err(Refusal::new("tokenizer_class", class, bound).into());
    }
    let text = bounded(path, FILE_BYTES_MAX, |path| std::fs::read_to_string(path))?;
    let invalid = |message: String| TextError::invalid(path.display().to_string(), message);
    let tokens = tokens(&text).map_err(invalid)?;
    tokenizer(&tokens, described).map_err(|error| invalid(error.to_string()))
}

/// Tokens by their ranks, in the characters that byte-level tokenisers write for bytes.
fn tokens(text: &str) -> Result<Vec<String>, String> {
    let spelled: HashMap<u8, char> =
        byte_level_alphabet().into_iter().map(|(letter, byte)| (byte, letter)).collect();
    let (mut by_rank, mut ranks) = (BTreeMap::new(), HashMap::new());
    for (idx, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let number = idx + 1;
        let read = line.split_once(' ').and_then(|(token, rank)| {
            let bytes = base64(token).filter(|bytes| !bytes.is_empty())?;
            Some((rank.trim().parse::<u32>().ok()?, bytes))
        });
        let (rank, bytes) = read
            .ok_or_else(|| format!("line {number} is not a token in base64, a space and a rank"))?;
        let token: String = bytes.iter().map(|byte| spelled[byte]).collect();
        // Of two ranks one could never be encoded, and merges would be by either.
        if let Some(other) = ranks.insert(token.clone(), rank) {
            return Err(format!(
                "line {number}: the bytes of rank {rank} are those of {other}, too"
            ));
        }
        if by_rank.insert(rank, token).is_some() {
            return Err(format!("line {number}: rank {rank} comes twice"));
        }
    }
    let count = by_rank.len() as u64;
    Refusal::unless_within("tokens", count, 1, u64::from(limits::VOCAB_MAX) - RESERVED)
        .map_err(|refusal| refusal.to_string())?;
    let gap = (0_u32..).zip(by_rank.keys()).find(|(want, rank)| want != *rank);
    if let Some((want, rank)) = gap {
        return Err(format!("rank {want} is missing, before {rank}"));
    }
    // Texts that have such a byte would lose it.
    match (0..=u8::MAX).find(|byte| !ranks.contains_key(&spelled[byte].to_string())) {
        Some(byte) => Err(format!("byte {byte} is no token")),
        None => Ok(by_rank.into_values().collect()),
    }
}

fn tokenizer(
    tokens: &[String],
    mut described: BTreeMap<u64, AddedToken>,
) -> tokenizers::Result<Tokenizer> {
    let vocab: Vocab = (0..).zip(tokens).map(|(rank, token)| (token.clone(), rank)).collect();
    let merges = merges(tokens, &vocab);
    let Family { pretokenizer, ignores_merges, .. } = family(KIMI)?;
    let bpe = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(ignores_merges);
    let mut tokenizer = Tokenizer::new(bpe.build()?);
    tokenizer.with_pre_tokenizer(Some(pretokenizer));
    tokenizer.with_decoder(Some(ByteLevel::new(false, true, true)));
    // Ids are given in this order, so none may be left out.
    let first = tokens.len() as u64;
    let last = described.keys().copied().filter(|id| *id < u64::from(limits::VOCAB_MAX)).max();
    let end = (first + RESERVED).max(last.map_or(0, |last| last + 1));
    for id in first..end {
        let unnamed = || AddedToken::from(format!("<|reserved_token_{id}|>"), true);
        described.entry(id).or_insert_with(unnamed);
    }
    let each = described.range(first..end).map(|(_, token)| token.clone().normalized(false));
    tokenizer.add_tokens(each)?;
    // A text that is there already keeps the id that it has, and those behind it get lower ones.
    let moved = described.iter().find_map(|(id, token)| {
        let seen = tokenizer.token_to_id(&token.content).map(u64::from);
        (seen != Some(*id)).then_some((id, &token.content, seen))
    });
    match moved {
        Some((id, text, Some(seen))) => Err(format!("token {id}, {text:?}, has id {seen}").into()),
        Some((id, text, None)) => Err(format!("token {id}, {text:?}, has no id").into()),
        None => Ok(tokenizer),
    }
}

/// tiktoken merges the pair whose whole has the lowest rank: as a list of merges, every way to make
/// each token, in the order of ranks.
pub(super) fn merges(tokens: &[String], vocab: &Vocab) -> Merges {
    let mut merges = Vec::new();
    for token in tokens {
        let splits = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let mut ways: Vec<_> = splits
            .filter_map(|(left, right)| Some((*vocab.get(left)?, *vocab.get(right)?, left, right)))
            .collect();
        ways.sort_unstable();
        let ways = ways.into_iter();
        merges.extend(ways.map(|(_, _, left, right)| (left.to_owned(), right.to_owned())));
    }
    merges
}

/// The bytes that `text` stands for, with or without what fills its last four characters.
pub(super) fn base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut held) = (0_u32, 0);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    (text.len() % 4 != 1).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bytes_are_read_from_base64() {
        let check = |text: &str, want: Option<&[u8]>| {
            assert_eq!(base64(text).as_deref(), want, "{text}");
        };
        check("", Some(b""));
        check("IQ==", Some(b"!"));
        check("IQ", Some(b"!"));
        check("aGk=", Some(b"hi"));
        check("aGkh", Some(b"hi!"));
        check("+/8A", Some(&[0xfb, 0xff, 0]));
        check("aGkhI", None);
        check("a-k=", None);
    }

    /// All bytes, and some words.
    fn file() -> String {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let letter = |value: u8| ALPHABET[usize::from(value)] as char;
        let of_one = |byte: u8| format!("{}{}==", letter(byte >> 2), letter((byte & 3) << 4));
        let words = ["IGE=", "YWI=", "YWJj", "5Lit"]; // " a", "ab", "abc" and 中
        let all = (0..=u8::MAX).map(of_one).chain(words.map(str::to_owned));
        all.enumerate().map(|(rank, token)| format!("{token} {rank}\n")).collect()
    }

    fn texts() -> Value {
        json!({ "tokenizer_class": CLASS })
    }

    fn of(text: &str, texts: &Value) -> Result<Tokenizer, String> {
        of_described(text, texts, &[])
    }

    /// With `more` tokens that are described.
    fn of_described(text: &str, texts: &Value, more: &[(u64, &str)]) -> Result<Tokenizer, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::write(&path, text).unwrap();
        let described = [
            (260, AddedToken::from("[BOS]", true)),
            (263, AddedToken::from("<|call|>", false)),
            (520, AddedToken::from("[PAD]", true)),
        ];
        let more = more.iter().map(|(id, text)| (*id, AddedToken::from(*text, true)));
        let described = described.into_iter().chain(more).collect();
        read(&path, texts, described).map_err(|error| error.to_string())
    }

    #[test]
    fn tokens_are_merged_by_their_ranks() {
        let tokenizer = of(&file(), &texts()).unwrap();
        let check = |text: &str, want: &[u32]| {
            let seen = tokenizer.encode(text, false).unwrap();
            assert_eq!(seen.get_ids(), want, "{text:?}");
            assert_eq!(tokenizer.decode(want, false).unwrap(), text);
        };
        check("abc", &[258]);
        check("abcd", &[258, 100]);
        check("xab", &[120, 257]);
        check("b a", &[98, 256]);
        // Han is cut from what is beside it, and a byte is a token.
        check("中ab", &[259, 257]);
        check("é", &[0xc3, 0xa9]);
        check("[BOS]ab<|call|>", &[260, 257, 263]);
        check("<|reserved_token_261|>", &[261]);
        check("[PAD]", &[520]);
        let special = |id: u32| tokenizer.get_added_tokens_decoder()[&id].special;
        assert_eq!([260, 261, 263, 520].map(special), [true, true, false, true]);
        assert_eq!(tokenizer.get_vocab_size(true), 521);
    }

    #[test]
    fn what_is_no_list_of_ranks_is_refused() {
        let check = |text: &str, want: &str| {
            let error = of(text, &texts()).err().unwrap_or_default();
            assert!(error.contains(want), "{error:?} should say {want:?}");
        };
        check("IQ== 0\nIg== 2\n", "rank 1 is missing, before 2");
        check("IQ== 0\nIg== 0\n", "line 2: rank 0 comes twice");
        for odd in ["IQ==\n", "I!== 0\n", "IQ== x\n", " 0\n"] {
            check(odd, "line 1 is not a token in base64, a space and a rank");
        }
        check("", "bytes of tiktoken.model = 0");
        check("IQ== 0\nIQ== 1\n", "line 2: the bytes of rank 1 are those of 0, too");
        check("IQ== 0\nIQ 1\n", "line 2: the bytes of rank 1 are those of 0, too");
        check("IQ== 0\nIg== 1\n", "byte 0 is no token");
        let without_a = file().replace("YQ== 97\n", "YWJjZA== 97\n");
        check(&without_a, "byte 97 is no token");
        let others = of(&file(), &json!({ "tokenizer_class": "QWenTokenizer" })).err().unwrap();
        assert!(others.starts_with("tokenizer_class = QWenTokenizer: must be"), "{others}");
    }

    #[test]
    fn described_tokens_have_the_ids_that_they_are_described_by() {
        let check = |more: &[(u64, &str)], want: Option<&str>| {
            let error = of_described(&file(), &texts(), more).err();
            let says = want.is_none_or(|want| error.as_ref().is_some_and(|it| it.contains(want)));
            assert!(says && error.is_some() == want.is_some(), "{more:?}: {error:?}");
        };
        check(&[(300, "<|one|>"), (522, "<|other|>")], None);
        check(&[(5, "\u{105}")], None); // as byte 5 is written
        check(&[(97, "b")], Some(r#"token 97, "b", has id 98"#));
        check(&[(300, "<|call|>")], Some(r#"token 300, "<|call|>", has id 263"#));
        check(&[(300, "ab")], Some(r#"token 300, "ab", has id 257"#));
        check(&[(300, "")], Some(r#"token 300, "", has no id"#));
        check(&[(261, "<|reserved_token_262|>")], Some("has id"));
    }
}

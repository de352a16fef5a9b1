//! What each token adds to a text, in bytes.

use std::collections::{HashMap, HashSet};

use aqueduct_core::{Refusal, TokenId, limits};
use serde_json::Value;
use tokenizers::Tokenizer;

use super::TextError;

/// The bytes of every token. A token may be a part of a character, so text exists only where
/// the bytes of consecutive tokens are put together.
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    /// Token i is `bytes[ends[i - 1]..ends[i]]`.
    ends: Vec<usize>,
    special: HashSet<TokenId>,
    strips_first_space: bool,
}

/// How a tokeniser writes bytes as characters.
enum Alphabet {
    /// Every byte is one printable character.
    ByteLevel(HashMap<char, u8>),
    /// Spaces are `▁`, and a byte without a token of its own is `<0xE2>`.
    SentencePiece,
}

impl Pieces {
    /// # Errors
    /// A decoder that is neither byte-level nor SentencePiece.
    pub(crate) fn new(tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let last = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        Refusal::unless_within("token id", last, 0, limits::VOCAB_MAX - 1)?;
        let decoder = serde_json::to_value(tokenizer.get_decoder())
            .map_err(|error| TextError::invalid("decoder", error))?;
        let kinds: Vec<&str> = parts(&decoder).filter_map(|part| part["type"].as_str()).collect();
        let alphabet = if kinds.contains(&"ByteLevel") {
            Alphabet::ByteLevel(byte_level_alphabet())
        } else if kinds.contains(&"ByteFallback") || kinds.contains(&"Metaspace") {
            Alphabet::SentencePiece
        } else {
            let message = format!("{kinds:?} is not supported, ByteLevel and ByteFallback are");
            return Err(TextError::invalid("decoder", message));
        };
        // A Metaspace that never puts a space before texts takes none from them, either.
        let strips = |part: &Value| match part["type"].as_str() {
            Some("Strip") => true,
            Some("Metaspace") => part["prepend_scheme"] != "never",
            _ => false,
        };
        let strips_first_space =
            matches!(alphabet, Alphabet::SentencePiece) && parts(&decoder).any(strips);
        Ok(Self { strips_first_space, ..Self::collect(tokenizer, &alphabet) })
    }

    fn collect(tokenizer: &Tokenizer, alphabet: &Alphabet) -> Self {
        let added = tokenizer.get_added_tokens_decoder();
        let vocab = tokenizer.get_vocab(true);
        let tokens = vocab.values().max().map_or(0, |last| *last as usize + 1);
        // Added tokens are written as they are found, which may be in a normalised text.
        let written = |id: &TokenId| Some((tokenizer.id_to_token(*id)?, *id));
        let written: Vec<(String, TokenId)> = added.keys().filter_map(written).collect();
        let mut by_id = vec![""; tokens];
        for (token, id) in vocab.iter().chain(written.iter().map(|(token, id)| (token, id))) {
            if let Some(spelled) = by_id.get_mut(*id as usize) {
                *spelled = token;
            }
        }
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(tokens);
        for (id, token) in (0..).zip(by_id) {
            match alphabet {
                // Added tokens are found in texts before these are spelled in bytes: DeepSeek's
                // `ü` is that letter, and not the byte that it stands for elsewhere.
                Alphabet::ByteLevel(_) if added.contains_key(&id) => bytes.extend(token.as_bytes()),
                _ => alphabet.append(token, &mut bytes),
            }
            ends.push(bytes.len());
        }
        let special = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        Self { bytes, ends, special, strips_first_space: false }
    }

    /// Tokens that have an id.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Empty for an id outside the vocabulary.
    pub(crate) fn bytes(&self, token: TokenId) -> &[u8] {
        let idx = token as usize;
        let Some(&end) = self.ends.get(idx) else { return &[] };
        let start = if idx == 0 { 0 } else { self.ends[idx - 1] };
        &self.bytes[start..end]
    }

    /// Whether the token steers the model and is no part of any text.
    pub(crate) fn is_special(&self, token: TokenId) -> bool {
        self.special.contains(&token)
    }

    /// Whether the space before the first word is the tokeniser's and not the text's.
    pub(crate) fn strips_first_space(&self) -> bool {
        self.strips_first_space
    }

    /// Bytes of the longest token.
    pub(crate) fn longest(&self) -> usize {
        (0..self.len() as TokenId).map(|token| self.bytes(token).len()).max().unwrap_or(0)
    }
}

impl Alphabet {
    fn append(&self, token: &str, bytes: &mut Vec<u8>) {
        match self {
            Self::ByteLevel(alphabet) => {
                let known = token.chars().map(|c| alphabet.get(&c).copied());
                match known.collect::<Option<Vec<u8>>>() {
                    Some(piece) => bytes.extend(piece),
                    None => bytes.extend(token.as_bytes()),
                }
            }
            Self::SentencePiece => match fallback_byte(token) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend(token.replace('▁', " ").as_bytes()),
            },
        }
    }
}

/// `<0xE2>` is the byte 0xE2.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// GPT-2's table: printable bytes stand for themselves, the others for characters from U+0100.
pub(super) fn byte_level_alphabet() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100u32;
    (0..=255u8)
        .map(|byte| {
            if printable(byte) {
                return (char::from(byte), byte);
            }
            next += 1;
            (char::from_u32(next - 1).unwrap_or_default(), byte)
        })
        .collect()
}

/// A decoder and those that it is made of.
fn parts(decoder: &Value) -> impl Iterator<Item = &Value> {
    std::iter::once(decoder).chain(decoder["decoders"].as_array().into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use tokenizers::AddedToken;
    use tokenizers::models::bpe::BPE;
    use tokenizers::normalizers::Lowercase;
    use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};

    use super::*;

    fn metaspace(scheme: PrependScheme) -> Tokenizer {
        let mut tokenizer = Tokenizer::new(BPE::default());
        tokenizer.with_decoder(Some(Metaspace::new('▁', scheme, true)));
        tokenizer
    }

    #[test]
    fn first_spaces_are_stripped_that_are_put_before_texts() {
        let check = |scheme, want: bool| {
            let pieces = Pieces::new(&metaspace(scheme)).unwrap();
            assert_eq!(pieces.strips_first_space(), want, "{scheme}");
        };
        check(PrependScheme::Always, true);
        check(PrependScheme::First, true);
        check(PrependScheme::Never, false);
    }

    #[test]
    fn added_tokens_are_written_as_they_are_found() {
        let mut tokenizer = metaspace(PrependScheme::Never);
        tokenizer.with_normalizer(Some(Lowercase)).unwrap();
        let added = [AddedToken::from("Ab", false), AddedToken::from("Cd", true)];
        tokenizer.add_tokens(added).unwrap();
        let pieces = Pieces::new(&tokenizer).unwrap();
        assert_eq!([0, 1].map(|id| pieces.bytes(id)), [&b"ab"[..], b"Cd"]);
    }

    #[test]
    fn the_byte_alphabet_is_a_bijection() {
        let alphabet = byte_level_alphabet();
        assert_eq!(alphabet.len(), 256);
        assert_eq!(alphabet[&'Ġ'], b' ');
        assert_eq!(alphabet[&'Ċ'], b'\n');
        assert_eq!(alphabet[&'é'], 0xe9);
    }

    #[test]
    fn fallback_bytes() {
        assert_eq!(fallback_byte("<0xE2>"), Some(0xe2));
        for other in ["<0x>", "<0xE>", "<0xZZ>", "<0x+1>x", "E2", "<0x123>"] {
            assert_eq!(fallback_byte(other), None, "{other}");
        }
    }
}

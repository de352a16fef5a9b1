//! Prompts from files: token ids, text, the shipped book.

use std::io::Read;
use std::path::Path;

use anyhow::Context;
use aqueduct_coordinator::text::{TextError, TextModel};
use aqueduct_core::{Refusal, TokenId};

/// Walden, by Henry David Thoreau (1854): the demo's prompt and the bench's.
pub(crate) const BOOK: &str = include_str!("../../demo/walden.txt");

/// Token ids separated by white space.
///
/// # Errors
/// A file that cannot be read, a word that is no id, an empty file.
pub(crate) fn token_ids(path: &Path) -> anyhow::Result<Vec<TokenId>> {
    Ok(parse_ids(&text(path)?)?)
}

fn parse_ids(text: &str) -> Result<Vec<TokenId>, Refusal> {
    let id = |(idx, word): (usize, &str)| {
        word.parse().map_err(|_| {
            let bound = format!("a token id, 0 to {}, with white space around it", TokenId::MAX);
            Refusal::new(format!("tokens[{idx}]"), word, bound)
        })
    };
    // Some editors begin a file with a byte order mark, which is no white space.
    let text = text.trim_start_matches('\u{feff}');
    let ids: Vec<TokenId> =
        text.split_whitespace().enumerate().map(id).collect::<Result<_, _>>()?;
    if ids.is_empty() {
        return Err(Refusal::new("tokens", "none", "at least one token id"));
    }
    Ok(ids)
}

/// A text file; `-` is stdin.
///
/// # Errors
/// A file that cannot be read or is not UTF-8.
pub(crate) fn text(path: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut bytes).context("stdin")?;
    } else {
        bytes = std::fs::read(path)
            .map_err(|error| Refusal::new("file", path.display(), format!("readable: {error}")))?;
    }
    let text = String::from_utf8(bytes)
        .map_err(|error| Refusal::new("file", path.display(), format!("UTF-8 text: {error}")))?;
    Ok(text)
}

/// The model's tokeniser for whole texts, of which a command then takes as much as fits: they
/// may be longer than any prompt.
///
/// # Errors
/// A tokeniser that cannot be used.
pub(crate) fn tokeniser(model: &Path) -> Result<TextModel, TextError> {
    Ok(TextModel::load(model)?.with_prompt_tokens_max(TokenId::MAX))
}

/// `tokens` over and over, until there are `count` of them.
pub(crate) fn cycled(tokens: &[TokenId], count: u32) -> Vec<TokenId> {
    tokens.iter().copied().cycle().take(count as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_separated_by_white_space() {
        assert_eq!(parse_ids(" 1 2\n3\t4\r\n"), Ok(vec![1, 2, 3, 4]));
        assert_eq!(parse_ids("\u{feff}1 2"), Ok(vec![1, 2]));
        let check = |text, field: &str| assert_eq!(parse_ids(text).unwrap_err().field, field);
        check("", "tokens");
        check(" \n", "tokens");
        check("1 x", "tokens[1]");
        check("1,2", "tokens[0]");
        check("-1", "tokens[0]");
        check("99999999999", "tokens[0]");
    }

    #[test]
    fn a_short_book_is_read_again() {
        assert_eq!(cycled(&[1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(cycled(&[1, 2, 3], 2), [1, 2]);
    }
}

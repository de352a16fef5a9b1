//! Texts for people that come from elsewhere, cut to what they may have.

/// `text`, of which at most `bytes_max` bytes are kept, and three points where something is not.
pub fn clipped(mut text: String, bytes_max: usize) -> String {
    const CUT: &str = "...";
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max.saturating_sub(CUT.len())));
        text.push_str(CUT);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut_between_characters() {
        let check = |text: &str, want: &str| assert_eq!(clipped(text.to_owned(), 8), want);
        check("", "");
        check("12345678", "12345678");
        check("123456789", "12345...");
        check("1234\u{e9}6789", "1234...");
    }
}

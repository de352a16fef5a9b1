//! What goes to stdout: JSON Lines, and text for people.

use std::io::Write;

use serde::Serialize;

/// Writes one row and flushes, so that a reader of a pipe sees it at once.
///
/// # Errors
/// When stdout cannot be written to.
pub(crate) fn print<T: Serialize>(row: &T) -> std::io::Result<()> {
    say(&(serde_json::to_string(row)? + "\n"))
}

/// Writes text as it is and flushes. Unlike `print!`, a reader that went away is no panic.
///
/// # Errors
/// When stdout cannot be written to.
pub(crate) fn say(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

//! What goes to stdout: JSON Lines, and text for people.

use std::io::Write;

use serde::Serialize;

use crate::exit;

/// Writes one row and flushes, so that a reader of a pipe sees it at once.
///
/// # Errors
/// When stdout cannot be written to.
pub(crate) fn print<T: Serialize>(row: &T) -> std::io::Result<()> {
    say(&(serde_json::to_string(row)? + "\n"))
}

/// Says what `act` did with each name; what is wrong with one keeps none of the others.
///
/// # Errors
/// What was wrong with the last of them, after the others were told.
pub(crate) async fn each(
    names: &[String],
    act: impl AsyncFn(&str) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let mut failed: Option<anyhow::Error> = None;
    for name in names {
        match act(name).await {
            Ok(done) => say(&(done + "\n"))?,
            Err(error) => {
                if let Some(earlier) = failed.replace(error) {
                    eprintln!("error: {}", exit::one_line(&earlier));
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
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

//! JSON Lines on stdout: one object a row.

use std::io::Write;

use serde::Serialize;

/// Writes one row and flushes, so that a reader of a pipe sees it at once.
///
/// # Errors
/// When stdout cannot be written to.
pub(crate) fn print<T: Serialize>(row: &T) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(row)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()
}

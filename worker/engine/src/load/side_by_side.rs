//! Rows that several threads read.

use std::thread;

/// Runs `read` on shares of `rows`, all at once, each with the index of its first row. The
/// first share's error counts.
pub(super) fn side_by_side<T: Send, E: Send>(
    mut rows: Vec<T>,
    share: usize,
    read: impl Fn(usize, Vec<T>) -> Result<(), E> + Sync,
) -> Result<(), E> {
    if rows.len() <= share {
        return read(0, rows);
    }
    thread::scope(|scope| {
        let (read, mut running) = (&read, Vec::new());
        while !rows.is_empty() {
            let first = (rows.len() - 1) / share * share;
            let part = rows.split_off(first);
            running.push(scope.spawn(move || read(first, part)));
        }
        running.into_iter().rev().try_for_each(|part| {
            part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

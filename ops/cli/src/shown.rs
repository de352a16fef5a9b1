//! What commands show, in the form that was asked for, once or for as long as somebody looks.

use std::collections::HashSet;

use serde::Serialize;

use crate::args::{Format, OutputArgs};
use crate::{lines, yaml};

/// Something that can be shown: as a table for people, as it is for programs.
pub(crate) trait Shown: Serialize {
    /// For people; with more columns if `wide`.
    fn table(&self, wide: bool) -> String;
}

/// Shows what `fetch` gives, and with `--watch` what changes of it from then on.
///
/// # Errors
/// What `fetch` meets; a stdout that cannot be written to.
pub(crate) async fn show<T: Shown>(
    output: &OutputArgs,
    mut fetch: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<()> {
    let mut before = String::new();
    loop {
        let now = render(&fetch().await?, output.output)?;
        lines::say(&news(&before, &now, output.output))?;
        if !output.watch {
            return Ok(());
        }
        before = now;
        tokio::time::sleep(output.interval()).await;
    }
}

/// In this form.
///
/// # Errors
/// What cannot be JSON.
pub(crate) fn render(shown: &impl Shown, format: Format) -> anyhow::Result<String> {
    Ok(match format {
        Format::Table => shown.table(false),
        Format::Wide => shown.table(true),
        Format::Json => serde_json::to_string_pretty(shown)? + "\n",
        Format::Yaml => yaml::document(&serde_json::to_value(shown)?),
    })
}

/// Of `now` what was not shown before: lines of a table, whole documents. That somebody is older
/// than a moment ago is no news, nor that a column is wider.
fn news(before: &str, now: &str, format: Format) -> String {
    match format {
        Format::Table | Format::Wide => {
            let is_aged = now.lines().next().is_some_and(|line| line.ends_with("AGE"));
            let told = |line| {
                let told = if is_aged || is_uptime(line) { ageless(line) } else { line };
                told.split_whitespace().collect::<Vec<_>>().join(" ")
            };
            let before: HashSet<_> = before.lines().map(told).collect();
            let new = now.lines().filter(|line| !before.contains(&told(line)));
            new.map(|line| format!("{line}\n")).collect()
        }
        Format::Json | Format::Yaml if before == now => String::new(),
        Format::Yaml if !before.is_empty() => format!("---\n{now}"),
        Format::Json | Format::Yaml => now.to_owned(),
    }
}

fn is_uptime(line: &str) -> bool {
    line.starts_with("Uptime:")
}

/// A line without its last word.
fn ageless(line: &str) -> &str {
    line.rfind(' ').map_or(line, |last| line[..last].trim_end())
}

/// Rows under headings in capitals, aligned to the left.
pub(crate) struct Columns(Vec<Vec<String>>);

impl Columns {
    /// No rows yet.
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self(vec![headings.iter().map(|heading| (*heading).to_owned()).collect()])
    }

    /// One more, of as many cells as there are headings.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.0[0].len());
        self.0.push(cells.iter().map(|cell| clean(cell)).collect());
    }

    /// As text.
    pub(crate) fn render(&self) -> String {
        let width = |column: usize| self.0.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<_> = (0..self.0[0].len()).map(|at| width(at).unwrap_or(0)).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("   ").trim_end().to_owned() + "\n"
        };
        self.0.iter().map(line).collect()
    }
}

/// Names with their values, a line each.
pub(crate) fn fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 2;
    let line = |(name, value): &(&str, String)| {
        let name = format!("{name}:");
        format!("{name:width$}{}\n", clean(value))
    };
    fields.iter().map(line).collect()
}

/// A list as a title and a table, if there is anything in it.
pub(crate) fn section(title: &str, rows: &Columns) -> String {
    let indented = rows.render().lines().map(|line| format!("  {line}\n")).collect::<String>();
    if rows.0.len() > 1 { format!("{title}:\n{indented}") } else { String::new() }
}

/// Text of others must not steer a terminal; nothing is a dash.
pub(crate) fn clean(text: &str) -> String {
    if text.is_empty() {
        return "-".to_owned();
    }
    let escaped = |at: char| match at.is_control() {
        true => at.escape_default().to_string(),
        false => at.to_string(),
    };
    text.chars().map(escaped).collect()
}

/// How long something has lasted, in its two largest units.
pub(crate) fn age(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{}s", whole % 60),
        (0, 0, _) => format!("{minutes}m{}s", whole % 60),
        (0, ..) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_text_cannot_steer_a_terminal() {
        let mut columns = Columns::new(&["NAME", "STATE", "ADDRESS"]);
        columns.row(vec!["w0".into(), "up".into(), String::new()]);
        columns.row(vec!["worker-é".into(), "connecting".into(), "a\u{1b}[2Jb".into()]);
        assert_eq!(
            columns.render(),
            "NAME       STATE        ADDRESS\nw0         up           -\n\
             worker-é   connecting   a\\u{1b}[2Jb\n"
        );
        assert_eq!(fields(&[("A", "1".into()), ("Long", "2\n".into())]), "A:    1\nLong: 2\\n\n");
    }

    #[test]
    fn what_was_shown_is_not_shown_again() {
        let check = |before: &str, now: &str, want: &str| {
            assert_eq!(news(before, now, Format::Table), want);
        };
        check("", "NAME   AGE\na      1s\n", "NAME   AGE\na      1s\n");
        check("NAME   AGE\na      1s\n", "NAME   AGE\na      2s\n", "");
        check("Uptime:   1s\nUp:   2\n", "Uptime:   2s\nUp:   2\n", "");
        check("NAME   AGE\na      1s\n", "NAME   AGE\na      2s\nb      0s\n", "b      0s\n");
        check("NAME   STATE\na      up\n", "NAME   STATE\na      down\n", "a      down\n");
        check("NAME   UP\na      1\n", "NAME   UP\na      1\nlonger 2\n", "longer 2\n");
        check("A   B\n1   2\n3   4\n", "A    B\n10   2\n3    4\n", "10   2\n");
        assert_eq!(news("a\n", "a\n", Format::Yaml), "");
        assert_eq!(news("a\n", "b\n", Format::Yaml), "---\nb\n");
    }

    #[test]
    fn ages_read_well() {
        let ages = [0.4, 59.9, 61.0, 3600.0, 7260.0, 90_000.0].map(age);
        assert_eq!(ages, ["0s", "59s", "1m1s", "1h0m", "2h1m", "1d1h"]);
    }
}

//! Tables and numbers for people.

use std::fmt::Write;

/// Rows of cells under a heading, aligned: words to the left, numbers to the right.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub(crate) fn new<const N: usize>(headings: [&str; N]) -> Self {
        Self { rows: vec![headings.map(str::to_owned).to_vec()] }
    }

    /// Adds a row; as many cells as there are headings.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.rows[0].len());
        self.rows.push(cells.to_vec());
    }

    /// The table as text, a line a row.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows[0].len();
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for (idx, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let pad = " ".repeat(widths[column] - cell.chars().count());
                let gap = if column > 0 { "  " } else { "" };
                match column {
                    0 => write!(line, "{cell}{pad}"),
                    _ => write!(line, "{gap}{pad}{cell}"),
                }
                .expect("a string can be written to");
            }
            text.push_str(line.trim_end());
            text.push('\n');
            if idx == 0 {
                let rule = widths.iter().sum::<usize>() + 2 * (columns - 1);
                text.push_str(&"-".repeat(rule));
                text.push('\n');
            }
        }
        text
    }
}

/// 65536 as `65,536`.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the largest binary unit that leaves at least 1.
pub(crate) fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = "bytes";
    for next in units {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "bytes" { format!("{count} bytes") } else { format!("{value:.2} {unit}") }
}

/// A share as a percentage.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(65_536), "65,536");
        assert_eq!(grouped(1_000_000), "1,000,000");
        assert_eq!(bytes(1023), "1023 bytes");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(5 << 30), "5.00 GiB");
        assert_eq!(percent(0.98765), "98.77 %");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["policy", "ppl"]);
        table.row(["h2o".into(), "51.1".into()]);
        table.row(["window".into(), "9.25".into()]);
        assert_eq!(table.render(), "policy   ppl\n------------\nh2o     51.1\nwindow  9.25\n");
    }
}

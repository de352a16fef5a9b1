//! The picture of latencies: three bars for each row, on a log axis.

use crate::svg::{self, text};

/// One row's bars and the two lines below them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bars {
    pub(super) name: [String; 2],
    /// p50, p95 and p99, in milliseconds.
    pub(super) heights: [f64; 3],
}

const LEFT: u32 = 70;
const TOP: u32 = 90;
const ROWS: u32 = 300;
const BOTTOM: u32 = TOP + ROWS;
const GROUP: u32 = 110;
const BAR: u32 = 24;
const CLASSES: [&str; 3] = ["p50", "p95", "p99"];

/// The picture as a complete SVG document.
pub(super) fn svg(groups: &[Bars]) -> String {
    let right = LEFT + GROUP * groups.len() as u32 + 20;
    let (low, high) = ends(groups);
    let up = |ms: f64| {
        let share = ((ms / low).ln() / (high / low).ln()).clamp(0.0, 1.0);
        (share * f64::from(ROWS)).round() as u32
    };
    let mut marks = vec![
        svg::title(LEFT, "From token to token, beside nothing and beside the prefill of a prompt"),
        svg::path("axis", &format!("M{LEFT} {TOP}V{BOTTOM}H{right}")),
        text(LEFT, TOP - 12, "middle", "milliseconds"),
    ];
    let decades = (-3..6).map(|power| 10_f64.powi(power));
    for ms in decades.filter(|ms| (low..=high).contains(ms)) {
        let y = BOTTOM - up(ms);
        marks.push(svg::path("grid", &format!("M{LEFT} {y}H{right}")));
        marks.push(text(LEFT - 10, y + 4, "end", &ms.to_string()));
    }
    for (idx, class) in CLASSES.iter().enumerate() {
        let x = LEFT + idx as u32 * 80;
        marks.push(svg::path(class, &format!("M{x} 46h14v10h-14z")));
        marks.push(text(x + 20, 56, "start", class));
    }
    for (idx, group) in groups.iter().enumerate() {
        let left = LEFT + 20 + idx as u32 * GROUP;
        for (at, (class, ms)) in CLASSES.iter().zip(group.heights).enumerate() {
            let (x, height) = (left + at as u32 * BAR, up(ms));
            let d = format!("M{x} {BOTTOM}v-{height}h{}v{height}z", BAR - 4);
            marks.push(svg::path(class, &d));
        }
        let middle = left + 3 * BAR / 2;
        for (line, name) in (0..).zip(&group.name) {
            marks.push(text(middle, BOTTOM + 20 + 16 * line, "middle", name));
        }
    }
    let picture =
        svg::Picture { width: right + 20, height: BOTTOM + 56, classes: CLASSES, style: "" };
    picture.render(&marks)
}

/// Powers of ten around all heights.
fn ends(groups: &[Bars]) -> (f64, f64) {
    let heights = || groups.iter().flat_map(|group| group.heights).filter(|ms| *ms > 0.0);
    let least = heights().fold(f64::INFINITY, f64::min).min(1.0);
    let most = heights().fold(1.0, f64::max);
    (10_f64.powf(least.log10().floor()), 10_f64.powf((most * 1.01).log10().ceil()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_three_bars_and_its_name() {
        let bars = |name: &str, heights| Bars { name: [name.into(), "idle".into()], heights };
        let svg = svg(&[bars("plain", [0.2, 2.0, 20.0]), bars("static", [0.2, 0.3, 100.0])]);
        for class in CLASSES {
            // In the legend and in both rows.
            assert_eq!(svg.matches(&format!(r#"class="{class}""#)).count(), 3, "{class}");
        }
        assert!(svg.contains(">plain<") && svg.contains(">static<"), "{svg}");
        // 0.1 to 1000 ms: four decades, 75 pixels each.
        assert!(svg.contains(&format!("{BOTTOM}v-225h20v225z")), "100 ms: {svg}");
    }

    #[test]
    fn no_rows_are_a_picture_too() {
        assert!(svg(&[]).ends_with("</svg>\n"));
    }
}

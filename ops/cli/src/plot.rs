//! The plot of a measurement: seconds over prompt tokens, log axes, as SVG.

use std::fmt::Write;
use std::fs::File;
use std::path::Path;

use aqueduct_core::{PolicyKind, Refusal};

use crate::report::grouped;
use crate::svg::{self, text};

/// The file that a plot goes to.
///
/// # Errors
/// A file that cannot be written.
pub(crate) fn create(path: &Path) -> Result<File, Refusal> {
    File::create(path).map_err(|error| {
        Refusal::new("plot", path.display(), format!("a file that can be written: {error}"))
    })
}

/// How one policy fared on one number of workers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Curve {
    /// Name of the policy; decides the colour.
    pub(crate) policy: &'static str,
    /// Decides the dashes.
    pub(crate) workers: usize,
    /// Prompt tokens and seconds, by ascending prompt tokens.
    pub(crate) points: Vec<(u32, f64)>,
}

const LEFT: u32 = 80;
const TOP: u32 = 110;
const COLUMNS: u32 = 640;
const ROWS: u32 = 340;
const RIGHT: u32 = LEFT + COLUMNS;
const BOTTOM: u32 = TOP + ROWS;

/// Dashes and half the size of the marks, by number of workers from the smallest on. Marks grow,
/// so that curves which lie on each other can still be told apart.
const LOOKS: [(&str, u32); 4] = [("none", 3), ("7 4", 6), ("2 3", 9), ("9 3 2 3", 12)];

const STYLE: &str = ".curve{fill:none;stroke-width:1.8}.even{stroke-dasharray:1 4}";

/// The plot as a complete SVG document.
///
/// # Panics
/// Without curves, or with one that has no points.
pub(crate) fn svg(curves: &[Curve]) -> String {
    let axes = Axes::around(curves);
    let mut numbers: Vec<usize> = curves.iter().map(|curve| curve.workers).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let look = |curve: &Curve| {
        let idx = numbers.iter().position(|&workers| workers == curve.workers).unwrap_or(0);
        LOOKS[idx % LOOKS.len()]
    };
    let mut marks = vec![svg::title(LEFT, "Prefill: seconds over the length of the prompt")];
    marks.extend([axes.draw(curves), axes.even_cost(curves)]);
    for (idx, curve) in curves.iter().enumerate() {
        let (x, y) = (LEFT + idx as u32 % 4 * 170, 50 + idx as u32 / 4 * 20);
        let unit = if curve.workers == 1 { "worker" } else { "workers" };
        let name = format!("{}, {} {unit}", curve.policy, curve.workers);
        marks.push(draw(curve, look(curve), &[(x, y), (x + 34, y)]));
        marks.push(text(x + 42 + 6, y + 4, "start", &name));
        let place = |&(tokens, seconds): &(u32, f64)| axes.place(tokens, seconds);
        marks.push(draw(curve, look(curve), &curve.points.iter().map(place).collect::<Vec<_>>()));
    }
    let picture = svg::Picture {
        width: RIGHT + 60,
        height: BOTTOM + 56,
        classes: [PolicyKind::Dense, PolicyKind::H2o, PolicyKind::Window].map(PolicyKind::as_str),
        style: STYLE,
    };
    picture.render(&marks)
}

/// A line through the points and a ring around each.
fn draw(curve: &Curve, (dashes, radius): (&str, u32), points: &[(u32, u32)]) -> String {
    let (mut line, mut rings) = (String::new(), String::new());
    for (idx, (x, y)) in points.iter().enumerate() {
        let step = if idx == 0 { 'M' } else { 'L' };
        write!(line, "{step}{x} {y}").expect("a string can be written to");
        let width = 2 * radius;
        write!(
            rings,
            "M{} {y}a{radius} {radius} 0 1 0 {width} 0a{radius} {radius} 0 1 0 -{width} 0",
            x - radius
        )
        .expect("a string can be written to");
    }
    let class = format!("{} curve", curve.policy);
    format!(r#"<g stroke-dasharray="{dashes}">{}</g>"#, svg::path(&class, &line))
        + &svg::path(&class, &rings)
}

/// What the edges of the plot stand for.
struct Axes {
    tokens: (f64, f64),
    seconds: (f64, f64),
}

impl Axes {
    /// Axes that hold every point, with a little air.
    fn around(curves: &[Curve]) -> Self {
        let points = || curves.iter().flat_map(|curve| &curve.points);
        Self {
            tokens: with_air(points().map(|&(tokens, _)| f64::from(tokens))),
            seconds: with_air(points().map(|&(_, seconds)| seconds)),
        }
    }

    fn place(&self, tokens: u32, seconds: f64) -> (u32, u32) {
        let right = share(f64::from(tokens), self.tokens) * f64::from(COLUMNS);
        let up = share(seconds, self.seconds) * f64::from(ROWS);
        (LEFT + right.round() as u32, BOTTOM - up.round() as u32)
    }

    /// Grid, ticks and units.
    fn draw(&self, curves: &[Curve]) -> String {
        let mut marks = vec![
            svg::path("axis", &format!("M{LEFT} {TOP}V{BOTTOM}H{RIGHT}")),
            text(LEFT + COLUMNS / 2, BOTTOM + 42, "middle", "prompt tokens"),
            text(LEFT, TOP - 12, "middle", "seconds"),
        ];
        let mut lengths: Vec<u32> =
            curves.iter().flat_map(|curve| &curve.points).map(|point| point.0).collect();
        lengths.sort_unstable();
        lengths.dedup();
        for tokens in lengths {
            let (x, _) = self.place(tokens, self.seconds.0);
            marks.push(svg::tick(x, BOTTOM, &grouped(tokens.into())));
        }
        for seconds in round_numbers(self.seconds) {
            let (_, y) = self.place(self.tokens.0 as u32, seconds);
            marks.push(svg::path("grid", &format!("M{LEFT} {y}H{RIGHT}")));
            marks.push(text(LEFT - 10, y + 4, "end", &seconds.to_string()));
        }
        marks.join("\n")
    }

    /// Where the quickest short prompt would lead if every token cost the same.
    fn even_cost(&self, curves: &[Curve]) -> String {
        let starts = curves.iter().map(|curve| curve.points[0]);
        let Some((tokens, seconds)) = starts.min_by(|a, b| a.1.total_cmp(&b.1)) else {
            return String::new();
        };
        let growth = (self.tokens.1 / f64::from(tokens)).min(self.seconds.1 / seconds);
        let (x, y) = self.place(tokens, seconds);
        let (to_x, to_y) = self.place((f64::from(tokens) * growth) as u32, seconds * growth);
        svg::path("axis even", &format!("M{x} {y}L{to_x} {to_y}"))
            + &text(RIGHT, BOTTOM - 10, "end", "dotted: every token costs the same")
    }
}

/// The smallest and the largest, a fifth apart from the edge.
fn with_air(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let most = values.fold(0.0, f64::max);
    (least / 1.2, most * 1.2)
}

/// Where `value` stands between the ends of a log axis, 0 to 1.
fn share(value: f64, (low, high): (f64, f64)) -> f64 {
    ((value / low).ln() / (high / low).ln()).clamp(0.0, 1.0)
}

/// 1, 2 and 5 times the powers of ten that lie between the ends.
fn round_numbers((low, high): (f64, f64)) -> Vec<f64> {
    (-6..9)
        .flat_map(|power| ["1", "2", "5"].map(|digit| format!("{digit}e{power}")))
        .filter_map(|number| number.parse().ok())
        .filter(|number| (low..=high).contains(number))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(policy: &'static str, workers: usize, points: &[(u32, f64)]) -> Curve {
        Curve { policy, workers, points: points.to_vec() }
    }

    #[test]
    fn every_curve_has_its_colour_its_dashes_and_its_name() {
        let points = [(4096, 0.5), (16_384, 2.0), (65_536, 8.0)];
        let svg =
            svg(&[curve("h2o", 4, &points), curve("h2o", 1, &points), curve("dense", 4, &points)]);
        let count = |needle: &str| svg.matches(needle).count();
        // A line and its rings, in the plot and in the legend.
        assert_eq!(count(r#"class="h2o curve""#), 8);
        assert_eq!(count(r#"class="dense curve""#), 4);
        assert_eq!((count(r#""none""#), count(r#""7 4""#)), (2, 4), "dashes by workers");
        assert!(svg.contains(">h2o, 4 workers<") && svg.contains(">h2o, 1 worker<"));
        for label in [">4,096<", ">65,536<", ">0.5<", ">5<", ">prompt tokens<", ">seconds<"] {
            assert_eq!(count(label), 1, "{label}");
        }
    }

    #[test]
    fn equal_ratios_are_equal_distances() {
        let axes = Axes::around(&[curve("h2o", 1, &[(10, 1.0), (100, 10.0)])]);
        let check = |tokens, seconds| axes.place(tokens, seconds);
        let [a, b, c] = [check(10, 1.0), check(32, 3.2), check(100, 10.0)];
        assert!((b.0 - a.0).abs_diff(c.0 - b.0) <= 8 && (a.1 - b.1).abs_diff(b.1 - c.1) <= 8);
        assert!(LEFT < a.0 && c.0 < RIGHT && TOP < c.1 && a.1 < BOTTOM);
    }

    #[test]
    fn one_point_can_be_drawn() {
        assert!(svg(&[curve("window", 1, &[(1, 1e-4)])]).ends_with("</svg>\n"));
    }

    #[test]
    fn round_numbers_lie_between_the_ends() {
        assert_eq!(round_numbers((0.4, 6.0)), [0.5, 1.0, 2.0, 5.0]);
        assert_eq!(round_numbers((30.0, 40.0)), Vec::<f64>::new());
    }
}

//! The picture of a memory: which positions each layer and KV head kept, as SVG.

use std::collections::BTreeMap;
use std::fmt::Write;

use aqueduct_core::MemoryPolicy;

use crate::report::grouped;
use crate::svg::{self, text};

/// What a sequence's memory holds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Kept {
    /// Tokens processed: positions run from 0 to one below.
    pub(crate) end: u32,
    /// Tells sinks and local keys from heavy hitters.
    pub(crate) policy: MemoryPolicy,
    /// `[layers][kv_heads][keys]`: absolute positions, ascending.
    pub(crate) layers: Vec<Vec<Vec<u32>>>,
}

/// The three kinds of remembered key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Sink,
    Heavy,
    Local,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Sink, Self::Heavy, Self::Local];

    fn name(self) -> &'static str {
        match self {
            Self::Sink => "sink",
            Self::Heavy => "heavy",
            Self::Local => "local",
        }
    }

    fn legend(self, policy: &MemoryPolicy) -> String {
        match self {
            Self::Sink => format!("sinks: the first {}", policy.sinks),
            Self::Heavy => format!("heavy: {} by attention mass", policy.heavy),
            Self::Local => format!("local: the last {}", policy.local),
        }
    }
}

const LEFT: u32 = 130;
const TOP: u32 = 84;
const COLUMNS: u32 = 960;
const ROW: u32 = 14;
const LAYER_GAP: u32 = 6;
const WIDTH: u32 = LEFT + COLUMNS + 40;

/// How full a column can look: from one key to all of its positions.
const SHADES: u32 = 4;

const STYLE: &str = "\
.row{fill:#8c959f;fill-opacity:.14}.sink,.heavy,.local{stroke:none}\
.s1{fill-opacity:.55}.s2{fill-opacity:.7}.s3{fill-opacity:.85}";

/// The picture as a complete SVG document: position to the right, a row for each layer and KV
/// head, coloured by why a key was kept.
pub(crate) fn svg(kept: &Kept) -> String {
    let rows: u32 = kept.layers.iter().map(|heads| heads.len() as u32 * ROW + LAYER_GAP).sum();
    let bottom = TOP + rows;
    let picture = svg::Picture {
        width: WIDTH,
        height: bottom + 56,
        classes: Kind::ALL.map(Kind::name),
        style: STYLE,
    };
    let title = format!("What each layer remembers of {} tokens", grouped(kept.end.into()));
    picture.render(&[
        svg::title(LEFT, &title),
        legend(&kept.policy),
        band(kept),
        axis(kept.end, bottom),
    ])
}

fn rect(class: &str, x: u32, y: u32, width: u32) -> String {
    let height = ROW - 2;
    format!(r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}"/>"#)
}

fn legend(policy: &MemoryPolicy) -> String {
    if policy.keeps_all() {
        return text(LEFT, 54, "start", "dense: every key is kept");
    }
    let entry = |(x, kind): (u32, Kind)| {
        rect(kind.name(), x, 44, ROW - 2) + &text(x + 18, 54, "start", &kind.legend(policy))
    };
    (LEFT..).step_by(240).zip(Kind::ALL).map(entry).collect()
}

/// Every row with its label and its keys.
fn band(kept: &Kept) -> String {
    let mut lines = Vec::new();
    let mut y = TOP;
    for (layer, heads) in kept.layers.iter().enumerate() {
        for (head, positions) in heads.iter().enumerate() {
            let label = format!("layer {layer}, head {head}");
            lines.push(text(LEFT - 10, y + ROW - 4, "end", &label));
            lines.push(rect("row", LEFT, y, COLUMNS));
            lines.extend(keys(kept, positions, y));
            y += ROW;
        }
        y += LAYER_GAP;
    }
    lines.join("\n")
}

/// One path for each kind and shade of a row.
fn keys(kept: &Kept, positions: &[u32], y: u32) -> Vec<String> {
    let mut columns: BTreeMap<(Kind, u32), u32> = BTreeMap::new();
    for &position in positions {
        *columns.entry((kind(kept, position), column(position, kept.end))).or_default() += 1;
    }
    let column_tokens = kept.end.div_ceil(COLUMNS);
    let mut paths: BTreeMap<(Kind, u32), String> = BTreeMap::new();
    for ((kind, column), keys) in columns {
        let shade = (keys * SHADES).div_ceil(column_tokens).clamp(1, SHADES);
        // Sinks are few and stand at the very edge: wider than true, so that they are seen.
        let width = if kind == Kind::Sink { 3 } else { column_width(kept.end) };
        let path = paths.entry((kind, shade)).or_default();
        write!(path, "M{} {y}h{width}v{}h-{width}z", LEFT + column, ROW - 2)
            .expect("a string can be written to");
    }
    paths
        .into_iter()
        .map(|((kind, shade), d)| svg::path(&format!("{} s{shade}", kind.name()), &d))
        .collect()
}

fn kind(kept: &Kept, position: u32) -> Kind {
    if kept.policy.keeps_all() || position >= kept.end.saturating_sub(kept.policy.local) {
        Kind::Local
    } else if position < kept.policy.sinks {
        Kind::Sink
    } else {
        Kind::Heavy
    }
}

fn column(position: u32, end: u32) -> u32 {
    (u64::from(position) * u64::from(COLUMNS) / u64::from(end.max(1))) as u32
}

/// A position is wider than a column when there are fewer positions than columns.
fn column_width(end: u32) -> u32 {
    (COLUMNS / end.max(1)).max(1)
}

fn axis(end: u32, bottom: u32) -> String {
    let middle = LEFT + COLUMNS / 2;
    let mut lines = vec![
        svg::path("axis", &format!("M{LEFT} {bottom}h{COLUMNS}")),
        text(middle, bottom + 42, "middle", "position in the prompt, in tokens"),
    ];
    for tick in (0..=end).step_by(tick_step(end) as usize) {
        let x = LEFT + column(tick, end);
        lines.push(svg::tick(x, bottom, &grouped(tick.into())));
    }
    lines.join("\n")
}

/// The smallest of 1, 2, 5 times a power of ten that gives at most eight steps.
fn tick_step(end: u32) -> u32 {
    (0..9)
        .flat_map(|power| [1, 2, 5].map(|digit| digit * 10u32.pow(power)))
        .find(|step| end / step <= 8)
        .unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(policy: MemoryPolicy, positions: &[u32]) -> Kept {
        Kept { end: 10_000, policy, layers: vec![vec![positions.to_vec(); 2]; 3] }
    }

    #[test]
    fn every_row_has_its_keys_in_the_colour_of_their_kind() {
        let svg = svg(&kept(MemoryPolicy::h2o(4, 100, 10), &[0, 1, 5000, 9950, 9999]));
        let count = |needle: &str| svg.matches(needle).count();
        assert_eq!(count(r#"class="row""#), 6);
        for kind in Kind::ALL {
            assert_eq!(count(&format!(r#"<path class="{} "#, kind.name())), 6, "{kind:?}");
        }
        assert!(svg.contains(&format!("M{} ", LEFT + COLUMNS / 2)), "5000 stands in the middle");
        assert!(svg.contains("layer 2, head 1"));
    }

    #[test]
    fn a_kind_follows_from_the_position() {
        let kept = kept(MemoryPolicy::h2o(4, 100, 10), &[]);
        let check = |position, want| assert_eq!(kind(&kept, position), want, "{position}");
        check(3, Kind::Sink);
        check(4, Kind::Heavy);
        check(9899, Kind::Heavy);
        check(9900, Kind::Local);
    }

    #[test]
    fn short_and_dense_memories_can_be_drawn() {
        for end in [1, 2, 959, 960, 961, u32::MAX] {
            let kept = Kept { end, policy: MemoryPolicy::dense(), layers: vec![vec![vec![0]]] };
            assert!(svg(&kept).ends_with("</svg>\n"));
        }
    }

    #[test]
    fn ticks_are_few_and_round() {
        assert_eq!(tick_step(65_536), 10_000);
        assert_eq!(tick_step(10_000), 2_000);
        assert_eq!(tick_step(5), 1);
    }
}

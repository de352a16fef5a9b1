//! How the screen of `aqueduct top` is laid out. Where there is no room, lines go from below.

use aqueduct_client::operator::{ChunkView, RequestView};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};

use super::Top;
use super::look::Look;
use crate::commands::status::workers;
use crate::report::{bytes, grouped};
use crate::shown::{Columns, age, clean};

/// Cells of the bar that says how full a pool is.
const BAR: usize = 10;
/// What is done of the layers that one cell stands for, from nothing to everything.
const SHADES: [char; 4] = ['·', '░', '▒', '█'];
const KEYS: &str = "q quit   up, down choose a request   left, right order by   r reverse";

/// Draws all of it on a terminal.
pub(crate) fn draw_on(frame: &mut Frame<'_>, top: &Top) {
    let area = frame.area();
    draw(frame.buffer_mut(), area, top, &[Line::dim(KEYS)]);
}

fn draw(buffer: &mut Buffer, area: Rect, top: &Top, keys: &[Line]) {
    let head = head(top);
    let Some(look) = &top.look else {
        write(buffer, area, &head);
        return;
    };
    let (nodes, requests) = (nodes(look), requests(top, look));
    let wave = look.chosen.as_ref().map(|chosen| wavefront(chosen, area.width)).unwrap_or_default();
    let rows = |lines: &[Line]| Constraint::Length(lines.len() as u16 + 1);
    let [at_head, at_nodes, at_wave, at_requests, at_keys] = Layout::vertical([
        rows(&head),
        rows(&nodes),
        rows(&wave),
        Constraint::Fill(1),
        Constraint::Length(keys.len() as u16),
    ])
    .areas(area);
    write(buffer, at_head, &head);
    write(buffer, at_nodes, &nodes);
    write(buffer, at_wave, &wave);
    write(buffer, at_requests, &scrolled(requests, top, at_requests.height));
    write(buffer, at_keys, keys);
}

/// A frame as text, for who has no terminal, and so no keys.
pub(crate) fn text(top: &Top, width: u16, height: u16) -> String {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw(&mut buffer, area, top, &[]);
    text_of(&buffer)
}

/// Without what is empty to the right, and below.
fn text_of(buffer: &Buffer) -> String {
    let Rect { width, height, .. } = buffer.area;
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    let rows: Vec<_> = (0..height).map(|y| row(y).trim_end().to_owned()).collect();
    rows.join("\n").trim_end().to_owned() + "\n"
}

struct Line {
    text: String,
    style: Style,
}

impl Line {
    fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), style: Style::new() }
    }

    fn bold(text: impl Into<String>) -> Self {
        Self { text: text.into(), style: Style::new().add_modifier(Modifier::BOLD) }
    }

    fn dim(text: impl Into<String>) -> Self {
        Self { text: text.into(), style: Style::new().add_modifier(Modifier::DIM) }
    }

    fn of(self, style: Style) -> Self {
        Self { style: self.style.patch(style), ..self }
    }
}

fn write(buffer: &mut Buffer, area: Rect, lines: &[Line]) {
    for (y, line) in (area.top()..area.bottom()).zip(lines) {
        buffer.set_stringn(area.x, y, &line.text, area.width.into(), line.style);
    }
}

fn head(top: &Top) -> Vec<Line> {
    let trouble = top.trouble.as_ref().map(|trouble| {
        let line = Line::bold(format!("no answer: {}", clean(trouble)));
        line.of(Style::new().fg(Color::Red))
    });
    let Some(Look { cluster, .. }) = &top.look else {
        let title = Line::bold(format!("aqueduct top: {}", clean(&top.server)));
        return [title].into_iter().chain(trouble).collect();
    };
    let state = if cluster.open { "open" } else { "closing" };
    let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.1}"));
    let tokens = rate(top.rate(|look| look.cluster.output_tokens));
    let chunks = rate(top.rate(|look| look.cluster.chunks_done));
    let (first, gap) = latencies(top.look.as_ref());
    let title = format!(
        "{}: {state}, {}   Uptime: {}",
        clean(&cluster.model),
        workers(cluster),
        age(cluster.uptime_seconds)
    );
    let load = format!(
        "Running: {} of {}   Queued: {} of {}, {} tokens   Chunks again: {}",
        cluster.running,
        cluster.running_max,
        cluster.queued,
        cluster.queued_max,
        grouped(cluster.queued_tokens),
        cluster.chunks_retried,
    );
    let speed = format!(
        "Tokens/s: {tokens}   Chunks/s: {chunks}   First token: {}   Between tokens: {}",
        seconds(first),
        seconds(gap)
    );
    let lines = [Line::bold(title), Line::plain(load), Line::plain(speed)];
    lines.into_iter().chain(trouble).collect()
}

/// Seconds to the first token and between tokens: the middle one of the requests under way.
fn latencies(look: Option<&Look>) -> (Option<f64>, Option<f64>) {
    let Some(look) = look else { return (None, None) };
    let gaps = look.requests.iter().filter_map(|it| look.gap_seconds(it));
    (middle(look.first_seconds.values().copied()), middle(gaps))
}

fn middle(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

fn seconds(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(some) if some < 1.0 => format!("{:.1}ms", some * 1e3),
        Some(some) => format!("{some:.2}s"),
    }
}

fn nodes(look: &Look) -> Vec<Line> {
    let mut columns = Columns::new(&["NODE", "STATE", "POOL", "IN USE", "SNAPSHOTS", "REASON"]);
    for node in &look.cluster.nodes {
        let share = node.pool_used_bytes as f64 / node.pool_bytes.max(1) as f64;
        let full = (share * BAR as f64).round() as usize;
        let bar = "█".repeat(full.min(BAR)) + &"░".repeat(BAR - full.min(BAR));
        columns.row(vec![
            node.name.clone(),
            node.state.clone(),
            if node.pool_bytes > 0 { bar } else { String::new() },
            bytes(node.pool_used_bytes),
            format!("{} ({})", node.snapshots, bytes(node.snapshot_bytes)),
            node.reason.clone(),
        ]);
    }
    let states = look.cluster.nodes.iter().map(|node| match node.state.as_str() {
        "up" => Style::new(),
        "down" | "refused" => Style::new().fg(Color::Red),
        _ => Style::new().fg(Color::Yellow),
    });
    table(&columns, states)
}

/// Lines of a table, its rows in these styles.
fn table(columns: &Columns, styles: impl Iterator<Item = Style>) -> Vec<Line> {
    let text = columns.render();
    let mut lines = text.lines();
    let heading = lines.next().map(Line::bold);
    let rows = lines.zip(styles).map(|(line, style)| Line::plain(line).of(style));
    heading.into_iter().chain(rows).collect()
}

fn requests(top: &Top, look: &Look) -> Vec<Line> {
    let headings = ["ID", "STATE", "PROMPT", "CHUNKS", "TOKENS", "FIRST", "GAP", "HOME", "AGE"];
    let marked = headings.map(|heading| match heading == top.order.heading() {
        true => format!("{heading} {}", if top.is_reversed { "▲" } else { "▼" }),
        false => heading.to_owned(),
    });
    let mut columns = Columns::new(&marked.each_ref().map(String::as_str));
    for request in top.requests() {
        columns.row(vec![
            request.id.clone(),
            request.state.clone(),
            request.prompt_tokens.to_string(),
            format!("{}/{}", request.chunks_done, request.chunk_count),
            format!("{}/{}", request.output_tokens, request.choices * request.max_tokens),
            seconds(look.first_seconds.get(&request.id).copied()),
            seconds(look.gap_seconds(request)),
            request.home.clone(),
            age(request.age_seconds),
        ]);
    }
    let chosen = top.chosen();
    let style = |idx| match Some(idx) == chosen {
        true => Style::new().add_modifier(Modifier::REVERSED),
        false => Style::new(),
    };
    table(&columns, (0..).map(style))
}

/// The heading and as many rows as there is room for, among them the chosen one.
fn scrolled(mut lines: Vec<Line>, top: &Top, height: u16) -> Vec<Line> {
    let room = usize::from(height).saturating_sub(1);
    let chosen = top.chosen().unwrap_or(0);
    let above = (chosen + 1).saturating_sub(room.max(1)).min(lines.len().saturating_sub(1));
    lines.drain(1..1 + above);
    lines
}

/// Chunks to the right, layers downwards: how far each has come. Of many chunks the last ones.
fn wavefront(chosen: &RequestView, width: u16) -> Vec<Line> {
    let id = chosen.request.as_ref().map_or("", |request| &request.id);
    let title = Line::bold(format!(
        "WAVEFRONT of {}: {} layers down, {} chunks to the right",
        clean(id),
        chosen.layers,
        chosen.chunks.len()
    ));
    let hidden = chosen.chunks.len().saturating_sub(usize::from(width));
    let chunks = &chosen.chunks[hidden..];
    let rows = chosen.layers.min(8);
    let row = |row: u32| {
        let (from, to) = (row * chosen.layers / rows, (row + 1) * chosen.layers / rows);
        let cells = chunks.iter().map(|chunk| shade(chunk, from, to));
        Line::plain(cells.collect::<String>()).of(Style::new().fg(Color::Cyan))
    };
    [title].into_iter().chain((0..rows).map(row)).collect()
}

/// Of the layers `from..to` of a chunk.
fn shade(chunk: &ChunkView, from: u32, to: u32) -> char {
    let is_whole = chunk.state != "assigned";
    let done = if is_whole { to } else { chunk.layers_done.clamp(from, to) } - from;
    match done {
        0 => SHADES[0],
        all if all == to - from => SHADES[3],
        some => SHADES[1 + usize::from(2 * some >= to - from)],
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::Wish;
    use crate::top::look::recorded;

    fn top() -> Top {
        let mut top = Top::of("http://c1:7070".into());
        top.take(Ok(recorded(10.0)));
        let mut later = recorded(12.0);
        later.cluster.output_tokens += 30;
        top.take(Ok(later));
        top
    }

    #[test]
    fn a_cluster_at_work() {
        insta::assert_snapshot!(text(&top(), 100, 30));
        assert_eq!(text(&top(), 100, 30), text(&top(), 100, 60), "nothing but what there is");
    }

    #[test]
    fn before_the_first_answer_and_without_one() {
        let mut top = Top::of("http://c1:7070".into());
        assert_eq!(text(&top, 60, 4), "aqueduct top: http://c1:7070\n");
        top.take(Err("http://c1:7070: refused\u{1b}[2J".into()));
        let want = "aqueduct top: http://c1:7070\nno answer: http://c1:7070: refused\\u{1b}[2J\n";
        assert_eq!(text(&top, 60, 4), want);
    }

    #[test]
    fn every_size_has_a_frame() {
        let mut top = top();
        top.wish(Wish::Down);
        top.take(Err("away".into()));
        for (width, height) in [(1, 1), (2, 40), (200, 2), (30, 9), (80, 24), (300, 100)] {
            let drawn = text(&top, width, height);
            assert!(drawn.lines().count() <= height.into(), "{width}x{height}: {drawn}");
        }
        let small = text(&top, 80, 20);
        assert!(small.contains("\nr2 ") && !small.contains(KEYS), "{small}");
        let mut terminal = Terminal::new(TestBackend::new(80, 20)).unwrap();
        let small = text_of(terminal.draw(|frame| draw_on(frame, &top)).unwrap().buffer);
        assert!(small.contains("\nr2 ") && small.ends_with("reverse\n"), "{small}");
    }

    #[test]
    fn what_has_not_changed_is_not_drawn_again() {
        let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
        let top = top();
        let first = terminal.draw(|frame| draw_on(frame, &top)).unwrap().buffer.clone();
        let second = terminal.draw(|frame| draw_on(frame, &top)).unwrap().buffer.clone();
        assert!(first.diff(&second).is_empty());
        terminal.backend_mut().resize(60, 20);
        let drawn = terminal.draw(|frame| draw_on(frame, &top)).unwrap();
        assert_eq!((drawn.area.width, drawn.area.height), (60, 20));
    }

    #[test]
    fn shades_say_how_much_of_a_band_is_done() {
        let chunk = |state: &str, layers_done| ChunkView {
            state: state.into(),
            layers_done,
            ..ChunkView::default()
        };
        let check = |chunk: ChunkView, want: &str| {
            let shades = [(0, 4), (4, 8), (8, 12)].map(|(from, to)| shade(&chunk, from, to));
            assert_eq!(shades.iter().collect::<String>(), want);
        };
        check(chunk("assigned", 0), "···");
        check(chunk("assigned", 5), "█░·");
        check(chunk("assigned", 11), "██▒");
        check(chunk("restored", 0), "███");
    }
}

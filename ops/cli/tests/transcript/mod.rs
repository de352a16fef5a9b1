//! What somebody at a terminal sees of commands, as text that is the same from run to run: what
//! varies stands there under a name. Compared with what is checked in under `tests/snapshots`;
//! `INSTA_UPDATE=always cargo test -p aqueduct --test NAME` writes that anew, to be read before it
//! is committed.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::binary::aqueduct;

/// Columns, fields and keys whose values are never twice the same.
const VARYING: &[&str] = &[
    "AGE",
    "AT",
    "BEHIND",
    "BUSY",
    "SCORE",
    "SILENT",
    "Age",
    "Uptime",
    "age_seconds",
    "at_seconds",
    "busy_seconds",
    "clock_ms",
    "entries_behind",
    "kept",
    "queue_seconds",
    "run",
    "score",
    "silent_seconds",
    "total",
    "uptime_seconds",
    "wait_seconds",
    "RETAINED",
];
/// The same of requests under way.
const GROWING: &[&str] = &[
    "TOKENS",
    "Generated",
    "output_tokens",
    "tokens",
    "Keys",
    "POSITION",
    "IN USE",
    "POOL",
    "Pool",
    "HOME",
    "Chunks",
    "position",
    "text",
    "FIRST",
    "GAP",
    "First token",
    "Between tokens",
];

/// A line that does not come within so long never will.
const LINE_DEADLINE: Duration = Duration::from_secs(60);

/// Commands and what they print, in the order in which they are run.
pub(crate) struct Transcript {
    text: String,
    /// What is written in the place of what, longest first.
    names: Vec<(String, String)>,
    /// For all commands.
    env: Vec<(String, String)>,
    growing: bool,
}

impl Transcript {
    /// Nothing yet; commands are run with this environment and nothing else that they look at.
    pub(crate) fn new(env: &[(&str, &str)]) -> Self {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self { text: String::new(), names: Vec::new(), env: env.collect(), growing: false }
    }

    /// From now on `what` is written as `name`.
    pub(crate) fn name(&mut self, what: &str, name: &str) {
        self.names.retain(|(known, _)| known != what);
        self.names.push((what.to_owned(), name.to_owned()));
        self.names.sort_by_key(|(known, _)| std::cmp::Reverse(known.len()));
    }

    /// Says what the next commands are about.
    pub(crate) fn note(&mut self, words: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        self.text += &format!("{gap}# {words}\n");
    }

    /// Whether numbers that grow with a request under way are left out too, from now on.
    pub(crate) fn growing(&mut self, growing: bool) {
        self.growing = growing;
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = aqueduct();
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AQUEDUCT_")) {
            command.env_remove(name);
        }
        for name in ["COLUMNS", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_METRIC_EXPORT_INTERVAL"] {
            command.env_remove(name);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value))).args(args);
        command
    }

    /// Runs a command to its end; what it printed, to stdout and then to stderr, and with which
    /// code it ended.
    pub(crate) fn run(&mut self, args: &[&str]) -> Output {
        let output = self.command(args).output().unwrap();
        let printed = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
        let code = match output.status.code() {
            Some(0) => String::new(),
            code => format!("[exit code {}]\n", code.map_or("none".into(), |it| it.to_string())),
        };
        let shown = self.masked(&printed.concat());
        self.text += &format!("\n$ {}\n{shown}{code}", self.line(args));
        output
    }

    /// The same in each of the forms that something is shown in.
    pub(crate) fn forms(&mut self, args: &[&str]) {
        self.run(args);
        for form in ["wide", "json", "yaml"] {
            self.run(&[args, &["-o", form]].concat());
        }
    }

    /// What a command with `--watch` shows at first, so many lines, and the first later one with
    /// these words in it, which is there because of `change`.
    pub(crate) fn watch(
        &mut self,
        args: &[&str],
        lines: usize,
        change: impl FnOnce(),
        words: &str,
    ) {
        let args = [args, &["--watch", "--interval", "0.1"]].concat();
        let mut child = self.command(&args).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (send, heard) = mpsc::sync_channel(1024);
        std::thread::spawn(move || {
            stdout
                .lines()
                .map_while(Result::ok)
                .take_while(|it| send.send(it.clone()).is_ok())
                .count()
        });
        let next = || heard.recv_timeout(LINE_DEADLINE).expect("another line");
        let mut shown: Vec<_> = (0..lines).map(|_| next()).collect();
        change();
        let new = loop {
            let line = next();
            if line.contains(words) {
                break line;
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        shown.push(new);
        let mut shown: Vec<_> =
            self.masked(&(shown.join("\n") + "\n")).lines().map(str::to_owned).collect();
        shown.insert(lines, "…".to_owned());
        self.text += &format!("\n$ {}\n{}\n", self.line(&args), shown.join("\n"));
    }

    /// Compares all that was seen since the last comparison.
    pub(crate) fn check(&mut self, name: &str) {
        let text = std::mem::take(&mut self.text);
        let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots");
        insta::with_settings!({
            snapshot_path => beside, prepend_module_to_snapshot => false, omit_expression => true,
        }, { insta::assert_snapshot!(name, text) });
    }

    /// A command as somebody types it.
    fn line(&self, args: &[&str]) -> String {
        let word = |word: &&str| match word.is_empty() || word.contains(' ') {
            true => format!("'{word}'"),
            false => (*word).to_owned(),
        };
        let words: Vec<_> = args.iter().map(word).collect();
        self.named(&format!("aqueduct {}", words.join(" ")))
    }

    fn named(&self, text: &str) -> String {
        let replace = |text: String, (what, name): &(String, String)| text.replace(what, name);
        self.names.iter().fold(text.to_owned(), replace)
    }

    fn varies(&self, name: &str) -> bool {
        VARYING.contains(&name) || (self.growing && GROWING.contains(&name))
    }

    /// `text` with names for what varies, and cells three spaces apart, however wide they are.
    fn masked(&self, text: &str) -> String {
        let mut headings: Vec<String> = Vec::new();
        let mut masked = String::new();
        for line in self.named(text).lines() {
            let words = line.trim_start();
            let cells = cells(words);
            let is_heading = cells.len() > 1 && cells.iter().all(|cell| is_heading(cell));
            let shown = if is_heading {
                headings = cells.iter().map(|cell| (*cell).to_owned()).collect();
                cells.join("   ")
            } else if cells.len() > 1 && cells.len() == headings.len() {
                let cell = |(name, cell): (&String, &&str)| match self.varies(name) {
                    true => format!("<{}>", name.to_lowercase()),
                    false => (*cell).to_owned(),
                };
                headings.iter().zip(&cells).map(cell).collect::<Vec<_>>().join("   ")
            } else {
                let fields: Vec<_> = cells.iter().map(|cell| self.field(cell)).collect();
                let is_any = fields.iter().zip(&cells).skip(1).any(|(shown, cell)| shown != cell);
                if is_any { fields.join("   ") } else { self.field(words) }
            };
            if line.is_empty() {
                headings.clear();
            }
            let line = format!("{}{}", &line[..line.len() - words.len()], timeless(&shown));
            masked += &format!("{}\n", line.trim_end());
        }
        masked
    }

    /// A line `name: value`, whose value may vary.
    fn field(&self, line: &str) -> String {
        let Some((before, value)) = line.split_once(':') else { return line.to_owned() };
        let name = before.trim_start_matches("- ").trim_matches('"');
        let is_plain = !value.trim().is_empty() && !value.ends_with(['{', '[']);
        match is_plain && self.varies(name) {
            true => {
                let comma = if value.ends_with(',') { "," } else { "" };
                format!("{before}: <{}>{comma}", name.to_lowercase())
            }
            false => line.to_owned(),
        }
    }
}

/// `text` without the numbers of milliseconds in it.
fn timeless(text: &str) -> String {
    let words: Vec<_> = text.split(' ').collect();
    let is_time = |at: usize| words.get(at + 1).is_some_and(|word| word.starts_with("ms"));
    let shown = words.iter().enumerate().map(|(at, word)| match word.parse::<u64>() {
        Ok(_) if is_time(at) => "<time>",
        _ => word,
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// Cells of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

fn is_heading(cell: &str) -> bool {
    cell.chars().all(|at| at.is_ascii_uppercase() || " ▼▲".contains(at))
}

//! `aqueduct demo`: a whole book, four workers, one question, and what was remembered.

use std::path::{Path, PathBuf};

use anyhow::Context;
use aqueduct_client::{Client, ClientOptions, GenerateEvent, GenerateOptions, Prompt, Summary};
use aqueduct_coordinator::text::TextModel;
use aqueduct_core::{Refusal, TokenId, limits};
use futures::StreamExt;
use serde::Serialize;

use crate::args::{DemoArgs, ModelArgs};
use crate::cluster::{self, Cluster, Workers};
use crate::events;
use crate::front::Front;
use crate::picture::{self, Kept};
use crate::progress::PrefillDisplay;
use crate::report::{self, Table};
use crate::{lines, loading, prompts};

const QUESTION: &str =
    "\n\nQuestion: Where did the man who wrote this book build his house?\nAnswer: He built it";
const ANSWER_TOKENS: u32 = 64;
/// Where a model does not say how many positions it has.
const POSITIONS: u32 = 65_536;
const PICTURE: &str = "demo-memory.svg";

#[derive(Debug, Serialize)]
struct Row {
    prompt_tokens: u32,
    output_tokens: u32,
    workers: usize,
    seconds: f64,
    tokens_per_second: f64,
    decode_tokens_per_second: f64,
    kv_bytes: u64,
    dense_bytes: u64,
    retained_mass: f64,
    answer: String,
    picture: PathBuf,
}

/// Reads the book, answers, shows.
///
/// # Errors
/// No model to be found, a worker that fails, a picture that cannot be written.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<()> {
    let model = match &args.model {
        Some(model) => model.clone(),
        None => shipped_model()?,
    };
    let model = ModelArgs::plain(model, args.device);
    let loaded = loading::load(&model, 0).await?;
    let config = cluster::config(args.workers, limits::CHUNK_TOKENS_DEFAULT);
    let workers = Workers { homes_shown: true, ..Workers::plain(args.workers) };
    let cluster = Cluster::embedded(&loaded, workers, config).await?;
    let front = Front::private(cluster.coordinator(), &model.model).await?;
    let prompt = prompt(&prompts::tokeniser(&model.model)?, &args, cluster.shape().max_positions)?;
    if !args.json {
        let tokens = report::grouped(prompt.len() as u64);
        let workers = args.workers;
        lines::say(&format!(
            "Walden, {tokens} tokens, over {workers} workers on this machine\n\n"
        ))?;
    }
    let (answer, summary) = ask(&front, prompt, args.json).await?;
    let picture = draw(&cluster, &args.out)?;
    front.stop().await;
    cluster.stop().await;
    show(&args, &model.model, Row::new(&args, answer, &summary, picture))
}

/// The folder `model` beside the work folder, the binary (or its target folder) or the sources.
fn shipped_model() -> Result<PathBuf, Refusal> {
    let binary = std::env::current_exe().unwrap_or_default();
    let beside_binary = binary.ancestors().skip(1).take(4).map(Path::to_owned);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::iter::once(PathBuf::from("."))
        .chain(beside_binary)
        .chain([sources])
        .map(|folder| folder.join("model"))
        .find(|folder| folder.join("config.json").is_file())
        .ok_or_else(|| Refusal::new("model", "absent", "given: no folder `model` was found"))
}

/// As much of the book as fits beside question and answer, then the question.
fn prompt(text: &TextModel, args: &DemoArgs, positions: u32) -> Result<Vec<TokenId>, Refusal> {
    let book = text.encode(prompts::BOOK, false)?;
    let question = text.encode(QUESTION, false)?;
    let positions = if positions == 0 { POSITIONS } else { positions };
    let room = positions.saturating_sub(ANSWER_TOKENS + question.len() as u32);
    let most = room.min(book.len() as u32);
    let tokens = args.prompt_tokens.unwrap_or(most);
    Refusal::unless_within("prompt_tokens", tokens, 1, most)?;
    Ok([&book[..tokens as usize], &question].concat())
}

/// The answer and the figures; both are shown as they come unless only rows are wanted.
async fn ask(front: &Front, prompt: Vec<TokenId>, json: bool) -> anyhow::Result<(String, Summary)> {
    let client = Client::connect(&front.grpc_url(), ClientOptions::default()).await?;
    let options = GenerateOptions {
        max_tokens: Some(ANSWER_TOKENS),
        temperature: Some(0.0),
        ..GenerateOptions::new(Prompt::Tokens(prompt))
    };
    let mut events = client.generate(options).await?;
    let mut display = PrefillDisplay::new();
    let (mut question, mut answer) = (QUESTION.trim_start(), String::new());
    let mut say = |text: &str| -> std::io::Result<()> {
        let question = std::mem::take(&mut question);
        answer.push_str(text);
        if json { Ok(()) } else { lines::say(&format!("{question}{text}")) }
    };
    while let Some(event) = events.next().await {
        match event.inspect_err(|_| display.finish())? {
            GenerateEvent::Progress(at) => display.show(&at),
            GenerateEvent::Token(token) => {
                display.finish();
                say(&token.text)?;
            }
            GenerateEvent::ChoiceDone(done) => say(&done.text)?,
            GenerateEvent::Summary(summary) => return Ok((answer, *summary)),
            _ => {}
        }
    }
    anyhow::bail!("the answer ended without a summary")
}

/// Writes the picture and says where.
fn draw(cluster: &Cluster, folder: &Path) -> anyhow::Result<PathBuf> {
    let kept: Kept = cluster.kept().context("no worker holds the memory of the request")?;
    let path = folder.join(PICTURE);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&path, picture::svg(&kept)))
        .with_context(|| format!("out = {}", path.display()))?;
    Ok(path)
}

impl Row {
    fn new(args: &DemoArgs, answer: String, summary: &Summary, picture: PathBuf) -> Self {
        Self {
            prompt_tokens: summary.prompt_tokens,
            output_tokens: summary.output_tokens,
            workers: args.workers,
            seconds: summary.prefill.as_secs_f64(),
            tokens_per_second: events::prefill_rate(summary),
            decode_tokens_per_second: events::tokens_per_second(
                summary.output_tokens,
                summary.decode,
            ),
            kv_bytes: summary.memory_bytes,
            dense_bytes: summary.dense_bytes,
            retained_mass: summary.retained_total().share(),
            answer,
            picture,
        }
    }
}

fn show(args: &DemoArgs, model: &Path, row: Row) -> anyhow::Result<()> {
    if args.json {
        return Ok(lines::print(&row)?);
    }
    let mut table = Table::new(["one book, one bounded memory", ""]);
    table.row(["prompt tokens".into(), report::grouped(row.prompt_tokens.into())]);
    table.row(["workers".into(), row.workers.to_string()]);
    table.row(["prefill, seconds".into(), format!("{:.2}", row.seconds)]);
    table.row(["prefill, tokens/s".into(), report::grouped(row.tokens_per_second as u64)]);
    table.row(["decode, tokens/s".into(), report::grouped(row.decode_tokens_per_second as u64)]);
    table.row(["bytes kept".into(), report::bytes(row.kv_bytes)]);
    table.row(["bytes of a full KV cache".into(), report::bytes(row.dense_bytes)]);
    table.row(["attention mass retained".into(), report::percent(row.retained_mass)]);
    let picture = row.picture.display();
    let binary = std::env::current_exe().unwrap_or_else(|_| "aqueduct".into());
    let folder = std::env::current_dir().unwrap_or_default();
    Ok(lines::say(&format!(
        "\n\n{}\nwhat each layer kept: {picture}\n\
         to go on: {} serve --model {} --workers {}\n",
        table.render(),
        from(&folder, &binary).display(),
        model.display(),
        args.workers,
    ))?)
}

/// How a shell in `folder` finds `binary`: a name alone it would look for elsewhere.
fn from(folder: &Path, binary: &Path) -> PathBuf {
    match binary.strip_prefix(folder) {
        Ok(name) if name.components().count() == 1 => Path::new(".").join(name),
        Ok(below) => below.to_owned(),
        Err(_) => binary.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_is_called_as_it_is_found() {
        let check = |folder: &str, want: &str| {
            let binary = Path::new("/src/target/release/aqueduct");
            assert_eq!(from(Path::new(folder), binary), Path::new(want));
        };
        check("/src", "target/release/aqueduct");
        check("/src/target/release", "./aqueduct");
        check("/home", "/src/target/release/aqueduct");
        check("", "/src/target/release/aqueduct");
    }
}

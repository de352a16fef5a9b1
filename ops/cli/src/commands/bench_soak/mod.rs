//! `aqueduct bench soak`: everything at random for as long as one likes, and nothing left.

mod caller;
mod verdict;

use std::time::{Duration, Instant};

use anyhow::Context;
use aqueduct_client::{Client, ClientOptions};
use aqueduct_coordinator::http::Origins;
use aqueduct_core::{Refusal, limits};
use aqueduct_tls::Refusals;
use serde::Serialize;
use tokio::task::JoinSet;

use self::caller::{Caller, Tally};
use self::verdict::{Left, judge};
use crate::args::{BenchSoakArgs, GenerationConfig};
use crate::cluster::{self, Cluster, Workers};
use crate::draws::Draws;
use crate::front::{self, Doors, Front};
use crate::machine::{self, Machine};
use crate::{lines, loading, prompts};

/// How long what was cancelled may take to be gone.
const SETTLE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);

#[derive(Debug, Serialize)]
struct Row<'a> {
    seed: u64,
    seconds: f64,
    #[serde(flatten)]
    tally: Tally,
    #[serde(flatten)]
    left: Left,
    callers: u32,
    workers: usize,
    scheduler: &'static str,
    #[serde(flatten)]
    machine: &'a Machine,
    commit: &'static str,
}

/// Asks, and looks what is left.
///
/// # Errors
/// A number that is out of bounds, a model that is wrong, anything that is left or stuck.
pub(crate) async fn run(args: BenchSoakArgs) -> anyhow::Result<()> {
    Refusal::unless_within("seconds", args.seconds, 1, u64::MAX / 1000)?;
    Refusal::unless_within("callers", args.callers, 1, limits::HTTP_CONNECTIONS_MAX as u32)?;
    Refusal::unless_within("prompt_tokens", args.prompt_tokens, 1, limits::PROMPT_TOKENS_MAX)?;
    let scheduling = args.scheduler.scheduling()?;
    let seed = args.seed.unwrap_or_else(seed_of_now);
    eprintln!("seed {seed}");
    let book = prompts::tokeniser(&args.model.model)?.encode(prompts::BOOK, false)?;
    let loaded = loading::load(&args.model, args.threads).await?;
    let workers = Workers { scheduling, ..Workers::plain(args.workers) };
    let config = cluster::config(args.workers, limits::CHUNK_TOKENS_DEFAULT);
    let cluster = Cluster::embedded(&loaded, workers, config).await?;
    let doors = Doors {
        http: Some(front::bind("http", "127.0.0.1:0").await?.into()),
        grpc: front::bind("grpc", "127.0.0.1:0").await?.into(),
        monitor: None,
        name: None,
        origins: Origins::default(),
        chat_max_tokens: limits::CHAT_TOKENS_DEFAULT,
        generation_config: GenerationConfig::None,
        keys: None,
        refusals: Refusals::default(),
        policy: None,
        data_dir: None,
        membership: None,
    };
    let front = Front::open(cluster.coordinator(), &args.model.model, doors).await?;
    let caller = Caller {
        client: Client::connect(&front.grpc_url(), ClientOptions::default()).await?,
        http: front.http().context("an address of HTTP")?,
        book: book.into(),
        prompt_tokens: args.prompt_tokens,
        has_states: loaded.model.shape().recurrent_layers > 0,
    };
    let started = Instant::now();
    let whole = Duration::from_secs(args.seconds);
    // The first part fills what is kept for reuse; both parts end with nobody asking.
    let mut tally = ask(&caller, &args, Draws::new(seed).of(0), whole / 5).await;
    let warm = settled(&cluster).await;
    tally += ask(&caller, &args, Draws::new(seed).of(1), whole - whole / 5).await;
    let left = settled(&cluster).await.since(&warm);
    let row = Row {
        seed,
        seconds: started.elapsed().as_secs_f64(),
        tally,
        left,
        callers: args.callers,
        workers: args.workers,
        scheduler: scheduling.scheduler.as_str(),
        machine: &Machine::look(),
        commit: machine::COMMIT,
    };
    front.stop().await;
    cluster.stop().await;
    match args.json {
        true => lines::print(&row)?,
        false => lines::say(&format!("{}\n{}\n", row.tally, row.left))?,
    }
    judge(&row.tally, &row.left, args.slack_mib).with_context(|| format!("seed {seed}"))
}

fn seed_of_now() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
    since.map_or(1, |since| since.as_nanos() as u64 % 1_000_000)
}

/// Lets callers ask for a while, and waits for those under way.
async fn ask(caller: &Caller, args: &BenchSoakArgs, draws: Draws, during: Duration) -> Tally {
    let mut callers = JoinSet::new();
    for idx in 0..args.callers {
        let (caller, draws) = (caller.clone(), draws.of(idx));
        let until = Instant::now() + during;
        callers.spawn(async move { caller.ask_until(until, draws).await });
    }
    let mut all = Tally::default();
    while let Some(tally) = callers.join_next().await {
        match tally {
            Ok(tally) => all += tally,
            Err(error) => all.fail(error.to_string()),
        }
    }
    all
}

/// What is left as soon as nothing is, or after a while.
async fn settled(cluster: &Cluster) -> Left {
    let deadline = Instant::now() + SETTLE;
    loop {
        let left = Left::look(&cluster.coordinator().stats(), &cluster.held());
        if left.is_nothing() || Instant::now() > deadline {
            return left;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

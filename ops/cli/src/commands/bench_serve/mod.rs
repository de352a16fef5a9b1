//! `aqueduct bench serve`: what callers of a server wait for, under every scheduler.

mod bars;
mod callers;
mod row;

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use anyhow::Context as _;
use aqueduct_client::{Client, ClientOptions, GenerateOptions, TokenId};
use aqueduct_coordinator::Config;
use aqueduct_core::{Refusal, limits};
use aqueduct_worker::Scheduler;

use self::callers::{Callers, Heard};
use self::row::{Context, Kind, Row, table};
use crate::args::{Arrival, BenchServeArgs};
use crate::cluster::{self, Cluster, Workers};
use crate::draws::Draws;
use crate::front::Front;
use crate::loading::{self, Loaded};
use crate::machine::{self, Machine};
use crate::{lines, plot, prompts};

/// Measures every scheduler, arrival and load.
///
/// # Errors
/// A number that is out of bounds, a model that is wrong, a server that fails.
pub(crate) async fn run(args: BenchServeArgs) -> anyhow::Result<()> {
    validate(&args)?;
    // Opened first: a folder that is not there should not cost the time of measuring.
    let plot = args.plot.as_deref().map(plot::create).transpose()?;
    let bench = Bench {
        book: prompts::tokeniser(&args.model.model)?.encode(prompts::BOOK, false)?,
        loaded: loading::load(&args.model, args.threads).await?,
        machine: Machine::look(),
        args,
    };
    let mut rows = Vec::new();
    for &scheduler in &bench.args.scheduler {
        bench.measure(scheduler, &mut rows).await?;
    }
    if let Some(file) = plot {
        draw(&rows, file)?;
    }
    if !bench.args.json {
        lines::say(&table(&rows).render())?;
    }
    Ok(())
}

/// Callers at once, or arrivals in a second, beyond which the machine itself is what is measured.
const LOAD_MAX: f64 = 4096.0;
/// A week.
const SECONDS_MAX: f64 = 604_800.0;

fn validate(args: &BenchServeArgs) -> Result<(), Refusal> {
    for &tokens in args.prompt_tokens.iter().chain([&args.long_tokens]) {
        Refusal::unless_within("prompt_tokens", tokens, 1, limits::PROMPT_TOKENS_MAX)?;
    }
    Refusal::unless_within("max_tokens", args.max_tokens, 2, limits::OUTPUT_TOKENS_MAX)?;
    let (lengths, weights) = (args.prompt_tokens.len(), args.weight.len());
    Refusal::unless_within("weights", weights, lengths, lengths)?;
    let within =
        |field: &str, value, most| Refusal::unless_within(field, value, 0.001, most).map(drop);
    args.weight.iter().try_for_each(|&weight| within("weight", weight, 1e9))?;
    args.load.iter().try_for_each(|&load| within("load", load, LOAD_MAX))?;
    within("seconds", args.seconds, SECONDS_MAX)?;
    let whole = |load: f64| load.fract() == 0.0;
    let callers = args.arrival.iter().any(|arrival| *arrival != Arrival::Poisson);
    match args.load.iter().find(|load| callers && !whole(**load)) {
        Some(load) => Err(Refusal::new("load", load, "a whole number of callers")),
        None => Ok(()),
    }
}

fn draw(rows: &[Row<'_>], mut file: File) -> anyhow::Result<()> {
    let groups: Vec<_> = rows.iter().filter_map(Row::bars).collect();
    file.write_all(bars::svg(&groups).as_bytes()).context("the plot")
}

struct Bench {
    args: BenchServeArgs,
    book: Vec<TokenId>,
    loaded: Loaded,
    machine: Machine,
}

impl Bench {
    /// All rows of one scheduler, of one server.
    async fn measure<'a>(
        &'a self,
        scheduler: Scheduler,
        rows: &mut Vec<Row<'a>>,
    ) -> anyhow::Result<()> {
        let args = &self.args;
        let scheduling = args.step.scheduling(scheduler)?;
        let config = Config {
            queued_requests: args.queue,
            positions_limited: false,
            ..cluster::config(args.workers, args.memory.chunk_tokens)
        };
        let workers = Workers { scheduling, ..Workers::plain(args.workers) };
        let cluster = Cluster::embedded(&self.loaded, workers, config).await?;
        cluster.warm_up(&self.book, args.memory.chunk_tokens).await?;
        let front = Front::private(cluster.coordinator(), &args.model.model).await?;
        let client = Client::connect(&front.grpc_url(), ClientOptions::default()).await?;
        for &arrival in &args.arrival {
            for &load in &args.load {
                let measured = self.rows(scheduler, arrival, load, &client).await?;
                for row in &measured {
                    self.tell(row)?;
                }
                rows.extend(measured);
            }
        }
        front.stop().await;
        cluster.stop().await;
        Ok(())
    }

    async fn rows(
        &self,
        scheduler: Scheduler,
        arrival: Arrival,
        load: f64,
        client: &Client,
    ) -> anyhow::Result<Vec<Row<'_>>> {
        let mut callers = Callers::new(client.clone());
        let context = Context {
            load,
            bench: &self.args,
            device: &self.loaded.device,
            threads: self.loaded.threads,
            machine: &self.machine,
            commit: machine::COMMIT,
        };
        let row = |kind, heard: &Heard| Row::new(scheduler, kind, heard, context);
        let during = Duration::from_secs_f64(self.args.seconds);
        let draws = Draws::new(self.args.seed);
        Ok(match arrival {
            Arrival::Poisson => {
                let waits = draws.clone();
                let asks = self.asks(draws);
                let heard = callers.poisson((load, waits), asks, during).await?;
                vec![row(Kind::Mixed(arrival), &heard)]
            }
            Arrival::Closed => {
                let asks = |caller| self.asks(draws.of(caller));
                let heard = callers.closed(load as u32, asks, during).await?;
                vec![row(Kind::Mixed(arrival), &heard)]
            }
            Arrival::Long => {
                let short = (0..load as u32).map(|caller| self.reader(draws.of(caller))).collect();
                let mut draws = draws.of(u32::MAX);
                let long = self.ask(self.args.long_tokens, 1, &mut draws);
                let (idle, long) = callers.long(short, long, during).await?;
                let idle = row(Kind::Idle, &idle);
                let long = row(Kind::Long { idle_ms: idle.itl_ms_p99 }, &long);
                vec![idle, long]
            }
        })
    }

    /// Requests of the lengths that were asked for, one after the other.
    fn asks(&self, mut draws: Draws) -> impl Iterator<Item = GenerateOptions> {
        let args = &self.args;
        std::iter::repeat_with(move || {
            let tokens = args.prompt_tokens[draws.weighted(&args.weight)];
            self.ask(tokens, args.max_tokens, &mut draws)
        })
    }

    /// A request that reads on and on.
    fn reader(&self, mut draws: Draws) -> GenerateOptions {
        self.ask(self.args.prompt_tokens[0], limits::OUTPUT_TOKENS_MAX, &mut draws)
    }

    /// A part of the book, from anywhere, so that no request begins like another.
    fn ask(&self, prompt_tokens: u32, max_tokens: u32, draws: &mut Draws) -> GenerateOptions {
        let start = draws.below(self.book.len());
        let prompt = self.book.iter().copied().cycle().skip(start).take(prompt_tokens as usize);
        GenerateOptions {
            max_tokens: Some(max_tokens),
            temperature: Some(0.0),
            ignore_eos: true,
            policy: Some(self.args.memory.policy(self.args.policy)),
            chunk_tokens: Some(self.args.memory.chunk_tokens),
            ..GenerateOptions::tokens(prompt.collect())
        }
    }

    /// A row as soon as it is measured.
    fn tell(&self, row: &Row<'_>) -> std::io::Result<()> {
        if self.args.json {
            return lines::print(row);
        }
        let Row { scheduler, arrival, load, itl_ms_p99, .. } = row;
        eprintln!(
            "{scheduler}, {arrival}, load {load}: p99 {itl_ms_p99:.2} ms from token to token"
        );
        Ok(())
    }
}

//! `aqueduct bench exchange`: bytes and time of one layer where keys come, and where they stay.

mod plain;
mod scene;
mod stream;

use std::time::Duration;

use anyhow::ensure;
use aqueduct_core::{Carry, Exchange, Refusal, WireDtype, limits};
use serde::Serialize;
use tokio::runtime::Handle;

use self::scene::{Depth, Scene};
use crate::args::{BenchExchangeArgs, Link};
use crate::lines;
use crate::loading::{self, Loaded};
use crate::machine::{self, Machine};
use crate::report::{self, Table};
use crate::timings::Timings;

/// In the order in which they are measured, in turn.
const EXCHANGES: [Exchange; 3] = [Exchange::Move, Exchange::Stay, Exchange::Auto];

#[derive(Debug, Serialize)]
struct Row<'a> {
    block_tokens: u32,
    exchange: &'static str,
    /// Between holders and asker for the layer: counted by the link, and by the formula where
    /// they are in one process.
    bytes: u64,
    /// Median over the repetitions, from queries to their state over the prompt.
    layer_us: f64,
    /// Longest less shortest.
    layer_us_spread: f64,
    workers: usize,
    depth_tokens: u32,
    chunk_tokens: u32,
    reps: u32,
    link: &'static str,
    wire: &'static str,
    /// Of the smallest block that `auto` brings all keys to; null if there is none.
    crossing_tokens: Option<u32>,
    #[serde(flatten)]
    context: Context<'a>,
}

/// What every row of a run has in common.
#[derive(Debug, Clone, Copy, Serialize)]
struct Context<'a> {
    kv: &'static str,
    /// What computed: `cpu` or `cuda:N`.
    device: &'a str,
    threads: usize,
    #[serde(flatten)]
    machine: &'a Machine,
    commit: &'static str,
}

/// Measures every block, or the stream alone.
///
/// # Errors
/// A number that is out of bounds, a model that is wrong, a holder that does not answer.
pub(crate) async fn run(args: BenchExchangeArgs) -> anyhow::Result<()> {
    validate(&args)?;
    let loaded = loading::load(&args.model, args.threads).await?;
    let recurrent_layers = loaded.model.shape().recurrent_layers;
    if recurrent_layers > 0 {
        let bound = "0: keys of a model that has states never stay where they were made";
        return Err(Refusal::new("recurrent_layers", recurrent_layers, bound).into());
    }
    let machine = Machine::look();
    let context = Context {
        kv: args.model.kv.as_str(),
        device: &loaded.device,
        threads: loaded.threads,
        machine: &machine,
        commit: machine::COMMIT,
    };
    if args.stream {
        return stream::run(&args, &loaded, context).await;
    }
    let rows = measure(&args, &loaded, context).await?;
    if !args.json {
        lines::say(&table(&rows).render())?;
        if let Some(tokens) = rows.first().and_then(|row| row.crossing_tokens) {
            lines::say(&format!("auto: keys come to blocks of {tokens} tokens and more\n"))?;
        }
        rows.chunks(EXCHANGES.len()).try_for_each(|block| lines::say(&quicker(block)))?;
    }
    Ok(())
}

fn validate(args: &BenchExchangeArgs) -> Result<(), Refusal> {
    Refusal::unless_within("reps", args.reps, 1, u32::MAX)?;
    Refusal::unless_within("workers", args.workers, 1, limits::WORKERS_MAX)?;
    Refusal::unless_within("depth_tokens", args.depth_tokens, 1, limits::PROMPT_TOKENS_MAX)?;
    Refusal::unless_within("chunk", args.chunk_tokens, 1, limits::CHUNK_TOKENS_MAX)?;
    for &tokens in &args.block_tokens {
        Refusal::unless_within("block_tokens", tokens, 1, limits::CHUNK_TOKENS_MAX)?;
    }
    Ok(())
}

fn depth(args: &BenchExchangeArgs) -> Depth {
    Depth {
        tokens: args.depth_tokens,
        chunk_tokens: args.chunk_tokens,
        workers: args.workers,
        link: args.link,
        wire: args.wire,
    }
}

async fn measure<'a>(
    args: &BenchExchangeArgs,
    loaded: &Loaded,
    context: Context<'a>,
) -> anyhow::Result<Vec<Row<'a>>> {
    let here = Handle::current();
    let mut scene = Scene::start(&loaded.model, depth(args), (&here, &here)).await?;
    let crossing_tokens = crossing(&scene);
    let mut rows = Vec::new();
    for &block_tokens in &args.block_tokens {
        let block = tokio::task::block_in_place(|| block(&mut scene, args, block_tokens))?;
        for (exchange, (times, bytes)) in EXCHANGES.into_iter().zip(block) {
            let seconds = Timings::of(&times);
            let row = Row {
                block_tokens,
                exchange: exchange.as_str(),
                bytes,
                layer_us: seconds.median * 1e6,
                layer_us_spread: seconds.spread * 1e6,
                workers: args.workers,
                depth_tokens: args.depth_tokens,
                chunk_tokens: args.chunk_tokens,
                reps: args.reps,
                link: args.link.as_str(),
                wire: args.wire.as_str(),
                crossing_tokens,
                context,
            };
            if args.json {
                lines::print(&row)?;
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Times and bytes of every exchange, measured in turn so that the machine's moods meet all.
fn block(
    scene: &mut Scene,
    args: &BenchExchangeArgs,
    block_tokens: u32,
) -> anyhow::Result<Vec<(Vec<Duration>, u64)>> {
    let q = scene.queries(block_tokens);
    let fares = scene.fares(block_tokens);
    let mut measured = vec![(Vec::new(), 0); EXCHANGES.len()];
    let mut want = None;
    for rep in 0..=args.reps {
        for (exchange, (times, bytes)) in EXCHANGES.into_iter().zip(&mut measured) {
            let carry = scene.carry(exchange);
            let passed = scene.layer(&q, carry)?;
            if args.wire == WireDtype::F32 {
                let same = passed.state == *want.get_or_insert_with(|| passed.state.clone());
                ensure!(same, "{exchange}: another state of {block_tokens} tokens than move's");
            }
            *bytes = match args.link {
                Link::Loopback => fares.iter().map(|fares| fares.bytes(carry)).sum(),
                Link::Grpc => passed.bytes,
            };
            if rep > 0 {
                times.push(passed.took); // the first one opens what later ones find open
            }
        }
    }
    Ok(measured)
}

/// Tokens of the smallest block that `auto` brings all keys to.
fn crossing(scene: &Scene) -> Option<u32> {
    let keys_come =
        |tokens: u32| scene.fares(tokens).iter().all(|fares| fares.keys_come(Carry::Fewest));
    let (mut below, mut above) = (0, limits::CHUNK_TOKENS_MAX + 1);
    while above - below > 1 {
        let middle = below.midpoint(above);
        *(if keys_come(middle) { &mut above } else { &mut below }) = middle;
    }
    (above <= limits::CHUNK_TOKENS_MAX).then_some(above)
}

/// Which of a block's rows took the least time, and how `auto` did beside it.
fn quicker(block: &[Row<'_>]) -> String {
    let named = |name: Exchange| block.iter().find(|row| row.exchange == name.as_str());
    let [Some(moved), Some(stayed), Some(auto)] = EXCHANGES.map(named) else {
        return String::new();
    };
    let best = if moved.layer_us < stayed.layer_us { moved } else { stayed };
    let share = auto.layer_us / best.layer_us - 1.0;
    format!(
        "{} tokens: {} is quicker, auto {:+.1} %\n",
        best.block_tokens,
        best.exchange,
        share * 100.0
    )
}

fn table(rows: &[Row<'_>]) -> Table {
    let mut table = Table::new(["block", "exchange", "bytes", "layer", "spread"]);
    for row in rows {
        table.row([
            report::grouped(row.block_tokens.into()),
            row.exchange.to_owned(),
            report::grouped(row.bytes),
            format!("{:.0} us", row.layer_us),
            format!("{:.0} us", row.layer_us_spread),
        ]);
    }
    table
}

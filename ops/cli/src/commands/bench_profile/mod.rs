//! `aqueduct bench profile`: which part of a prefill, and of a decode step, takes how long.

mod watched;

use std::sync::Arc;
use std::time::Instant;

use aqueduct_core::{ChunkGrid, MemoryPolicy, PolicyKind, Refusal, Sampling, TokenId, limits};
use aqueduct_engine::{Block, LocalPort, Model, Sequence, Want, prefill, sample};
use aqueduct_kernels::Leaves;
use serde::Serialize;

use self::watched::{Ledger, Part, Watched};
use crate::args::{BenchProfileArgs, DeviceChoice};
use crate::machine::{self, Machine};
use crate::report::{self, Table};
use crate::{lines, loading, prompts, timings};

/// Steps before the first that counts: a completion takes its own copy of the memory.
const STEPS_BEFORE: u32 = 2;

#[derive(Debug, Serialize)]
struct Row<'a> {
    phase: &'static str,
    policy: &'static str,
    prompt_tokens: u32,
    part: &'static str,
    /// Median over the repetitions: of the whole prefill, or of a token.
    us: f64,
    share: f64,
    reps: u32,
    chunk_tokens: u32,
    threads: usize,
    #[serde(flatten)]
    machine: &'a Machine,
    commit: &'static str,
}

/// Measures every policy and prompt length.
///
/// # Errors
/// A number that is out of bounds, a model that is wrong.
pub(crate) async fn run(args: BenchProfileArgs) -> anyhow::Result<()> {
    Refusal::unless_within("reps", args.reps, 1, u32::MAX)?;
    Refusal::unless_within("tokens", args.tokens, 1, limits::OUTPUT_TOKENS_MAX)?;
    for &tokens in &args.prompt_tokens {
        ChunkGrid::new(tokens, args.memory.chunk_tokens)?;
    }
    let book = prompts::tokeniser(&args.model.model)?.encode(prompts::BOOK, false)?;
    let mut watched = None;
    let watch = |cpu| watched.insert(Arc::new(Watched::new(cpu))).clone() as _;
    if let choice @ DeviceChoice::Cuda(_) = args.model.device.choice() {
        return Err(Refusal::new("device", choice, "cpu: parts are timed on the processor").into());
    }
    let loaded = loading::load_on_cpu(&args.model, args.threads, watch)?;
    let watched = watched.expect("a backend is made before a model is loaded");
    let bench = Bench { book, model: loaded.model, watched, args: &args };
    let machine = Machine::look();
    let mut table = Table::new(["phase", "policy", "prompt", "part", "us", "share"]);
    for &kind in &args.policy {
        for &prompt_tokens in &args.prompt_tokens {
            for (phase, parts) in bench.measure(kind, prompt_tokens)? {
                for (part, us, share) in parts {
                    let row = Row {
                        phase,
                        policy: kind.as_str(),
                        prompt_tokens,
                        part,
                        us,
                        share,
                        reps: args.reps,
                        chunk_tokens: args.memory.chunk_tokens,
                        threads: loaded.threads,
                        machine: &machine,
                        commit: machine::COMMIT,
                    };
                    tell(&row, &mut table, args.json)?;
                }
            }
        }
    }
    if !args.json {
        lines::say(&table.render())?;
    }
    Ok(())
}

fn tell(row: &Row<'_>, table: &mut Table, json: bool) -> std::io::Result<()> {
    if json {
        return lines::print(row);
    }
    table.row([
        row.phase.to_owned(),
        row.policy.to_owned(),
        report::grouped(row.prompt_tokens.into()),
        row.part.to_owned(),
        format!("{:.1}", row.us),
        report::percent(row.share),
    ]);
    Ok(())
}

struct Bench<'a> {
    book: Vec<TokenId>,
    model: Arc<Model>,
    watched: Arc<Watched>,
    args: &'a BenchProfileArgs,
}

/// Name, microseconds and share.
type Shares = Vec<(&'static str, f64, f64)>;

/// One prefill, or some decode steps.
#[derive(Default)]
struct Pass {
    ledger: Ledger,
    sampling: f64,
    total: f64,
}

impl Pass {
    fn attend(&self) -> f64 {
        self.ledger[Part::Attend as usize]
    }
}

impl Bench<'_> {
    /// Parts of the prefill, and of a decode step behind it.
    fn measure(
        &self,
        kind: PolicyKind,
        prompt_tokens: u32,
    ) -> anyhow::Result<[(&'static str, Shares); 2]> {
        let policy = self.args.memory.policy(kind);
        let prompt = prompts::cycled(&self.book, prompt_tokens);
        let chunk = &prompt[..prompt.len().min(self.args.memory.chunk_tokens as usize)];
        self.prefill(chunk, &policy)?; // finds nothing where it will be
        let (mut prefills, mut decodes) = (Vec::new(), Vec::new());
        for _ in 0..self.args.reps {
            let both = || -> anyhow::Result<(Pass, Pass)> {
                let (pass, port) = self.prefill(&prompt, &policy)?;
                Ok((pass, self.decode(port, &policy)?))
            };
            let (prefill, decode) = both()?;
            let (mut attend, mut attend_decode) = (prefill.attend(), decode.attend());
            if !policy.keeps_all() {
                self.watched.withhold_masses(true);
                let (prefill, decode) = both()?;
                self.watched.withhold_masses(false);
                (attend, attend_decode) = (prefill.attend(), decode.attend());
            }
            prefills.push((prefill, attend));
            decodes.push((decode, attend_decode));
        }
        let steps = f64::from(self.args.tokens);
        Ok([("prefill", shares(&prefills, 1.0)), ("decode", shares(&decodes, steps))])
    }

    fn leaves(&self) -> Leaves {
        Leaves::of_chunks(self.args.memory.chunk_tokens)
    }

    fn prefill(
        &self,
        prompt: &[TokenId],
        policy: &MemoryPolicy,
    ) -> anyhow::Result<(Pass, LocalPort)> {
        let mut port = LocalPort::empty(&self.model);
        self.watched.take();
        let started = Instant::now();
        let leaves = self.leaves();
        for tokens in prompt.chunks(self.args.memory.chunk_tokens as usize) {
            let block = Block { tokens, start: port.end(), leaves };
            let is_last = port.end() as usize + tokens.len() == prompt.len();
            let want = if is_last { Want::Last } else { Want::Memory };
            let done = prefill(&self.model, block, policy, &mut port, want)?;
            if is_last {
                self.model.logits(&done.hidden)?;
            }
        }
        let total = started.elapsed().as_secs_f64();
        Ok((Pass { ledger: self.watched.take(), sampling: 0.0, total }, port))
    }

    fn decode(&self, port: LocalPort, policy: &MemoryPolicy) -> anyhow::Result<Pass> {
        let leaves = self.leaves().going_on_behind(port.end());
        let mut sequence = Sequence::new(&self.model, port.layers().to_vec(), leaves);
        drop(port); // the sequence alone holds the memory, as at a home
        let (mut token, mut pass, mut started) = (0, Pass::default(), Instant::now());
        for step in 0..self.args.tokens + STEPS_BEFORE {
            if step == STEPS_BEFORE {
                self.watched.take();
                (pass, started) = (Pass::default(), Instant::now());
            }
            let logits = sequence.step(&self.model, token, policy)?;
            let sampling = Instant::now();
            token = sample(&logits, &Sampling::greedy(), step)?.token.token;
            pass.sampling += sampling.elapsed().as_secs_f64();
        }
        Ok(Pass { ledger: self.watched.take(), total: started.elapsed().as_secs_f64(), ..pass })
    }
}

/// What each part took of passes, each beside the attention of one without masses: what they
/// cost is the difference. `steps` is what a pass is divided by.
fn shares(passes: &[(Pass, f64)], steps: f64) -> Shares {
    let median = |of: &dyn Fn(&(Pass, f64)) -> f64| timings::median(passes.iter().map(of));
    let spent = |part: Part| median(&|(pass, _)| pass.ledger[part as usize]);
    // Of two noisy times the least ones differ most truly.
    let least = |of: &dyn Fn(&(Pass, f64)) -> f64| passes.iter().map(of).fold(f64::MAX, f64::min);
    let scores = (least(&|(pass, _)| pass.attend()) - least(&|(_, without)| *without)).max(0.0);
    let total = median(&|(pass, _)| pass.total);
    let rest =
        |(pass, _): &(Pass, f64)| pass.total - pass.sampling - pass.ledger.iter().sum::<f64>();
    let parts = [
        ("embed", spent(Part::Embed)),
        ("project", spent(Part::Project)),
        ("attend", spent(Part::Attend) - scores),
        ("scores", scores),
        ("select", spent(Part::Select)),
        ("finish", spent(Part::Finish)),
        ("head", spent(Part::Head)),
        ("sample", median(&|(pass, _)| pass.sampling)),
        ("rest", median(&rest)),
        ("all", total),
    ];
    let row = |(part, seconds)| (part, seconds / steps * 1e6, seconds / total);
    parts.map(row).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masses_are_the_difference_between_passes() {
        let pass = |attend, total| {
            let mut ledger = Ledger::default();
            ledger[Part::Attend as usize] = attend;
            ledger[Part::Finish as usize] = 4.0;
            Pass { ledger, sampling: 1.0, total }
        };
        let shares = shares(&[(pass(3.0, 10.0), 2.0)], 2.0);
        let check = |part, us: f64, share: f64| {
            let row = shares.iter().find(|row| row.0 == part).unwrap();
            assert!((row.1 - us).abs() < 1e-6 && (row.2 - share).abs() < 1e-9, "{row:?}");
        };
        check("attend", 1e6, 0.2);
        check("scores", 0.5e6, 0.1);
        check("finish", 2e6, 0.4);
        check("sample", 0.5e6, 0.1);
        check("rest", 1e6, 0.2);
        check("all", 5e6, 1.0);
    }
}

//! Runs simulations, and shows what happened in one that went wrong.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use aqueduct_sim::{Outcomes, Simulator};
use clap::Parser;

/// Runs a simulated cluster from many seeds, and stops at the first that breaks an invariant
#[derive(Debug, Parser)]
#[command(name = "aqueduct-sim")]
struct Args {
    /// Number of seeds
    #[arg(long, default_value_t = 500)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run only this seed, and print everything that happens
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    replay: Option<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let simulator = Simulator::default();
    if let Some(seed) = args.replay {
        let mut log = Vec::new();
        let outcome = simulator.run(seed, Some(&mut log));
        log.iter().for_each(|line| println!("{line}"));
        println!("{outcome:?}");
        return if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let (since, mut all) = (Instant::now(), Outcomes::new());
    for seed in args.from..args.from.saturating_add(args.seeds) {
        match simulator.run(seed, None) {
            Ok(outcomes) => {
                outcomes
                    .into_iter()
                    .for_each(|(kind, count)| *all.entry(kind).or_default() += count);
            }
            Err(violation) => {
                eprintln!("seed {seed}: {}", violation.0);
                eprintln!("replay with: cargo run -p aqueduct-sim -- --replay {seed}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{} seeds in {:.1} s: {all:?}", args.seeds, since.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

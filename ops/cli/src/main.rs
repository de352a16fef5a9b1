//! The one binary: every job of Aqueduct, by name.
#![forbid(unsafe_code)]

mod args;
mod cluster;
mod commands;
mod contexts;
mod doctor;
mod draws;
mod events;
mod exit;
mod front;
mod lines;
mod loading;
mod logging;
mod machine;
mod members;
mod membership;
mod monitor;
mod open_files;
mod picture;
mod plot;
mod progress;
mod prompts;
mod report;
mod shown;
mod svg;
mod timings;
mod top;
mod whole;
mod yaml;

use std::process::ExitCode;

use aqueduct_kernels::heap::Heap;
use mimalloc::MiMalloc;

use crate::args::{BenchCommand, Cli, Command, EvalCommand, GpuCommand};
use crate::cluster::unless_stopped;

#[global_allocator]
static HEAP: Heap<MiMalloc> = Heap(MiMalloc);

fn main() -> ExitCode {
    aqueduct_kernels::heap::keep_freed_memory();
    let (cli, names) = Cli::read();
    let code = match run(cli) {
        Ok(()) => 0,
        Err(error) if exit::is_reader_gone(&error) => 0,
        Err(error) => {
            eprintln!("error: {}", names.told(exit::one_line(&error)));
            exit::code_of(&error)
        }
    };
    aqueduct_kernels::cuda::end_process(code);
    ExitCode::from(code)
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let telemetry = {
        let _within = runtime.enter(); // where the exporter's connection lives
        logging::start(&cli)?
    };
    if cli.stays_up() {
        open_files::raise();
    }
    let outcome = runtime.block_on(async {
        match cli.command {
            Command::Demo(args) => commands::demo::run(args).await,
            Command::Serve(args) => commands::serve::run(args, &telemetry).await,
            Command::Coordinator(args) => commands::coordinator::run(args, &telemetry).await,
            Command::Worker(args) => commands::worker::run(args, &telemetry).await,
            Command::Status(args) => commands::status::run(args).await,
            Command::Top(args) => commands::top::run(args).await,
            Command::Node(command) => commands::node::run(command).await,
            Command::Request(command) => commands::request::run(command).await,
            Command::Cache(command) => commands::cache::run(command).await,
            Command::Context(command) => commands::context::run(command).await,
            Command::Completion(args) => commands::completion::run(&args),
            Command::Keys(command) => commands::keys::run(command).await,
            Command::Generate(args) => commands::generate::run(args).await,
            Command::Eval(EvalCommand::Logits(args)) => {
                unless_stopped(commands::eval_logits::run(args)).await
            }
            Command::Eval(EvalCommand::Merge(args)) => commands::eval_merge::run(args).await,
            Command::Eval(EvalCommand::Ppl(args)) => commands::eval_ppl::run(args).await,
            Command::Bench(BenchCommand::Kernels(args)) => commands::bench_kernels::run(args).await,
            Command::Bench(BenchCommand::Decode(args)) => commands::bench_decode::run(args).await,
            Command::Bench(BenchCommand::Exchange(args)) => {
                commands::bench_exchange::run(args).await
            }
            Command::Bench(BenchCommand::Journal(args)) => commands::bench_journal::run(args).await,
            Command::Bench(BenchCommand::Prefix(args)) => commands::bench_prefix::run(args).await,
            Command::Bench(BenchCommand::Prefill(args)) => {
                unless_stopped(commands::bench_prefill::run(args)).await
            }
            Command::Bench(BenchCommand::Profile(args)) => commands::bench_profile::run(args).await,
            Command::Bench(BenchCommand::Recover(args)) => {
                unless_stopped(commands::bench_recover::run(args)).await
            }
            Command::Bench(BenchCommand::Scores(args)) => commands::bench_scores::run(args).await,
            Command::Bench(BenchCommand::Serve(args)) => commands::bench_serve::run(args).await,
            Command::Bench(BenchCommand::Slow(args)) => {
                unless_stopped(commands::bench_slow::run(args)).await
            }
            Command::Bench(BenchCommand::Soak(args)) => commands::bench_soak::run(args).await,
            Command::Gpu(GpuCommand::Devices) => commands::gpu_devices::run().await,
            Command::Gpu(GpuCommand::Check(args)) => commands::gpu_check::run(args).await,
            Command::Gpu(GpuCommand::Bench(args)) => commands::gpu_bench::run(args).await,
            Command::Gpu(GpuCommand::Nccl(args)) => commands::gpu_nccl::run(args).await,
            Command::Doctor(args) => commands::doctor::run(args).await,
        }
    });
    runtime.block_on(telemetry.stop());
    // A read of stdin that nobody will finish must not keep the process.
    runtime.shutdown_background();
    outcome
}

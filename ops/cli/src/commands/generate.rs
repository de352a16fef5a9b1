//! `aqueduct generate`: continues a prompt, through the SDK, with a server or one of our own.

use std::path::Path;

use anyhow::{anyhow, bail};
use aqueduct_client::{
    Client, ClientOptions, Escalated, GenerateEvent, GenerateOptions, Generation, Prompt, Summary,
};
use aqueduct_core::{Grammar, Quality, Refusal};
use futures::StreamExt;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{GenerateArgs, ModelArgs, SamplingArgs};
use crate::cluster::{self, Cluster, Workers};
use crate::events::{self, Row};
use crate::front::Front;
use crate::progress::PrefillDisplay;
use crate::{lines, loading, prompts, report};

/// Asks for the answer and prints it as it comes.
///
/// # Errors
/// What the server refuses, its silence, a model that is wrong.
pub(crate) async fn run(args: GenerateArgs) -> anyhow::Result<()> {
    let options = options(&args)?;
    let Some(model) = &args.model else {
        return ask(args.server.connect().await?, options, args.json).await;
    };
    let (cluster, front) = embedded(&args, model).await?;
    let client = Client::connect(&front.grpc_url(), ClientOptions::default()).await?;
    let outcome = ask(client, options, args.json).await;
    front.stop().await;
    cluster.stop().await;
    outcome
}

async fn embedded(args: &GenerateArgs, model: &Path) -> anyhow::Result<(Cluster, Front)> {
    let workers = Workers::asked(&args.cluster)?;
    let model = ModelArgs::plain(model.into(), args.device);
    let loaded = loading::load(&model, args.cluster.threads).await?;
    let config = cluster::config(workers.count, args.policy.budget.chunk_tokens);
    let cluster = Cluster::embedded(&loaded, workers, config).await?;
    let front = Front::private(cluster.coordinator(), &model.model).await?;
    Ok((cluster, front))
}

fn options(args: &GenerateArgs) -> anyhow::Result<GenerateOptions> {
    let sampling = &args.sampling;
    let quality = args.quality.quality()?;
    args.policy.beside(quality)?;
    // Beside `exact` only a policy that was named is one that was meant.
    let meant = quality != Quality::Exact || args.policy.policy.is_some();
    Ok(GenerateOptions {
        max_tokens: Some(sampling.max_tokens),
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        presence_penalty: Some(sampling.presence_penalty),
        frequency_penalty: Some(sampling.frequency_penalty),
        repetition_penalty: sampling.repetition_penalty,
        logit_bias: sampling.logit_bias.clone(),
        seed: sampling.seed,
        grammar: grammar(sampling)?,
        stop: sampling.stop.clone(),
        policy: meant.then(|| args.policy.policy()),
        quality: Some(quality),
        chunk_tokens: Some(args.policy.budget.chunk_tokens),
        exchange: Some(args.exchange.exchange),
        wire: Some(args.exchange.wire),
        priority: Some(args.priority),
        session: args.session,
        resumable: !args.no_resume,
        deadline: args.deadline(),
        ..GenerateOptions::new(Prompt::Text(prompt(args)?))
    })
}

/// The file, then the argument.
fn prompt(args: &GenerateArgs) -> anyhow::Result<String> {
    let mut text = String::new();
    if let Some(path) = &args.file {
        text += &prompts::text(path)?;
    }
    match args.prompt.as_deref() {
        Some("-") => text += &prompts::text(Path::new("-"))?,
        Some(prompt) => text += prompt,
        None => {}
    }
    Ok(text)
}

fn grammar(sampling: &SamplingArgs) -> anyhow::Result<Option<Grammar>> {
    let Some(file) = &sampling.json_schema else {
        return Ok(sampling.regex.clone().map(Grammar::Regex));
    };
    let schema = std::fs::read_to_string(file).map_err(|error| {
        Refusal::new("json_schema", file.display(), format!("a file that can be read: {error}"))
    })?;
    Ok(Some(Grammar::JsonSchema(schema)))
}

async fn ask(client: Client, options: GenerateOptions, json: bool) -> anyhow::Result<()> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut events = tokio::select! {
        events = client.generate(options) => events?,
        _ = interrupts.recv() => bail!("interrupted"),
    };
    let shown = tokio::select! {
        shown = show(&mut events, json) => shown,
        _ = interrupts.recv() => Err(anyhow!("interrupted")),
    };
    if shown.is_err() {
        // Whoever interrupts twice does not want to wait for that either.
        tokio::select! {
            cancelled = events.cancel() => drop(cancelled), // it is told what was wrong before
            _ = interrupts.recv() => {}
        }
    }
    shown
}

/// Prints the answer as it comes.
async fn show(events: &mut Generation, json: bool) -> anyhow::Result<()> {
    let mut display = PrefillDisplay::new();
    let (mut seed, mut told) = (0, 0);
    while let Some(event) = events.next().await {
        let event = event.inspect_err(|_| display.finish())?;
        match &event {
            GenerateEvent::Accepted(accepted) => {
                (seed, told) = (accepted.seed, accepted.warnings.len());
            }
            GenerateEvent::Progress(at) => display.show(at),
            GenerateEvent::Escalated(_) => {
                told += 1;
                display.finish();
                display = PrefillDisplay::new();
            }
            GenerateEvent::Summary(summary) if !json => {
                let new = summary.warnings.iter().skip(told);
                new.for_each(|warning| eprintln!("warning: {warning}"));
                eprintln!("{}", figures(summary, seed));
                if let Some(session) = &summary.session {
                    eprintln!("go on with --session {session}");
                }
            }
            _ => {}
        }
        if json {
            Row::of(&event).map_or(Ok(()), |row| lines::print(&row))?;
        } else {
            print(&event, &mut display)?;
        }
    }
    display.finish();
    Ok(())
}

fn print(event: &GenerateEvent, display: &mut PrefillDisplay) -> std::io::Result<()> {
    match event {
        GenerateEvent::Accepted(accepted) => {
            accepted.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        }
        GenerateEvent::Escalated(escalated) => {
            let Escalated { policy, lowest_retained_mass: lowest, next, .. } = &**escalated;
            let lowest = report::percent(*lowest);
            eprintln!("{policy} kept {lowest} of the attention mass: again with {next}");
        }
        GenerateEvent::Token(token) => {
            display.finish();
            lines::say(&token.text)?;
        }
        GenerateEvent::ChoiceDone(done) => {
            lines::say(&format!("{}\n", done.text))?;
        }
        _ => {}
    }
    Ok(())
}

fn figures(summary: &Summary, seed: u64) -> String {
    format!(
        "\n{} prompt tokens in {:.2} s ({} tokens/s), {} tokens generated in {:.2} s, seed {seed}\n\
         {} kept of {}, with {} of the attention mass; exchange {}, {} between workers",
        report::grouped(summary.prompt_tokens.into()),
        summary.prefill.as_secs_f64(),
        report::grouped(events::prefill_rate(summary) as u64),
        summary.output_tokens,
        summary.decode.as_secs_f64(),
        report::bytes(summary.memory_bytes),
        report::bytes(summary.dense_bytes),
        report::percent(summary.retained_total().share()),
        summary.exchange,
        report::bytes(summary.traffic.bytes()),
    )
}

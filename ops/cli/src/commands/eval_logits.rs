//! `aqueduct eval logits`: the logits of every token of a prompt, as a safetensors file.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use aqueduct_coordinator::submit::{PrefillReport, Submission, Update};
use aqueduct_core::Refusal;
use aqueduct_core::work::Outputs;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde::Serialize;

use crate::args::{EvalLogitsArgs, Link};
use crate::cluster::{self, Cluster, Workers, prefill_only};
use crate::{lines, loading, prompts};

#[derive(Debug, Serialize)]
struct Row {
    tokens: usize,
    vocab: u32,
    policy: &'static str,
    chunk_tokens: u32,
    exchange: &'static str,
    exchange_bytes: u64,
    spared_bytes: u64,
    workers: usize,
    link: &'static str,
    kv: &'static str,
    seconds: f64,
}

/// Prefills the tokens and writes their logits.
///
/// # Errors
/// Wrong tokens or model, a worker that fails, a file that cannot be written.
pub(crate) async fn run(args: EvalLogitsArgs) -> anyhow::Result<()> {
    let prompt = prompts::token_ids(&args.tokens_file)?;
    check_writable(&args.out)?;
    let cluster = start(&args).await?;
    let submission = Submission {
        policy: args.policy.policy(),
        outputs: Outputs::Logits,
        exchange: args.exchange.exchange,
        wire: args.exchange.wire,
        ..prefill_only(prompt, args.policy.budget.chunk_tokens)
    };
    let started = Instant::now();
    let (logits, report) = collect(&cluster, submission).await?;
    let row = Row {
        tokens: logits.rows(),
        vocab: cluster.shape().vocab,
        policy: args.policy.policy().kind.as_str(),
        chunk_tokens: args.policy.budget.chunk_tokens,
        exchange: report.exchange.as_str(),
        exchange_bytes: report.traffic.bytes(),
        spared_bytes: report.traffic.spared_bytes,
        workers: args.cluster.workers,
        link: args.link.as_str(),
        kv: args.model.kv.as_str(),
        seconds: started.elapsed().as_secs_f64(),
    };
    cluster.stop().await;
    logits.write(&args.out)?;
    if args.json {
        lines::print(&row)?;
    } else {
        let Row { tokens, vocab, seconds, .. } = &row;
        let out = args.out.display();
        lines::say(&format!("{out}: logits [{tokens}, {vocab}] f32, {seconds:.2} s\n"))?;
    }
    Ok(())
}

/// Refuses a place that cannot be written before hours of work, not after. Leaves what is there,
/// and nothing where nothing was.
fn check_writable(out: &Path) -> Result<(), Refusal> {
    let refused = |err| Refusal::new("out", out.display(), format!("a file to write: {err}"));
    let is_new = !out.exists();
    OpenOptions::new().append(true).create(true).open(out).map_err(refused)?;
    if is_new {
        std::fs::remove_file(out).map_err(refused)?;
    }
    Ok(())
}

async fn start(args: &EvalLogitsArgs) -> anyhow::Result<Cluster> {
    let (workers, threads) = (Workers::asked(&args.cluster)?, args.cluster.threads);
    let config = cluster::config(workers.count, args.policy.budget.chunk_tokens);
    match args.link {
        Link::Loopback => {
            let loaded = loading::load(&args.model, threads).await?;
            Cluster::embedded(&loaded, workers, config).await
        }
        Link::Grpc => Cluster::processes(&args.model, workers, threads, config).await,
    }
}

/// `[tokens, vocab]` f32, little endian, filled in as chunks arrive.
struct Logits {
    vocab: usize,
    bytes: Vec<u8>,
}

impl Logits {
    fn zeros(tokens: usize, vocab: usize) -> Self {
        Self { vocab, bytes: vec![0; tokens * vocab * size_of::<f32>()] }
    }

    fn rows(&self) -> usize {
        self.bytes.len() / (self.vocab * size_of::<f32>())
    }

    /// Puts rows from position `start` on where they belong.
    fn fill(&mut self, start: u32, logits: &[f32]) {
        let from = start as usize * self.vocab * size_of::<f32>();
        let to = self.bytes[from..].chunks_exact_mut(size_of::<f32>());
        for (to, logit) in to.zip(logits) {
            to.copy_from_slice(&logit.to_le_bytes());
        }
    }

    fn write(&self, path: &Path) -> anyhow::Result<()> {
        let view = TensorView::new(Dtype::F32, vec![self.rows(), self.vocab], &self.bytes)?;
        serialize_to_file([("logits", view)], None, path)
            .with_context(|| format!("out = {}", path.display()))
    }
}

async fn collect(
    cluster: &Cluster,
    submission: Submission,
) -> anyhow::Result<(Logits, PrefillReport)> {
    let (tokens, vocab) = (submission.prompt.len(), cluster.shape().vocab as usize);
    let (mut logits, mut prefilled) = (Logits::zeros(0, vocab), PrefillReport::default());
    let run = cluster.run(submission, |update| match update {
        // Only now is it known that the prompt is within the bounds.
        Update::Accepted { .. } => logits = Logits::zeros(tokens, vocab),
        Update::Logits { start, logits: rows, .. } => logits.fill(start, &rows),
        Update::Prefilled(report) => prefilled = *report,
        _ => {}
    });
    run.await?;
    Ok((logits, prefilled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_where_their_positions_are() {
        let mut logits = Logits::zeros(3, 2);
        logits.fill(2, &[5.0, 6.0]);
        logits.fill(0, &[1.0, 2.0, 3.0, 4.0]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logits.safetensors");
        logits.write(&path).unwrap();
        let file = std::fs::read(&path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
        let view = tensors.tensor("logits").unwrap();
        assert_eq!((view.dtype(), view.shape()), (Dtype::F32, &[3, 2][..]));
        let want: Vec<u8> = (1..=6u8).flat_map(|value| f32::from(value).to_le_bytes()).collect();
        assert_eq!(view.data(), want);
    }
}

//! How far a job is, on stderr: bars on a terminal, a few plain lines anywhere else.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use aqueduct_client::{Progress, WorkerProgress};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Lines that a prefill prints when stderr is no terminal, at most.
const LINES: u32 = 10;

const WITH_MESSAGE: &str = "{prefix:>8} [{bar:40}] {wide_msg}";

/// The bar of a model that is being loaded, in bytes; hidden where stderr is no terminal.
pub(crate) fn model_bar() -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(None, target);
    bar.set_style(style("   model [{bar:40}] {bytes}/{total_bytes}"));
    bar
}

/// A prefill, with a bar for each worker.
pub(crate) enum PrefillDisplay {
    /// On a terminal.
    Bars(Bars),
    /// Anywhere else.
    Lines {
        /// Tenths of the prefill that have been told.
        told: u32,
    },
}

impl PrefillDisplay {
    /// Bars on a terminal, lines elsewhere.
    pub(crate) fn new() -> Self {
        if std::io::stderr().is_terminal() {
            Self::Bars(Bars::new())
        } else {
            Self::Lines { told: 0 }
        }
    }

    /// Shows where the prefill stands.
    pub(crate) fn show(&mut self, at: &Progress) {
        match self {
            Self::Bars(bars) => bars.show(at),
            Self::Lines { told } => {
                let tenths = at.chunks_done * LINES / at.chunk_count.max(1);
                // A prompt of one chunk is read before a line about it would help.
                if tenths > *told && at.chunk_count > 1 {
                    *told = tenths;
                    eprintln!("prefill {}", standing(at));
                }
            }
        }
    }

    /// Takes the bars away; what follows may use the terminal.
    pub(crate) fn finish(&mut self) {
        if let Self::Bars(bars) = self {
            bars.finish();
        }
    }
}

fn standing(at: &Progress) -> String {
    let Progress { chunks_done, chunk_count, tokens_per_second, seconds_left, .. } = at;
    format!(
        "{chunks_done}/{chunk_count} chunks, {tokens_per_second:.0} tokens/s, \
         {seconds_left:.0} s left"
    )
}

/// The whole prompt's bar and one for each worker.
pub(crate) struct Bars {
    all: MultiProgress,
    prompt: ProgressBar,
    workers: BTreeMap<String, ProgressBar>,
}

impl Bars {
    fn new() -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let prompt = all.add(ProgressBar::new(0));
        prompt.set_style(style(WITH_MESSAGE));
        prompt.set_prefix("prompt");
        Self { all, prompt, workers: BTreeMap::new() }
    }

    fn show(&mut self, at: &Progress) {
        self.prompt.set_length(at.chunk_count.into());
        self.prompt.set_position(at.chunks_done.into());
        self.prompt.set_message(standing(at));
        for worker in &at.workers {
            self.worker(worker);
        }
    }

    /// A bar that is dropped unfinished would draw itself once more, over what stands there.
    fn finish(&self) {
        if !self.prompt.is_finished() {
            self.workers.values().for_each(ProgressBar::finish_and_clear);
            self.prompt.finish_and_clear();
        }
    }

    fn worker(&mut self, at: &WorkerProgress) {
        let bar = self.workers.entry(at.worker.clone()).or_insert_with(|| {
            let bar = self.all.add(ProgressBar::new(0));
            bar.set_style(style(WITH_MESSAGE));
            bar.set_prefix(at.worker.clone());
            bar
        });
        bar.set_length(at.layers.into());
        bar.set_position(at.layers_done.into());
        bar.set_message(format!(
            "chunk {}, layer {}/{}, {} chunks done",
            at.chunk_idx, at.layers_done, at.layers, at.chunks_done
        ));
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .expect("the template is ours and well-formed")
        .progress_chars("=> ")
}

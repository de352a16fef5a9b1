//! Where events, spans and figures go: to stderr, and to a collector if there is one.

use std::io::IsTerminal;
use std::time::Duration;

use aqueduct_core::Refusal;
use aqueduct_telemetry::{Exporter, Figures, Pushing};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer as _};

use crate::args::{Cli, LogFormat};

/// At the end, spans and figures may take so long to leave.
const LAST_EXPORT: Duration = Duration::from_secs(2);

/// To be stopped before the process ends.
pub(crate) struct Telemetry(Option<Exporter>);

/// Within a tokio runtime.
///
/// # Errors
/// Flags that are wrong.
pub(crate) fn start(cli: &Cli) -> anyhow::Result<Telemetry> {
    let directives = cli.log();
    check_levels(directives)?;
    let filter = EnvFilter::try_new(directives)
        .map_err(|error| Refusal::new("log", directives, format!("a level: {error}")))?;
    let stderr = Layer::new()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && cli.log_format == LogFormat::Text);
    let stderr = match cli.log_format {
        LogFormat::Text => stderr.boxed(),
        LogFormat::Json => stderr.json().boxed(),
    };
    let endpoint = cli.otlp_endpoint.as_deref().filter(|endpoint| !endpoint.is_empty());
    let every = cli.figures_every()?;
    let to = |endpoint| Exporter::to(endpoint, cli.service(), every);
    let exporter = endpoint.map(to).transpose()?;
    tracing_subscriber::registry()
        .with(stderr.with_filter(filter))
        .with(exporter.as_ref().map(Exporter::layer))
        .init();
    Ok(Telemetry(exporter))
}

/// A word that is no level would be taken for the one target that is told of.
fn check_levels(directives: &str) -> Result<(), Refusal> {
    let is_wrong = |part: &&str| {
        let is_word = part.chars().all(|c| c.is_ascii_alphanumeric());
        is_word && !part.is_empty() && part.parse::<LevelFilter>().is_err()
    };
    match directives.split(',').map(str::trim).find(is_wrong) {
        Some(word) => {
            let bound = "off, error, warn, info, debug, trace, or any of them behind a target";
            Err(Refusal::new("log", word, bound))
        }
        None => Ok(()),
    }
}

impl Telemetry {
    /// Pushes the figures of this process to the collector, if there is one that is to have them,
    /// until what is given is dropped.
    pub(crate) fn push(
        &self,
        source: impl Fn() -> Figures + Send + Sync + 'static,
    ) -> Option<Pushing> {
        self.0.as_ref()?.push(source)
    }

    /// Has the last spans and figures leave.
    pub(crate) async fn stop(self) {
        if let Some(exporter) = self.0 {
            exporter.stop(LAST_EXPORT).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_no_levels_are_refused() {
        for good in ["warn", "WARN", "off", "3", "info,h2=off", "aqueduct_worker=debug,warn", ""] {
            assert_eq!(check_levels(good), Ok(()), "{good}");
        }
        for bad in ["warning", "wran", "verbose", "info,bogus"] {
            assert_eq!(check_levels(bad).unwrap_err().field, "log", "{bad}");
        }
    }
}

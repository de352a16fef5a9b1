//! Figures that leave the process: pushed to a collector at intervals, all of them each time, so
//! that what a push missed is in the next one.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_core::limits;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client as service;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest,
};
use opentelemetry_proto::tonic::common::v1::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::EXPORT_DEADLINE;
use crate::figures::{Figures, Nanos};

/// Of what a collector says so much is logged.
const SAID_CHARS: usize = 200;

type Client = service::MetricsServiceClient<Channel>;
type Source = Arc<dyn Fn() -> Figures + Send + Sync>;

/// Pushes the figures of this process for as long as it lives, and once more when it is dropped:
/// with what is counted then.
pub struct Pushing {
    source: Source,
    last: Option<oneshot::Sender<Figures>>,
}

impl Drop for Pushing {
    fn drop(&mut self) {
        if let Some(last) = self.last.take() {
            last.send((self.source)()).ok(); // fails where the runtime is gone, and we with it
        }
    }
}

/// Who is pushed to, and as whom.
pub(crate) struct Pusher {
    pub(crate) collector: Endpoint,
    /// What this process is called.
    pub(crate) attributes: Vec<KeyValue>,
    /// When this process began to count.
    pub(crate) started: Nanos,
    pub(crate) every: Duration,
    pub(crate) pushing: TaskTracker,
}

impl Pusher {
    /// Begins; within a tokio runtime.
    pub(crate) fn start(&self, source: Source) -> Pushing {
        let (last, stopped) = oneshot::channel();
        let lane = Lane {
            client: client(&self.collector),
            collector: self.collector.clone(),
            attributes: self.attributes.clone(),
            started: self.started,
            is_away: false,
            rejected_before: 0,
        };
        self.pushing.spawn(lane.run(source.clone(), self.every, stopped));
        Pushing { source, last: Some(last) }
    }

    /// Resolves when all that began has been dropped, and its last push is over.
    pub(crate) async fn ended(self) {
        self.pushing.close();
        self.pushing.wait().await;
    }
}

/// Connects when it is first used, and by itself again.
fn client(collector: &Endpoint) -> Client {
    let channel = collector.clone().connect_timeout(EXPORT_DEADLINE).connect_lazy();
    Client::new(channel).max_decoding_message_size(limits::OTLP_ANSWER_BYTES_MAX)
}

/// The way to a collector.
struct Lane {
    client: Client,
    collector: Endpoint,
    attributes: Vec<KeyValue>,
    started: Nanos,
    /// Whether the last push did not arrive.
    is_away: bool,
    /// Points that it did not take of the push before.
    rejected_before: i64,
}

impl Lane {
    async fn run(mut self, source: Source, every: Duration, mut last: oneshot::Receiver<Figures>) {
        let mut ticks = interval_at(Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let last = loop {
            let push = async {
                ticks.tick().await;
                self.push(source()).await;
            };
            tokio::select! {
                // What is on its way is in the last push too.
                last = &mut last => break last,
                () = push => {}
            }
        };
        drop(source);
        if let Ok(figures) = last {
            self.push(figures).await;
        }
    }

    /// Takes [`EXPORT_DEADLINE`] at most. An outage is logged when it begins and when it ends.
    async fn push(&mut self, figures: Figures) {
        let request = self.request(figures);
        let answer = timeout(EXPORT_DEADLINE, self.client.export(request)).await;
        match answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer"))) {
            Ok(answer) => {
                if std::mem::take(&mut self.is_away) {
                    // As loud as the loss was, or who reads the log believes that it lasts.
                    tracing::warn!("the collector takes figures again, none are missing");
                }
                self.hear(answer.into_inner().partial_success.unwrap_or_default());
            }
            Err(status) => {
                self.client = client(&self.collector); // the connection may have died unnoticed
                if !std::mem::replace(&mut self.is_away, true) {
                    let (collector, code) = (self.collector.uri(), status.code());
                    let said = start_of(status.message());
                    tracing::warn!(%collector, ?code, said, "figures do not reach the collector; \
                        they go on counting, and are pushed again and again");
                }
            }
        }
    }

    /// What the collector did not take is logged when it becomes more or less.
    fn hear(&mut self, partial: ExportMetricsPartialSuccess) {
        let ExportMetricsPartialSuccess { rejected_data_points: rejected, error_message } = partial;
        let before = std::mem::replace(&mut self.rejected_before, rejected);
        if rejected != before && rejected != 0 {
            let said = start_of(&error_message);
            tracing::warn!(rejected, said, "the collector rejected points of the figures");
        }
    }

    fn request(&self, figures: Figures) -> ExportMetricsServiceRequest {
        let scope = InstrumentationScope {
            name: crate::TARGET.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..InstrumentationScope::default()
        };
        let metrics = figures.metrics(self.started);
        let scope = ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() };
        let resource = Resource { attributes: self.attributes.clone(), ..Resource::default() };
        let resource_metrics = vec![ResourceMetrics {
            resource: Some(resource),
            scope_metrics: vec![scope],
            ..ResourceMetrics::default()
        }];
        ExportMetricsServiceRequest { resource_metrics }
    }
}

fn start_of(said: &str) -> String {
    said.chars().take(SAID_CHARS).collect()
}

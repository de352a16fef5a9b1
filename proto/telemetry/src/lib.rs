//! Spans and figures that leave the process by OTLP: what `tracing` calls a span becomes one of
//! OpenTelemetry, and [`TraceParent`]s tie those of several processes into one tree; what is
//! registered for Prometheus is pushed as well.
//!
//! Without an [`Exporter`] nothing here costs anything: spans are disabled where they are made.
#![forbid(unsafe_code)]

mod figures;
mod page;
mod push;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_core::{Refusal, TraceParent, limits};
pub use figures::Figures;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
pub use page::{page, page_for};
use push::Pusher;
pub use push::Pushing;
use tokio_util::task::TaskTracker;
use tonic::transport::Endpoint;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

/// Spans are ours alone: those of libraries would bury them, and those of the exporter's own calls
/// would never end.
const TARGET: &str = "aqueduct";
/// A collector that takes longer for a batch, or for figures, is taken to be away.
const EXPORT_DEADLINE: Duration = Duration::from_millis(limits::OTLP_DEADLINE_MS);

/// Sends spans to a collector, in batches and from a thread of its own: who makes spans never
/// waits, and what a slow collector has no room for is dropped. Sampling, batches and attributes
/// of the process follow the environment variables that OpenTelemetry specifies
/// (`OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`).
/// Figures go to the same collector, as of the same process.
pub struct Exporter {
    provider: SdkTracerProvider,
    pusher: Option<Pusher>,
}

impl Exporter {
    /// Exports by gRPC to `endpoint` (`http://host:4317`), as `service` unless
    /// `OTEL_SERVICE_NAME` says otherwise, and figures at this interval if at all. Nothing is
    /// connected to yet; a collector may come and go. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Something that is no such URL.
    pub fn to(
        endpoint: &str,
        service: &'static str,
        figures_every: Option<Duration>,
    ) -> Result<Self, Refusal> {
        let refusal = |why| Refusal::new("otlp_endpoint", endpoint, why);
        if !endpoint.starts_with("http://") {
            return Err(refusal("a URL like http://host:4317 of a collector, without TLS".into()));
        }
        let no_url =
            |error: &dyn Display| refusal(format!("a URL like http://host:4317 ({error})"));
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .with_timeout(EXPORT_DEADLINE)
            .build()
            .map_err(|error| no_url(&error))?;
        let collector =
            Endpoint::from_shared(endpoint.to_owned()).map_err(|error| no_url(&error))?;
        let resource = resource(service);
        let attributes = ResourceAttributesWithSchema::from(&resource).attributes.0;
        let pusher = figures_every.map(|every| Pusher {
            collector,
            attributes,
            started: figures::now(),
            every,
            pushing: TaskTracker::new(),
        });
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_batch_exporter(exporter)
            .build();
        Ok(Self { provider, pusher })
    }

    /// Pushes what `source` says of this process, unless no figures are wanted. Nobody waits for
    /// the collector. Must be called within a tokio runtime.
    pub fn push(&self, source: impl Fn() -> Figures + Send + Sync + 'static) -> Option<Pushing> {
        self.pusher.as_ref().map(|pusher| pusher.start(Arc::new(source)))
    }

    /// What turns spans of `tracing` into spans to be exported.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + Send + Sync + for<'span> LookupSpan<'span>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(TARGET))
            // Time that a span idles, and where it stands in the source, say nothing here.
            .with_tracked_inactivity(false)
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            // A span may wait to be told its parent after it was entered.
            .with_context_activation(false)
            .with_filter(Targets::new().with_target(TARGET, tracing::Level::INFO))
    }

    /// Sends what is left, for at most `deadline`: spans, and the figures of what pushed them and
    /// has been dropped.
    pub async fn stop(self, deadline: Duration) {
        let Self { provider, pusher } = self;
        let spans = tokio::task::spawn_blocking(move || {
            if let Err(error) = provider.shutdown_with_timeout(deadline) {
                tracing::warn!(%error, "spans were lost");
            }
        });
        if let Some(pusher) = pusher
            && tokio::time::timeout(deadline, pusher.ended()).await.is_err()
        {
            tracing::warn!(?deadline, "the last figures were lost");
        }
        spans.await.ok(); // it has its own deadline
    }
}

/// The names from the environment count; else the process is called `service`, and told apart from
/// others of that name by its machine and number.
fn resource(service: &'static str) -> Resource {
    let named = Resource::builder().build();
    let name = named.get(&"service.name".into()).map(|name| name.to_string());
    let is_named = name.is_some_and(|name| !name.starts_with("unknown_service"));
    let ours = (!is_named).then(|| KeyValue::new("service.name", service));
    let is_told_apart = named.get(&"service.instance.id".into()).is_some();
    let instance = (!is_told_apart).then(|| KeyValue::new("service.instance.id", instance()));
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let pid = KeyValue::new("process.pid", i64::from(std::process::id()));
    let all = ours.into_iter().chain(instance).chain([version, pid]);
    Resource::builder().with_attributes(all).build()
}

/// Two processes whose figures have one name must not have one instance: their sums would be taken
/// for one that goes up and down.
fn instance() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), std::process::id())
}

/// A number as a field of a span: unsigned ones would be exported as text.
pub fn number(value: impl Into<u64>) -> i64 {
    value.into().try_into().unwrap_or(i64::MAX)
}

/// Makes `span` a child of one of another process. It must not have children yet.
pub fn follow(span: &Span, parent: Option<TraceParent>) {
    let Some(parent) = parent else { return };
    let parent = SpanContext::new(
        TraceId::from_bytes(parent.trace()),
        SpanId::from_bytes(parent.span()),
        TraceFlags::new(parent.flags()),
        true,
        TraceState::NONE,
    );
    // Fails where spans are not exported, and then nobody asks for them.
    span.set_parent(Context::new().with_remote_span_context(parent)).ok();
}

/// What makes spans of other processes children of `span`; `None` where it is not exported.
pub fn trace_of(span: &Span) -> Option<TraceParent> {
    if span.is_disabled() {
        return None;
    }
    let context = span.context();
    let of = context.span().span_context().clone();
    TraceParent::new(of.trace_id().to_bytes(), of.span_id().to_bytes(), of.trace_flags().to_u8())
}

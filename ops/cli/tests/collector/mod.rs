//! A collector that remembers what it is sent by OTLP.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{HistogramDataPoint, Metric, NumberDataPoint};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;

/// A span, and the process that it comes from.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) service: String,
    pub(crate) pid: i64,
    pub(crate) span: Span,
}

/// The figures of a process, as it pushed them once.
#[derive(Debug, Clone)]
pub(crate) struct Push {
    pub(crate) service: String,
    pub(crate) instance: String,
    pid: i64,
    metrics: Vec<Metric>,
}

/// What has come so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Collector {
    spans: Arc<Mutex<Vec<Seen>>>,
    pushes: Arc<Mutex<Vec<Push>>>,
    /// Of each push so many points are told to be rejected.
    rejected: i64,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let mut seen = self.spans.lock().unwrap();
        for of_process in request.into_inner().resource_spans {
            let resource = of_process.resource.unwrap_or_default().attributes;
            let service = text(&resource, "service.name");
            let pid = int(&resource, "process.pid");
            let spans = of_process.scope_spans.into_iter().flat_map(|scope| scope.spans);
            seen.extend(spans.map(|span| Seen { service: service.clone(), pid, span }));
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        for of_process in request.into_inner().resource_metrics {
            let resource = of_process.resource.unwrap_or_default().attributes;
            let metrics = of_process.scope_metrics.into_iter().flat_map(|scope| scope.metrics);
            self.pushes.lock().unwrap().push(Push {
                service: text(&resource, "service.name"),
                instance: text(&resource, "service.instance.id"),
                pid: int(&resource, "process.pid"),
                metrics: metrics.collect(),
            });
        }
        let partial_success = (self.rejected > 0).then(|| ExportMetricsPartialSuccess {
            rejected_data_points: self.rejected,
            error_message: "points of tomorrow".into(),
        });
        Ok(tonic::Response::new(ExportMetricsServiceResponse { partial_success }))
    }
}

impl Collector {
    /// One that tells of each push that so many points were rejected.
    pub(crate) fn rejecting(rejected: i64) -> Self {
        Self { rejected, ..Self::default() }
    }

    /// Serves on a free port, whose URL is given, until the runtime is dropped.
    pub(crate) fn start(&self) -> (Runtime, String) {
        self.start_at("127.0.0.1:0")
    }

    /// The same at this address.
    pub(crate) fn start_at(&self, address: &str) -> (Runtime, String) {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(self.clone()))
            .add_service(MetricsServiceServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        runtime.spawn(server);
        (runtime, url)
    }

    /// Spans of a trace.
    pub(crate) fn spans_of(&self, trace: &str) -> Vec<Seen> {
        let of_trace = |seen: &&Seen| hex(&seen.span.trace_id) == trace;
        self.spans.lock().unwrap().iter().filter(of_trace).cloned().collect()
    }

    /// Pushes of a process.
    pub(crate) fn pushes_of(&self, pid: u32) -> Vec<Push> {
        let of_process = |push: &&Push| push.pid == i64::from(pid);
        self.pushes.lock().unwrap().iter().filter(of_process).cloned().collect()
    }
}

impl Push {
    /// The lines of the page that it says the same as.
    pub(crate) fn page(&self) -> BTreeSet<String> {
        page_lines(&self.metrics.iter().map(text_of).collect::<String>())
    }

    /// The value of a sum without labels.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        let metric = self.metrics.iter().find(|metric| metric.name == name);
        match metric.and_then(|metric| metric.data.as_ref()) {
            Some(Data::Sum(sum)) => value(&sum.data_points[0]),
            other => panic!("{name}: {other:?}"),
        }
    }

    /// When what is summed begins, which is one moment for all, and when it was read.
    pub(crate) fn times(&self) -> (u64, u64) {
        let number = |point: &NumberDataPoint| (point.start_time_unix_nano, point.time_unix_nano);
        let times = |metric: &Metric| match metric.data.as_ref().unwrap() {
            Data::Sum(sum) => sum.data_points.iter().map(number).collect(),
            Data::Histogram(histogram) => {
                let points = histogram.data_points.iter();
                points.map(|point| (point.start_time_unix_nano, point.time_unix_nano)).collect()
            }
            _ => Vec::new(),
        };
        let times: BTreeSet<_> = self.metrics.iter().flat_map(times).collect();
        assert_eq!(times.len(), 1, "{times:?}");
        times.into_iter().next().unwrap()
    }
}

/// A page as a set of lines whose numbers are all written in one way, without what is said of
/// families that have no samples.
pub(crate) fn page_lines(page: &str) -> BTreeSet<String> {
    let (about, samples): (Vec<_>, Vec<_>) =
        page.lines().filter(|line| *line != "# EOF").partition(|line| line.starts_with('#'));
    let name = |sample: &str| sample.split(['{', ' ']).next().unwrap().to_owned();
    let names: BTreeSet<_> = samples.iter().map(|sample| name(sample)).collect();
    let has_samples = |line: &&str| {
        let family = line.split(' ').nth(2).unwrap();
        ["", "_total", "_sum"].iter().any(|end| names.contains(&format!("{family}{end}")))
    };
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        format!("{series} {:?}", value.parse::<f64>().unwrap())
    };
    let about = about.into_iter().filter(has_samples).map(str::to_owned);
    about.chain(samples.into_iter().map(sample)).collect()
}

/// A metric as it stands on a page.
fn text_of(metric: &Metric) -> String {
    let Metric { name, description, data, .. } = metric;
    let (kind, samples) = match data.as_ref().unwrap() {
        Data::Sum(sum) => {
            assert!(sum.is_monotonic && sum.aggregation_temporality == 2, "{metric:?}");
            ("counter", numbers(name, &sum.data_points))
        }
        Data::Gauge(gauge) => ("gauge", numbers(name, &gauge.data_points)),
        Data::Histogram(histogram) => {
            assert_eq!(histogram.aggregation_temporality, 2, "{metric:?}");
            let points = histogram.data_points.iter();
            ("histogram", points.map(|point| distribution(name, point)).collect())
        }
        other => panic!("{other:?}"),
    };
    let family = name.strip_suffix("_total").unwrap_or(name);
    let unit = match metric.unit.as_str() {
        "" => String::new(),
        "s" => format!("# UNIT {family} seconds\n"),
        other => panic!("{other}"),
    };
    format!("# HELP {family} {description}\n# TYPE {family} {kind}\n{unit}{samples}")
}

fn numbers(name: &str, points: &[NumberDataPoint]) -> String {
    let line = |point: &NumberDataPoint| {
        format!("{name}{} {:?}\n", labels(None, &point.attributes), value(point))
    };
    points.iter().map(line).collect()
}

fn distribution(name: &str, point: &HistogramDataPoint) -> String {
    let more = labels(None, &point.attributes);
    let (sum, count) = (point.sum.unwrap(), point.count);
    let mut text = format!("{name}_sum{more} {sum:?}\n{name}_count{more} {count}\n");
    let bounds = point.explicit_bounds.iter().map(|bound| format!("{bound:?}"));
    let mut below = 0;
    for (bound, count) in bounds.chain(["+Inf".into()]).zip(&point.bucket_counts) {
        below += count;
        text += &format!("{name}_bucket{} {below}\n", labels(Some(&bound), &point.attributes));
    }
    text
}

fn value(point: &NumberDataPoint) -> f64 {
    match point.value {
        Some(Number::AsDouble(value)) => value,
        other => panic!("{other:?}"),
    }
}

/// Labels as a page has them, where there are any.
fn labels(bound: Option<&str>, attributes: &[KeyValue]) -> String {
    let bound = bound.map(|bound| format!("le=\"{bound}\""));
    let label = |KeyValue { key, .. }: &KeyValue| format!("{key}=\"{}\"", text(attributes, key));
    let all: Vec<_> = bound.into_iter().chain(attributes.iter().map(label)).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Any> {
    let of = |AnyValue { value }: &'a AnyValue| value.as_ref();
    attributes.iter().find(|entry| entry.key == key)?.value.as_ref().and_then(of)
}

/// An attribute that is text.
pub(crate) fn text(attributes: &[KeyValue], key: &str) -> String {
    match attribute(attributes, key) {
        Some(Any::StringValue(text)) => text.clone(),
        other => panic!("{key}: {other:?} in {attributes:?}"),
    }
}

/// One that is a number.
pub(crate) fn int(attributes: &[KeyValue], key: &str) -> i64 {
    match attribute(attributes, key) {
        Some(Any::IntValue(number)) => *number,
        other => panic!("{key}: {other:?} in {attributes:?}"),
    }
}

/// Of a trace or a span.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

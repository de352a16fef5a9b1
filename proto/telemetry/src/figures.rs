//! What a process counts, in two forms: the page for Prometheus, and what OTLP has. Both are
//! written from one registry, so that they cannot say different things.
//!
//! prometheus-client gives what is registered as typed messages as well, which need no reading as
//! its text would. Numbers are doubles there, as they are to whoever scrapes the page.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};
use prometheus_client::encoding::prometheus_protobuf::encode;
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{
    self as prometheus, LabelPair, MetricFamily, MetricType,
};
use prometheus_client::registry::Registry;

/// Everything that a process counts, at one moment.
#[derive(Debug, Clone)]
pub struct Figures {
    families: Vec<MetricFamily>,
    at: Nanos,
}

/// Nanoseconds since 1970.
pub(crate) type Nanos = u64;

/// Now, by the clock of the machine.
pub(crate) fn now() -> Nanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Nanos::try_from(since.as_nanos()).unwrap_or(Nanos::MAX)
}

/// When counting began, and when the figures were read.
#[derive(Clone, Copy)]
struct Times {
    start: Nanos,
    at: Nanos,
}

impl Figures {
    /// What is in `registry` now.
    pub fn of(registry: &Registry) -> Self {
        let families = encode(registry).unwrap_or_else(|error| {
            tracing::error!(%error, "figures could not be read");
            Vec::new()
        });
        Self { families, at: now() }
    }

    /// The same for a collector; all sums begin at `start`. Names are those of the page, `_total`
    /// and unit included, as a collector has them that scrapes it.
    pub(crate) fn metrics(self, start: Nanos) -> Vec<Metric> {
        let times = Times { start, at: self.at };
        let metric = |family: MetricFamily| {
            let data = times.data(family.r#type(), family.metric)?;
            let (name, description, unit) = (family.name, family.help, ucum(&family.unit).into());
            Some(Metric { name, description, unit, data: Some(data), ..Metric::default() })
        };
        self.families.into_iter().filter_map(metric).collect()
    }
}

impl Times {
    /// `None` if there is nothing yet, or what prometheus-client has no metric of.
    fn data(self, kind: MetricType, points: Vec<prometheus::Metric>) -> Option<Data> {
        if points.is_empty() {
            return None;
        }
        let aggregation_temporality = AggregationTemporality::Cumulative.into();
        let points = points.into_iter();
        match kind {
            MetricType::Counter => {
                let data_points = points.filter_map(|point| self.number(point)).collect();
                Some(Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true }))
            }
            MetricType::Gauge | MetricType::Untyped => {
                let data_points = points.filter_map(|point| self.number(point)).collect();
                Some(Data::Gauge(Gauge { data_points }))
            }
            MetricType::Histogram => {
                let data_points = points.filter_map(|point| self.distribution(point)).collect();
                Some(Data::Histogram(Histogram { data_points, aggregation_temporality }))
            }
            MetricType::Summary | MetricType::GaugeHistogram => None,
        }
    }

    fn number(self, point: prometheus::Metric) -> Option<NumberDataPoint> {
        let prometheus::Metric { counter, gauge, untyped, .. } = point;
        let sum = counter.map(|counter| counter.value);
        let value = sum.or(gauge.map(|gauge| gauge.value)).or(untyped.map(|it| it.value))?;
        Some(NumberDataPoint {
            attributes: attributes(point.label),
            // What is no sum has not begun at any time.
            start_time_unix_nano: if sum.is_some() { self.start } else { 0 },
            time_unix_nano: self.at,
            value: Some(Number::AsDouble(value)),
            ..NumberDataPoint::default()
        })
    }

    fn distribution(self, point: prometheus::Metric) -> Option<HistogramDataPoint> {
        let histogram = point.histogram?;
        let finite = histogram.bucket.into_iter().filter(|bucket| bucket.upper_bound.is_finite());
        let (mut bucket_counts, mut explicit_bounds, mut below) = (Vec::new(), Vec::new(), 0);
        for bucket in finite {
            bucket_counts.push(bucket.cumulative_count.saturating_sub(below));
            explicit_bounds.push(bucket.upper_bound);
            below = bucket.cumulative_count;
        }
        bucket_counts.push(histogram.sample_count.saturating_sub(below)); // above the last bound
        Some(HistogramDataPoint {
            attributes: attributes(point.label),
            start_time_unix_nano: self.start,
            time_unix_nano: self.at,
            count: histogram.sample_count,
            sum: Some(histogram.sample_sum),
            bucket_counts,
            explicit_bounds,
            ..HistogramDataPoint::default()
        })
    }
}

fn attributes(labels: Vec<LabelPair>) -> Vec<KeyValue> {
    let attribute = |LabelPair { name: key, value }| {
        let value = Some(AnyValue { value: Some(Value::StringValue(value)) });
        KeyValue { key, value, ..KeyValue::default() }
    };
    labels.into_iter().map(attribute).collect()
}

/// A unit of Prometheus as OpenTelemetry writes it, which puts it back at the end of names that do
/// not have it there.
fn ucum(unit: &str) -> &str {
    match unit {
        "seconds" => "s",
        "bytes" => "By",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicU64;

    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::registry::Unit;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    const START: Nanos = 7;

    type Labels = Vec<(String, String)>;
    type Float = Gauge<f64, AtomicU64>;

    /// What there is of a metric, by its labels.
    fn points(metrics: &[Metric], name: &str) -> BTreeMap<Labels, (Option<f64>, Vec<u64>)> {
        let Some(metric) = metrics.iter().find(|metric| metric.name == name) else {
            return BTreeMap::new();
        };
        let labels = |attributes: &[KeyValue]| {
            let label = |attribute: &KeyValue| {
                let value = attribute.value.clone().unwrap().value.unwrap();
                let Value::StringValue(value) = value else { panic!("{attribute:?}") };
                (attribute.key.clone(), value)
            };
            attributes.iter().map(label).collect::<Labels>()
        };
        let number = |point: &NumberDataPoint| {
            let Some(Number::AsDouble(value)) = point.value else { panic!("{point:?}") };
            (labels(&point.attributes), (Some(value), Vec::new()))
        };
        match metric.data.as_ref().unwrap() {
            Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic }) => {
                assert!(*is_monotonic && *aggregation_temporality == 2, "{metric:?}");
                assert!(data_points.iter().all(|point| point.start_time_unix_nano == START));
                data_points.iter().map(number).collect()
            }
            Data::Gauge(gauge) => gauge.data_points.iter().map(number).collect(),
            Data::Histogram(histogram) => {
                let point = |point: &HistogramDataPoint| {
                    assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count);
                    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
                    assert_eq!(point.start_time_unix_nano, START);
                    (labels(&point.attributes), (point.sum, point.bucket_counts.clone()))
                };
                histogram.data_points.iter().map(point).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_kind_is_its_own() {
        let mut registry = Registry::default();
        let (tokens, load) = (Counter::<u64>::default(), Float::default());
        let times = Histogram::new([0.5, 1.0]);
        registry.register("tokens", "Tokens read", tokens.clone());
        registry.register_with_unit("wait", "Times", Unit::Seconds, times.clone());
        registry.register_with_unit("pool", "Room", Unit::Bytes, load.clone());
        registry.register("none", "Nothing yet", Family::<Labels, Counter>::default());
        tokens.inc_by(3);
        load.set(0.25);
        for time in [0.5, 0.75, 9.0, 9.0] {
            times.observe(time);
        }
        let metrics = Figures::of(&registry).metrics(START);
        let heads =
            metrics.iter().map(|it| format!("{} | {} | {}", it.name, it.description, it.unit));
        let wanted = [
            "tokens_total | Tokens read. | ",
            "wait_seconds | Times. | s",
            "pool_bytes | Room. | By",
        ];
        assert_eq!(heads.collect::<Vec<_>>(), wanted);
        let one = |value, counts: &[u64]| BTreeMap::from([(vec![], (value, counts.to_vec()))]);
        assert_eq!(points(&metrics, "tokens_total"), one(Some(3.0), &[]));
        assert_eq!(points(&metrics, "pool_bytes"), one(Some(0.25), &[]));
        assert_eq!(points(&metrics, "wait_seconds"), one(Some(19.25), &[1, 1, 2]));
    }

    /// What a label can be: quotes, backslashes, line breaks and all that is no ASCII.
    fn label() -> impl Strategy<Value = String> {
        prop_oneof!["[a\"\\\\\n\r{}=, #]{0,6}", ".{0,6}", "\\PC{0,4}"]
    }

    proptest! {
        #[test]
        fn whatever_is_registered_arrives(
            counts in btree_map(label(), 0..1u64 << 53, 0..8),
            levels in btree_map((label(), label()), any::<f64>(), 0..8),
            samples in btree_map(label(), vec(-10.0..10.0f64, 0..20), 0..4),
            mut bounds in vec(-10.0..10.0f64, 0..6),
        ) {
            bounds.sort_by(f64::total_cmp);
            bounds.dedup();
            let labels = |value: &String| vec![("a".to_owned(), value.clone())];
            let both = |(one, other): &(String, String)| {
                vec![("a".to_owned(), one.clone()), ("b".to_owned(), other.clone())]
            };
            let mut registry = Registry::default();
            let counters = Family::<Labels, Counter>::default();
            let gauges = Family::<Labels, Float>::default();
            let to = bounds.clone();
            let histograms = Family::<Labels, Histogram, _>::new_with_constructor(
                move || Histogram::new(to.iter().copied()),
            );
            registry.register("counts", "", counters.clone());
            registry.register("levels", "", gauges.clone());
            registry.register("times", "", histograms.clone());
            for (label, count) in &counts {
                counters.get_or_create(&labels(label)).inc_by(*count);
            }
            for (pair, level) in &levels {
                gauges.get_or_create(&both(pair)).set(*level);
            }
            for (label, samples) in &samples {
                let histogram = histograms.get_or_create(&labels(label));
                samples.iter().for_each(|sample| histogram.observe(*sample));
            }
            let metrics = Figures::of(&registry).metrics(START);
            let number = |value| (Some(value), Vec::new());
            let wanted = counts.iter().map(|(label, count)| (labels(label), number(*count as f64)));
            prop_assert_eq!(points(&metrics, "counts_total"), wanted.collect());
            let wanted = levels.iter().map(|(pair, level)| (both(pair), number(*level)));
            // As text, for what is no number equals nothing.
            let wanted: BTreeMap<_, _> = wanted.collect();
            prop_assert_eq!(format!("{:?}", points(&metrics, "levels")), format!("{wanted:?}"));
            let within = |samples: &Vec<f64>| {
                let mut buckets = vec![0; bounds.len() + 1];
                for sample in samples {
                    buckets[bounds.partition_point(|bound| bound < sample)] += 1;
                }
                (Some(samples.iter().sum()), buckets)
            };
            let wanted = samples.iter().map(|(label, samples)| (labels(label), within(samples)));
            prop_assert_eq!(points(&metrics, "times"), wanted.collect());
        }
    }
}

//! The page for Prometheus and its like, in the form that whoever scrapes it reads.

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

const OPEN_METRICS: &str = "application/openmetrics-text";
const PLAIN: &str = "text/plain";

/// The OpenMetrics text of what is in `registry` now.
pub fn page(registry: &Registry) -> String {
    let mut page = String::new();
    if let Err(error) = text::encode(&mut page, registry) {
        tracing::error!(%error, "metrics could not be written");
    }
    page
}

/// The page for who says `accept`, behind its type: in OpenMetrics where that is asked for, and
/// otherwise in Prometheus' own text, which everybody reads.
pub fn page_for(accept: Option<&str>, registry: &Registry) -> (&'static str, String) {
    let page = page(registry);
    match accept.is_some_and(wants_open_metrics) {
        true => ("application/openmetrics-text; version=1.0.0; charset=utf-8", page),
        false => ("text/plain; version=0.0.4; charset=utf-8", plain(&page)),
    }
}

/// Whether it is named, and not as what is liked less than plain text.
fn wants_open_metrics(accept: &str) -> bool {
    let liking = |wanted: &str| {
        let parts = accept.split(',').filter_map(|part| {
            let mut words = part.split(';').map(str::trim);
            let is_it = words.next().is_some_and(|kind| kind.eq_ignore_ascii_case(wanted));
            let weight = words.find_map(|word| word.strip_prefix("q="));
            is_it.then(|| weight.map_or(1.0, |weight| weight.parse::<f64>().unwrap_or(0.0)))
        });
        parts.fold(0.0, f64::max)
    };
    let open = liking(OPEN_METRICS);
    open > 0.0 && open >= liking(PLAIN)
}

/// An OpenMetrics page in the older form, in which a counter's name has its `_total` also where it
/// is described, and nothing is said of units and the end. Of the kinds that there are here both
/// forms have all others alike.
fn plain(page: &str) -> String {
    let (mut plain, mut help) = (String::with_capacity(page.len()), "");
    // A label may have what ends a line elsewhere.
    for line in page.split_inclusive('\n') {
        if line.starts_with("# UNIT ") || line.starts_with("# EOF") {
            continue;
        }
        if let Some(told) = line.strip_prefix("# HELP ") {
            help = told; // until it is known of what kind it is
            continue;
        }
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|it| it.split_once(' '))
        else {
            plain.push_str(line);
            continue;
        };
        let end = if kind.trim_end() == "counter" { "_total" } else { "" };
        let told = help.strip_prefix(name).unwrap_or(" \n");
        plain.push_str(&format!("# HELP {name}{end}{told}# TYPE {name}{end} {kind}"));
    }
    plain
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::registry::Unit;

    use super::*;

    type Labels = Vec<(String, String)>;

    #[test]
    fn both_forms_say_the_same() {
        let mut registry = Registry::default();
        let (tokens, ended) = (Counter::<u64>::default(), Family::<Labels, Counter>::default());
        registry.register("tokens", "Tokens read", tokens.clone());
        registry.register_with_unit("stall", "Waited", Unit::Seconds, Counter::<u64>::default());
        registry.register("ended", "By outcome", ended.clone());
        registry.register("load", "Now", Gauge::<i64>::default());
        registry.register_with_unit("wait", "Times", Unit::Seconds, Histogram::new([0.5]));
        tokens.inc_by(3);
        ended.get_or_create(&vec![("a".into(), "# TYPE b\nc\r\u{2028}".into())]).inc();
        let want = "# HELP tokens_total Tokens read.\n# TYPE tokens_total counter\n\
            tokens_total 3\n\
            # HELP stall_seconds_total Waited.\n# TYPE stall_seconds_total counter\n\
            stall_seconds_total 0\n\
            # HELP ended_total By outcome.\n# TYPE ended_total counter\n\
            ended_total{a=\"# TYPE b\\nc\r\u{2028}\"} 1\n\
            # HELP load Now.\n# TYPE load gauge\nload 0\n\
            # HELP wait_seconds Times.\n# TYPE wait_seconds histogram\n";
        let (kind, plain) = page_for(None, &registry);
        assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
        let (head, times) = plain.split_at(want.len().min(plain.len()));
        assert_eq!(head, want);
        assert!(times.contains("wait_seconds_bucket{le=\"+Inf\"} 0\n"), "{times}");
        let (kind, open) = page_for(Some(OPEN_METRICS), &registry);
        assert!(kind.starts_with(OPEN_METRICS) && open.ends_with("# EOF\n"), "{open}");
        let samples = |page: &str| -> Vec<String> {
            let lines = page.split_inclusive('\n').filter(|line| !line.starts_with('#'));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(samples(&plain), samples(&open));
    }

    #[test]
    fn the_form_is_the_scrapers() {
        let check = |accept: &str, want: bool| {
            assert_eq!(wants_open_metrics(accept), want, "{accept:?}");
        };
        check("", false);
        check("*/*", false);
        check("text/html, application/xhtml+xml, */*;q=0.8", false);
        check("text/plain", false);
        check("application/openmetrics-text", true);
        check("Application/OpenMetrics-Text; version=1.0.0", true);
        check("application/openmetrics-text;q=0", false);
        check("application/openmetrics-text;q=0.2, text/plain;q=0.9", false);
        // Prometheus' own.
        check(
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
             application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,\
             text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            true,
        );
    }
}

//! The messages have the values of the page.

use std::collections::BTreeSet;

use super::*;
use crate::observe::metrics::catalogue::{Kind, METRICS};
use crate::observe::metrics::tests::golden::check;
use crate::observe::metrics::tests::sample;

/// The samples of a metric.
fn points(metric: &Metric) -> usize {
    match metric.data.as_ref().expect("it has some") {
        metric::Data::Gauge(gauge) => gauge.data_points.len(),
        metric::Data::Sum(sum) => sum.data_points.len(),
        metric::Data::Histogram(histogram) => histogram.data_points.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn everything_in_the_catalogue_is_sent_as_its_kind() {
    let messages = Messages::of(&sample(2));
    let [metrics] = &messages[..] else { panic!("{}", messages.len()) };
    let sent: BTreeSet<_> = metrics.iter().map(|metric| metric.name.clone()).collect();
    let suffix = |metric: &catalogue::Metric| match metric.kind {
        Kind::Info => metric.suffix(),
        Kind::Gauge | Kind::Counter | Kind::Histogram => "",
    };
    let known = METRICS.iter().map(|metric| format!("{}{}", metric.name, suffix(metric)));
    assert_eq!(sent, known.collect());
    assert_eq!(metrics.len(), METRICS.len(), "each once");
    for (metric, known) in metrics.iter().zip(METRICS) {
        assert!(points(metric) > 0, "{}", metric.name);
        let cumulative = AggregationTemporality::Cumulative;
        match (metric.data.as_ref().expect("it has some"), known.kind) {
            (metric::Data::Gauge(_), Kind::Gauge | Kind::Info) => {}
            (metric::Data::Sum(sum), Kind::Counter) => {
                assert!(sum.is_monotonic && sum.aggregation_temporality() == cumulative);
                let labelled = known.labels.contains(&"plugin");
                let begun = |point: &NumberDataPoint| (point.start_time_unix_nano == 0) == labelled;
                assert!(sum.data_points.iter().all(begun), "{}", metric.name);
            }
            (metric::Data::Histogram(histogram), Kind::Histogram) => {
                assert_eq!(histogram.aggregation_temporality(), cumulative);
                for point in &histogram.data_points {
                    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
                    assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count);
                    assert!(point.count > 0 && point.sum.is_some_and(|sum| sum > 0.0));
                }
            }
            (_, kind) => panic!("{} is a {kind:?}", metric.name),
        }
    }
}

#[test]
fn no_message_is_too_long_and_none_lacks_a_sample() {
    let messages = Messages::of(&sample(figures::PLUGINS_MAX + 5));
    assert!(messages.len() > 1);
    for message in &messages {
        let count: usize = message.iter().map(points).sum();
        assert!((1..=POINTS_MAX).contains(&count), "{count}");
        let bytes: usize = message.iter().map(prost::Message::encoded_len).sum();
        assert!(bytes < 2 << 20, "{bytes}");
    }
    let of_state =
        messages.iter().flatten().filter(|metric| metric.name == "guest_agent_plugin_state");
    assert_eq!(of_state.map(points).sum::<usize>(), figures::PLUGINS_MAX);
}

#[test]
fn messages_are_written_as_they_always_were() {
    let messages = Messages::of(&sample(2));
    let lines = messages.iter().flatten().map(|metric| format!("{metric:?}\n"));
    check("sample.otlp", &lines.collect::<String>());
}

//! Which spans are passed on, and when.

use tokio::sync::mpsc::Receiver;
use tracing::field::Empty;
use tracing::{Dispatch, error_span};
use tracing_subscriber::layer::SubscriberExt;

use super::*;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// A log whose spans go into a queue.
fn followed(work: impl FnOnce(&mut dyn FnMut() -> Vec<WireSpan>)) {
    let (queue, mut waiting) = Queue::new();
    let destination = Destination::default();
    let spans = Spans(destination.clone());
    let subscriber = tracing_subscriber::registry().with(spans);
    destination.0.set(queue).expect("nobody has");
    let mut spans = || drain(&mut waiting);
    tracing::dispatcher::with_default(&Dispatch::new(subscriber), || work(&mut spans));
}

fn drain(waiting: &mut Receiver<WireSpan>) -> Vec<WireSpan> {
    std::iter::from_fn(|| waiting.try_recv().ok()).collect()
}

fn names(spans: &[WireSpan]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

#[test]
fn what_ended_is_told_with_what_it_is_a_part_of() {
    followed(|spans| {
        let order = error_span!("order", trace_id = TRACE, outcome = Empty);
        let install = error_span!(parent: &order, "install", otel.end = Empty);
        let download = error_span!(parent: &install, "download", otel.end = Empty);
        error_span!(parent: &download, "verify").in_scope(|| ());
        download.record("otel.end", true);
        assert!(spans().is_empty(), "a kill would leave them without what they are a part of");
        install.record("otel.end", true);
        let all = spans();
        assert_eq!(names(&all), ["verify", "download", "install"]);
        assert_eq!(all[0].parent_span_id, all[1].span_id);
        assert_eq!(all[1].parent_span_id, all[2].span_id);
        // A connection outlives the span in which it was opened.
        drop(error_span!(parent: &download, "late"));
        assert_eq!(names(&spans()), ["late"]);
        order.record("outcome", "ok");
        assert_eq!(names(&spans()), ["order"]);
        drop((order, install, download));
        assert!(spans().is_empty(), "nothing is spans twice");
    });
}

#[test]
fn what_goes_on_elsewhere_is_not_told() {
    followed(|spans| {
        drop(error_span!("order", trace_id = TRACE, outcome = Empty));
        drop(error_span!("of no trace"));
        let unsampled =
            error_span!("order", trace_id = TRACE, otel.sampled = false, outcome = Empty);
        drop(error_span!(parent: &unsampled, "install"));
        unsampled.record("outcome", "ok");
        assert!(spans().is_empty());
    });
}

#[test]
fn parts_without_end_do_not_fill_the_memory() {
    followed(|spans| {
        let part = error_span!("install", trace_id = TRACE, otel.end = Empty);
        for _ in 0..PARTS_MAX + 3 {
            drop(error_span!(parent: &part, "try"));
        }
        assert_eq!(spans().len(), 3);
        drop(part);
        assert_eq!(spans().len(), PARTS_MAX + 1);
    });
}

//! What is handed on, and when.

use tokio::sync::mpsc::Receiver;
use tracing::field::Empty;
use tracing::{Dispatch, error_span};
use tracing_subscriber::layer::SubscriberExt;

use super::*;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// A log whose spans go into a queue.
fn followed(work: impl FnOnce(&mut dyn FnMut() -> Vec<Told>)) {
    let (queue, mut waiting) = Queue::new();
    let destination = Destination::default();
    let spans = Spans(destination.clone());
    let subscriber = tracing_subscriber::registry().with(spans);
    destination.0.set(queue).expect("nobody has");
    let mut told = || drain(&mut waiting);
    tracing::dispatcher::with_default(&Dispatch::new(subscriber), || work(&mut told));
}

fn drain(waiting: &mut Receiver<Told>) -> Vec<Told> {
    std::iter::from_fn(|| waiting.try_recv().ok()).collect()
}

fn names(told: &[Told]) -> Vec<&str> {
    told.iter().map(|told| told.name.as_str()).collect()
}

#[test]
fn what_ended_is_told_with_what_it_is_a_part_of() {
    followed(|told| {
        let order = error_span!("order", trace_id = TRACE, outcome = Empty);
        let install = error_span!(parent: &order, "install", otel.end = Empty);
        let download = error_span!(parent: &install, "download", otel.end = Empty);
        error_span!(parent: &download, "verify").in_scope(|| ());
        download.record("otel.end", true);
        assert!(told().is_empty(), "a kill would leave them without what they are a part of");
        install.record("otel.end", true);
        let all = told();
        assert_eq!(names(&all), ["verify", "download", "install"]);
        assert_eq!(all[0].parent_span_id, all[1].span_id);
        assert_eq!(all[1].parent_span_id, all[2].span_id);
        // A connection outlives what it was opened for.
        drop(error_span!(parent: &download, "late"));
        assert_eq!(names(&told()), ["late"]);
        order.record("outcome", "ok");
        assert_eq!(names(&told()), ["order"]);
        drop((order, install, download));
        assert!(told().is_empty(), "nothing is told twice");
    });
}

#[test]
fn what_goes_on_elsewhere_is_not_told() {
    followed(|told| {
        drop(error_span!("order", trace_id = TRACE, outcome = Empty));
        drop(error_span!("of no trace"));
        let unsampled =
            error_span!("order", trace_id = TRACE, otel.sampled = false, outcome = Empty);
        drop(error_span!(parent: &unsampled, "install"));
        unsampled.record("outcome", "ok");
        assert!(told().is_empty());
    });
}

#[test]
fn parts_without_end_do_not_fill_the_memory() {
    followed(|told| {
        let part = error_span!("install", trace_id = TRACE, otel.end = Empty);
        for _ in 0..PARTS_MAX + 3 {
            drop(error_span!(parent: &part, "try"));
        }
        assert_eq!(told().len(), 3);
        drop(part);
        assert_eq!(told().len(), PARTS_MAX + 1);
    });
}

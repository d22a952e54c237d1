//! The text of the log, written into memory.

use std::io::Write;
use std::sync::{Arc, Mutex};

use super::*;

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no test panics with the lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn below_info_libraries_say_no_more_than_before() {
    let log = LogConfig { level: "debug".to_owned(), ..LogConfig::default() };
    let text = logged_by(&log, || {
        tracing::debug!(target: "h2::codec", "a frame");
        tracing::debug!(target: "guest_agent::launch", "a launch");
    });
    assert!(text.contains("a launch") && !text.contains("a frame"), "{text}");
}

#[test]
fn a_filter_for_the_old_name_of_a_module_is_one_for_the_new_name() {
    let level = "info,guest_agent::control_link=debug,guest_agent::storage=off".to_owned();
    let log = LogConfig { level, ..LogConfig::default() };
    let text = logged_by(&log, || {
        tracing::debug!(target: "guest_agent::control_link::session", "before the move");
        tracing::debug!(target: "guest_agent::link::session", "after the move");
        tracing::debug!(target: "guest_agent::launch", "not asked for");
        tracing::warn!(target: "guest_agent::store", "switched off");
    });
    assert!(text.contains("before the move") && text.contains("after the move"), "{text}");
    assert!(!text.contains("not asked for") && !text.contains("switched off"), "{text}");
}

fn lines(format: LogFormat, sink: &Sink) -> Lines {
    let sink = sink.clone();
    let writer = move || sink.clone();
    match format {
        LogFormat::Json => json(writer),
        LogFormat::Journald => entries(writer, journal::Entries::default()),
        LogFormat::Text | LogFormat::Auto => text(writer, false),
    }
}

fn logged(log: &LogConfig) -> String {
    logged_by(log, || {
        tracing::info!(plugin = "a", "started");
        tracing::debug!("too much");
    })
}

fn logged_by(log: &LogConfig, work: impl FnOnce()) -> String {
    let sink = Sink::default();
    let (subscriber, _) = subscriber(log, lines(log.format, &sink));
    tracing::subscriber::with_default(subscriber, work);
    let bytes = sink.0.lock().expect("no test panics with the lock").clone();
    String::from_utf8(bytes).expect("text")
}

#[test]
fn text_lines_are_filtered_by_level() {
    let text = logged(&LogConfig::default());
    assert!(text.contains("started plugin=\"a\""), "{text}");
    assert!(!text.contains("too much"));
    let all = logged(&LogConfig { level: "debug".to_owned(), ..LogConfig::default() });
    assert!(all.contains("too much"), "{all}");
}

#[test]
fn the_level_can_be_changed_while_it_is_in_use() {
    let sink = Sink::default();
    let log = LogConfig::default();
    let (subscriber, controls) = subscriber(&log, lines(log.format, &sink));
    tracing::subscriber::with_default(subscriber, || {
        tracing::debug!(target: "guest_agent", "before");
        controls.filter.reload(log_filter::filter("debug")).expect("it is in use");
        tracing::debug!(target: "guest_agent", "after");
    });
    let text = String::from_utf8(sink.0.lock().expect("no holder panics").clone());
    let text = text.expect("text");
    assert!(text.contains("after") && !text.contains("before"), "{text}");
}

#[test]
fn json_lines_are_objects_with_the_fields_on_top() {
    let text = logged(&LogConfig { format: LogFormat::Json, ..LogConfig::default() });
    let line: serde_json::Value = serde_json::from_str(&text).expect("one object");
    assert_eq!(line["message"], "started");
    assert_eq!(line["plugin"], "a");
    assert_eq!(line["level"], "INFO");
}

#[test]
fn a_panic_is_traced_with_its_place_and_without_a_backtrace() {
    const THREAD: &str = "panics on purpose";
    // The panic hook belongs to the process: other tests that panic meanwhile keep the former one.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() == Some(THREAD) {
            trace_panic(panic);
        } else {
            usual(panic);
        }
    }));
    let log = LogConfig { format: LogFormat::Json, ..LogConfig::default() };
    let work = move || {
        logged_by(&log, || {
            let caught = std::panic::catch_unwind(|| panic!("a plugin's {}", "fault"));
            assert!(caught.is_err());
        })
    };
    let thread = std::thread::Builder::new().name(THREAD.to_owned()).spawn(work);
    let text = thread.expect("a thread").join().expect("the panic was caught");
    let line: serde_json::Value = serde_json::from_str(&text).expect("one object");
    assert_eq!(line["message"], "panicked: a plugin's fault");
    assert!(line["location"].as_str().is_some_and(|place| place.contains("tests.rs:")));
    assert!(!text.contains("backtrace"), "{text}");
}

#[test]
fn the_fields_of_spans_are_fields_of_the_json_lines_in_them() {
    let text = logged_by(&LogConfig { format: LogFormat::Json, ..LogConfig::default() }, || {
        let order = tracing::error_span!("order", message_id = "m1", order = 7, plugin = "a");
        order.in_scope(|| {
            tracing::error_span!("install", attempt = 1)
                .in_scope(|| tracing::info!(plugin = "b", "said inside"))
        });
    });
    let line: serde_json::Value = serde_json::from_str(&text).expect("one object");
    assert_eq!((&line["message_id"], &line["order"]), (&"m1".into(), &7.into()), "{text}");
    assert_eq!((&line["span"], &line["attempt"]), (&"install".into(), &1.into()));
    assert_eq!(line["plugin"], "b", "the line's own field goes first");
}

#[test]
fn a_span_is_around_a_warning_however_little_is_logged() {
    let log = LogConfig { level: "warn".to_owned(), ..LogConfig::default() };
    let text = logged_by(&log, || {
        tracing::error_span!("order", order = 7).in_scope(|| tracing::warn!("odd"));
    });
    assert!(text.contains("order{order=7}"), "{text}");
}

#[test]
fn a_flood_of_the_same_is_cut_and_its_count_is_told() {
    let sink = Sink::default();
    let log = LogConfig::default();
    let (subscriber, controls) = subscriber(&log, lines(log.format, &sink));
    tracing::subscriber::with_default(subscriber, || {
        for number in 0..5000 {
            tracing::warn!(plugin = "loud", number, "cannot be reached");
        }
        tracing::warn!(plugin = "other", "cannot be reached");
        report(controls.bounded.all());
    });
    let text = String::from_utf8(sink.0.lock().expect("no holder panics").clone()).expect("text");
    assert_eq!(text.lines().count(), usize::try_from(rate_limit::LINES_MAX).expect("few") + 2);
    assert!(text.contains("4940 more lines like this were not written"), "{text}");
    assert!(text.contains("like=\"cannot be reached\""), "{text}");
}

#[test]
fn what_only_exporters_need_is_in_no_line() {
    for format in [LogFormat::Text, LogFormat::Json, LogFormat::Journald] {
        let text = logged_by(&LogConfig { format, ..LogConfig::default() }, || {
            let span = tracing::error_span!(
                "order",
                order = 7,
                otel.start_ns = 5,
                outcome = tracing::field::Empty
            );
            span.record("outcome", "ok");
            span.in_scope(|| tracing::info!("done"));
        });
        let outcome = if format == LogFormat::Journald { "OUTCOME" } else { "outcome" };
        let shows = text.contains(outcome) && !text.to_lowercase().contains("start_ns");
        assert!(shows, "{text}");
    }
}

#[test]
fn an_entry_of_the_journal_reads_well_and_has_every_field() {
    let text =
        logged_by(&LogConfig { format: LogFormat::Journald, ..LogConfig::default() }, || {
            let order = tracing::error_span!("order", message_id = "m1", order = 7, plugin = "a");
            order.in_scope(|| tracing::warn!(revision = "1", why = "no space", "failed"));
        });
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "MESSAGE=failed revision=1 why=\"no space\" plugin=a");
    for wanted in [
        "PRIORITY=4",
        "SYSLOG_IDENTIFIER=guest-agent",
        "GUEST_AGENT_MESSAGE_ID=m1",
        "GUEST_AGENT_ORDER=7",
        "GUEST_AGENT_PLUGIN=a",
        "GUEST_AGENT_REVISION=1",
        "GUEST_AGENT_SPAN=order",
        "GUEST_AGENT_WHY=no space",
    ] {
        assert!(lines.contains(&wanted), "{wanted}: {text}");
    }
}

#[test]
fn nothing_that_is_logged_begins_a_field_of_the_journal() {
    let text =
        logged_by(&LogConfig { format: LogFormat::Journald, ..LogConfig::default() }, || {
            tracing::info!(details = "a\nPRIORITY=0\n", "said\n_PID=1");
            tracing::info!(details = "é".repeat(100_000), "long");
        });
    assert!(!text.contains("\nPRIORITY=0") && !text.contains("\n_PID"), "{text}");
    assert!(text.len() < 64 << 10, "{} bytes", text.len());
}

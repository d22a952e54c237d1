//! The agent's own log: what is traced goes to standard error, as text or JSON.
//!
//! Called once, by `main.rs` through `Services::start_logging`. Where the log ends up (journal,
//! file, terminal) is for whoever holds the other end of standard error.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

use crate::config::{LogConfig, LogFormat};

/// The filter of the log that was started.
static FILTER: OnceLock<Handle<EnvFilter, Registry>> = OnceLock::new();

/// Sends what is traced to standard error, and panics to the trace. A second call changes nothing.
///
/// A level that cannot be read counts as `info`: an agent without a log helps nobody.
pub fn start(log: &LogConfig) {
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let (subscriber, filter) = subscriber(log, colour, std::io::stderr);
    if subscriber.try_init().is_ok() {
        drop(FILTER.set(filter));
        std::panic::set_hook(Box::new(trace_panic));
    }
}

/// Changes what the log that was started says from now on. Without one, and with a level that cannot
/// be read, nothing changes.
pub fn set_level(level: &str) {
    if let (Some(handle), Ok(filter)) = (FILTER.get(), EnvFilter::try_new(filter(level)))
        && let Err(error) = handle.reload(filter)
    {
        tracing::error!(%error, "the log stays as it was");
    }
}

fn subscriber<W>(
    log: &LogConfig,
    colour: bool,
    writer: W,
) -> (Box<dyn tracing::Subscriber + Send + Sync>, Handle<EnvFilter, Registry>)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_new(filter(&log.level)).unwrap_or_else(|_| EnvFilter::new("info"));
    let (filter, handle) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let subscriber: Box<dyn tracing::Subscriber + Send + Sync> = match log.format {
        LogFormat::Text => Box::new(registry.with(lines.with_ansi(colour))),
        LogFormat::Json => Box::new(registry.with(lines.json().flatten_event(true))),
    };
    (subscriber, handle)
}

/// What is traced at a level. Below `info` only this project's own crates say more: the frames of an
/// HTTP/2 library would bury what the agent does.
fn filter(level: &str) -> String {
    const OURS: [&str; 4] =
        ["guest_agent", "guest_agent_actors", "guest_agent_control_plane", "guest_agent_plugin"];
    if !matches!(level, "debug" | "trace") {
        return level.to_owned();
    }
    let ours: Vec<String> = OURS.iter().map(|name| format!("{name}={level}")).collect();
    format!("info,{}", ours.join(","))
}

/// Traces a panic without a backtrace: symbolising one takes tens of megabytes that a small agent
/// never gives back.
fn trace_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("without a message");
    let location = panic.location().map_or_else(String::new, ToString::to_string);
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    tracing::error!(location, thread, "panicked: {message}");
}

#[cfg(test)]
mod tests {
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

    fn logged(log: &LogConfig) -> String {
        logged_by(log, || {
            tracing::info!(plugin = "a", "started");
            tracing::debug!("too much");
        })
    }

    fn logged_by(log: &LogConfig, work: impl FnOnce()) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let (subscriber, _) = subscriber(log, false, move || writer.clone());
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
        let writer = sink.clone();
        let log = LogConfig::default();
        let (subscriber, handle) = subscriber(&log, false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!(target: "guest_agent", "before");
            handle.reload(EnvFilter::new(filter("debug"))).expect("it is in use");
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
        // The hook is the process's: other tests that panic meanwhile keep the one they had.
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
        assert!(line["location"].as_str().is_some_and(|place| place.contains("logging.rs:")));
        assert!(!text.contains("backtrace"), "{text}");
    }
}

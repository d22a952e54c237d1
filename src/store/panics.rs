//! Keeps sled's panics from looking like a crash of the agent.
//!
//! sled panics on damaged files, on our threads and on its own. Those panics are caught and
//! dealt with; what must not happen is that the default hook prints them to stderr as if the agent
//! had died. The hook here logs panics of those threads and hands all others to the hook that was
//! there before. It is put in place once, with the first store.

use std::any::Any;
use std::sync::Once;

/// The names of our threads that run sled begin so.
pub(super) const THREAD_NAME: &str = "guest-agent-store";

/// The names of the threads that sled starts begin so.
const SLED_THREADS: &str = "sled-io-";

/// From now on, panics of store threads go to the log.
pub(super) fn log_instead_of_print() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !on_a_store_thread() {
                return others(panic);
            }
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            tracing::warn!(
                place,
                reason = message(panic.payload()),
                "the store's engine panicked on the data that it read"
            );
        }));
    });
}

/// The message of a panic, at most a line of it.
pub(super) fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("without a reason");
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}

fn on_a_store_thread() -> bool {
    std::thread::current()
        .name()
        .is_some_and(|name| name.starts_with(THREAD_NAME) || name.starts_with(SLED_THREADS))
}

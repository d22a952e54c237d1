//! What happens in a run, for comparing two and for explaining one.

use std::cell::RefCell;

use tokio::time::Instant;

thread_local! {
    static TRACE: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// What happens in a run, line by line.
pub(crate) fn traced<T>(run: impl FnOnce() -> T) -> Vec<String> {
    TRACE.set(Some(Vec::new()));
    run();
    TRACE.take().unwrap_or_default()
}

/// Notes what happens, if anybody wants to know.
pub(crate) fn trace(begun: Instant, what: impl FnOnce() -> String) {
    TRACE.with_borrow_mut(|trace| {
        if let Some(trace) = trace {
            trace.push(format!("{:?} {}", begun.elapsed(), what()));
        }
    });
}

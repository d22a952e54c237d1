//! The output of an admission plugin: it goes into the agent's log, line by line, and its end into
//! the reason of a failure.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use guest_agent_actors::ports::LAST_OUTPUT;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest line; a longer one is cut into several.
const LINE_MAX: usize = 1024;

/// Lines that are kept for the reason of a failure.
const KEPT: usize = 5;

/// The agent logs this many lines of a process within the window, and counts the others.
const BURST: u32 = 500;
const WINDOW: Duration = Duration::from_secs(10);

/// The last lines that a process printed.
pub(super) type LastLines = Arc<Mutex<VecDeque<String>>>;

/// Reads until no process has the other end open.
pub(super) async fn follow(mut from: impl AsyncRead + Unpin, plugin: Arc<str>, last: LastLines) {
    let throttle = Throttle::default();
    let mut lines = Lines::default();
    let mut chunk = [0; LINE_MAX];
    while let Ok(read @ 1..) = from.read(&mut chunk).await {
        for line in lines.feed(&chunk[..read]) {
            log(&plugin, line, &last, &throttle);
        }
    }
    if let Some(line) = lines.rest() {
        log(&plugin, line, &last, &throttle);
    }
}

/// The last lines as the end of a sentence; empty when the plugin printed nothing.
pub(super) fn quoted(last: &LastLines) -> String {
    let last = last.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_empty() {
        return String::new();
    }
    let lines: Vec<&str> = last.iter().map(String::as_str).collect();
    format!("; {LAST_OUTPUT} {}", lines.join(" | "))
}

fn log(plugin: &str, line: String, last: &LastLines, throttle: &Throttle) {
    if line.trim().is_empty() {
        return;
    }
    if let Some(dropped) = throttle.pass() {
        if dropped > 0 {
            tracing::warn!(
                plugin,
                dropped,
                "the admission plugin prints too much; this many lines were dropped"
            );
        }
        tracing::info!(plugin, printed = line, "the admission plugin prints");
    }
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    if last.len() == KEPT {
        last.pop_front();
    }
    last.push_back(line);
}

/// Cuts bytes into lines.
#[derive(Default)]
struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// The lines that these bytes end.
    fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut ended = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                self.begun.push(byte);
            }
            if byte == b'\n' || self.begun.len() >= LINE_MAX {
                ended.extend(self.rest());
            }
        }
        ended
    }

    /// The line that has begun and not ended.
    fn rest(&mut self) -> Option<String> {
        let begun = std::mem::take(&mut self.begun);
        let text = String::from_utf8_lossy(&begun);
        let line: String = text.chars().filter(|c| !c.is_control()).collect();
        (!line.is_empty()).then_some(line)
    }
}

/// Lets a burst of lines pass, and not a flood.
#[derive(Debug, Default)]
pub(super) struct Throttle(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    began: Option<Instant>,
    passed: u32,
    dropped: u64,
}

impl Throttle {
    /// Whether one more line may pass, and how many were dropped before it.
    pub(super) fn pass(&self) -> Option<u64> {
        self.pass_at(Instant::now())
    }

    fn pass_at(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if window.began.is_none_or(|began| now.saturating_duration_since(began) >= WINDOW) {
            let dropped = window.dropped;
            *window = Window { began: Some(now), passed: 1, dropped: 0 };
            return Some(dropped);
        }
        if window.passed >= BURST {
            window.dropped += 1;
            return None;
        }
        window.passed += 1;
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_bounded_and_without_control_characters() {
        let mut lines = Lines::default();
        assert_eq!(lines.feed(b"one\ntw"), ["one"]);
        assert_eq!(lines.feed(b"o\x1b[31m\r\n\n"), ["two[31m"]);
        let long = lines.feed(&[b'x'; 2500]);
        assert_eq!(long.iter().map(String::len).collect::<Vec<_>>(), [1024, 1024]);
        assert_eq!(lines.rest().map(|rest| rest.len()), Some(452));
        assert_eq!(lines.rest(), None);
    }

    #[test]
    fn a_flood_is_cut_and_counted() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        let passed = (0..10_000).filter(|_| throttle.pass_at(now).is_some()).count();
        assert_eq!(passed, 500);
        assert_eq!(throttle.pass_at(now + WINDOW), Some(9500));
        assert_eq!(throttle.pass_at(now + WINDOW), Some(0));
    }

    #[tokio::test]
    async fn the_last_lines_are_kept() {
        let last = LastLines::default();
        let text: Vec<u8> = (0..9).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        follow(text.as_slice(), "p".into(), Arc::clone(&last)).await;
        let quoted = quoted(&last);
        assert_eq!(quoted, "; its last output: line 4 | line 5 | line 6 | line 7 | line 8");
    }
}

//! The way to one destination: collects lines of all plugins, sends them, and records how far it
//! came.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use guest_agent_actors::model::id::PluginName;
use guest_agent_serve_kit::backoff::{Backoff, Jitter, Schedule};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::destination::{Destination, Sent};
use super::record::{Content, Record, told};
use super::source::{Age, Fate, Room, Source};
use crate::config::LogDestination;
use crate::observe::forwarding::Forwarding;
use crate::process::logs::PluginLogs;
use crate::process::logs::forwarded::Forwarded;

/// Most lines in one message, and most bytes of them: collectors take no more than 4 MiB. After the
/// death of an agent so much is forwarded again.
pub(super) const BATCH_LINES: usize = 512;
pub(super) const BATCH_BYTES: usize = 256 * 1024;

/// How often the logs are looked at when no write is reported.
const BEAT: Duration = Duration::from_secs(1);

/// How long lines wait for others.
const LINGER: Duration = Duration::from_millis(100);

/// Pauses after failures.
const PAUSES: Schedule =
    Schedule::doubling(Duration::from_millis(500), Duration::from_secs(30), Jitter::UpperHalf);

/// The way to one destination.
#[derive(Debug)]
pub(super) struct Lane {
    to: LogDestination,
    figures: Forwarding,
    backoff: Backoff,
    is_away: bool,
    /// What is sent next; kept until the destination has taken it.
    batch: Vec<Record>,
    reading: Reading,
}

/// What threads that may block work on.
#[derive(Debug)]
struct Reading {
    logs: PluginLogs,
    to: LogDestination,
    figures: Forwarding,
    sources: BTreeMap<PluginName, Source>,
    /// Who has the next turn.
    order: VecDeque<PluginName>,
    /// Whose logs there were at the last look; `None` before the first one.
    known: Option<BTreeSet<PluginName>>,
    /// Why logs could not be read, which the agent's log says once.
    unreadable: BTreeMap<PluginName, String>,
}

// === impl Lane ===

impl Lane {
    pub(super) fn new(logs: PluginLogs, to: LogDestination, figures: Forwarding) -> Self {
        let reading = Reading::new(logs, to, figures.clone());
        let backoff = Backoff::new(PAUSES);
        Self { to, figures, backoff, is_away: false, batch: Vec::new(), reading }
    }

    /// Forwards until the agent ends, and then what is left, while the destination takes it.
    pub(super) async fn run(
        mut self,
        mut destination: impl Destination,
        ending: CancellationToken,
    ) {
        // The destination appears among the figures before it has taken anything.
        self.figures.note(self.to, |_| {});
        loop {
            let is_last = ending.is_cancelled();
            let batch = std::mem::take(&mut self.batch);
            let collected = self.aside(move |reading| reading.collect(batch, Instant::now())).await;
            let Some(batch) = collected else { return };
            self.batch = batch;
            if self.batch.is_empty() {
                if is_last {
                    return;
                }
                self.next_write(&ending).await;
                continue;
            }
            let sent = destination.send(&self.batch).await;
            let failed = sent.failure.is_some();
            if self.take(sent).await.is_none() || (failed && is_last) {
                return;
            }
            if failed {
                let pause = self.backoff.next(rand::random());
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = ending.cancelled() => {}
                }
            }
        }
    }

    /// Waits until a plugin wrote something, and a moment longer.
    async fn next_write(&self, ending: &CancellationToken) {
        let logs = self.reading.logs.clone();
        let written = async {
            tokio::select! {
                () = logs.written() => {}
                () = tokio::time::sleep(BEAT) => {}
            }
            tokio::time::sleep(LINGER).await;
        };
        tokio::select! {
            () = written => {}
            () = ending.cancelled() => {}
        }
    }

    /// Records what the destination took. `None` when nothing can be recorded any more.
    async fn take(&mut self, sent: Sent) -> Option<()> {
        let rest = self.batch.split_off(sent.done.min(self.batch.len()));
        let done = std::mem::replace(&mut self.batch, rest);
        self.say(&sent, &done);
        if done.is_empty() {
            return Some(());
        }
        // The newest position of each plugin.
        let newest: BTreeMap<PluginName, Forwarded> =
            done.into_iter().map(|record| (record.plugin, record.after)).collect();
        self.aside(move |reading| reading.record(newest)).await
    }

    /// Counts and logs what became of a message.
    fn say(&mut self, sent: &Sent, done: &[Record]) {
        let to = self.to;
        let lines = done.iter().filter(|it| matches!(it.content, Content::Line { .. })).count();
        let lines = u64::try_from(lines).unwrap_or(u64::MAX).saturating_sub(sent.refused);
        let bytes: u64 = done.iter().map(|record| record.content.length()).sum();
        let mut missing = 0_u64;
        for record in done {
            if let Content::Gap { bytes } = record.content {
                missing = missing.saturating_add(bytes.unwrap_or_default());
                warn!(plugin = %record.plugin, %to, "{}", told(bytes));
            }
        }
        self.figures.note(to, |figures| {
            figures.lines += lines;
            figures.bytes += bytes;
            figures.missing_bytes += missing;
            figures.refused += sent.refused;
            figures.failures += u64::from(sent.failure.is_some());
            figures.trouble.clone_from(&sent.failure);
        });
        if sent.refused > 0 {
            let why = sent.refusal.as_deref().unwrap_or_default();
            warn!(%to, lines = sent.refused, error = why, "lines of plugins' logs are refused");
        }
        if !done.is_empty() {
            self.backoff.reset();
        }
        match &sent.failure {
            Some(why) if !self.is_away => {
                self.is_away = true;
                warn!(%to, error = why, "the logs of plugins are not forwarded; they wait in their files");
            }
            None if self.is_away => {
                self.is_away = false;
                info!(%to, "the logs of plugins are forwarded again");
            }
            Some(_) | None => {}
        }
    }

    /// Works on the logs, on a thread that may block. `None` when the work panicked, which the log
    /// says, or the runtime ends.
    async fn aside<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Reading) -> T + Send + 'static,
    ) -> Option<T> {
        let (logs, figures) = (self.reading.logs.clone(), self.figures.clone());
        let empty = Reading::new(logs, self.to, figures);
        let mut reading = std::mem::replace(&mut self.reading, empty);
        let work = move || {
            let done = work(&mut reading);
            (reading, done)
        };
        let Ok((reading, done)) = tokio::task::spawn_blocking(work).await else {
            error!(to = %self.to, "the task that forwards the logs of plugins failed");
            return None;
        };
        self.reading = reading;
        Some(done)
    }
}

// === impl Reading ===

impl Reading {
    fn new(logs: PluginLogs, to: LogDestination, figures: Forwarding) -> Self {
        let (sources, order) = (BTreeMap::new(), VecDeque::new());
        Self { logs, to, figures, sources, order, known: None, unreadable: BTreeMap::new() }
    }

    /// Looks for logs that came and went. Where the last message was taken, collects the next one:
    /// a turn for each plugin, again and again until it is full or there is no more.
    fn collect(&mut self, mut batch: Vec<Record>, now: Instant) -> Vec<Record> {
        self.look(now);
        if batch.is_empty() {
            let mut room = Room { lines: BATCH_LINES, bytes: BATCH_BYTES };
            // How many turns in a row found nothing.
            let mut idle = 0;
            while idle < self.order.len() && room.is_left() {
                let Some(name) = self.order.pop_front() else { break };
                let before = batch.len();
                self.turn(&name, &mut room, now, &mut batch);
                idle = if batch.len() > before { 0 } else { idle + 1 };
                self.order.push_back(name);
            }
        }
        let lag = self.sources.iter().map(|(name, source)| (name.clone(), source.lag())).collect();
        self.figures.note(self.to, |figures| figures.lag = lag);
        batch
    }

    fn turn(&mut self, name: &PluginName, room: &mut Room, now: Instant, batch: &mut Vec<Record>) {
        let Some(source) = self.sources.get_mut(name) else { return };
        match source.turn(room, now, batch) {
            Ok(()) => drop(self.unreadable.remove(name)),
            Err(error) => self.is_unreadable(name, &error),
        }
    }

    /// Opens the logs that are new, and lets go of those that are gone.
    fn look(&mut self, now: Instant) {
        let named = self.logs.names();
        for name in &named {
            if self.sources.contains_key(name) {
                continue;
            }
            let is_new = self.known.as_ref().is_some_and(|known| !known.contains(name));
            let age = if is_new { Age::New } else { Age::Unknown };
            match Source::open(self.logs.clone(), name.clone(), self.to, age) {
                Ok(source) => {
                    self.order.push_back(name.clone());
                    self.sources.insert(name.clone(), source);
                }
                Err(error) => self.is_unreadable(name, &error),
            }
        }
        let known = self.known.get_or_insert_default();
        known.retain(|name| named.contains(name) || self.sources.contains_key(name));
        known.extend(named.iter().cloned());
        let to = self.to;
        let mut lost = 0_u64;
        self.sources.retain(|name, source| {
            match source.fate(named.contains(name), now) {
                Fate::Stays => return true,
                Fate::Over => {}
                Fate::GivenUp(bytes) => {
                    lost = lost.saturating_add(bytes);
                    warn!(
                        plugin = %name, %to, bytes,
                        "the last lines of a removed plugin are not forwarded"
                    );
                }
            }
            self.logs.forget_forwarded(name);
            false
        });
        self.order.retain(|name| self.sources.contains_key(name));
        self.unreadable.retain(|name, _| named.contains(name));
        if lost > 0 {
            self.figures.note(to, |figures| figures.missing_bytes += lost);
        }
    }

    fn is_unreadable(&mut self, name: &PluginName, error: &std::io::Error) {
        let why = error.to_string();
        if self.unreadable.get(name) != Some(&why) {
            let to = self.to;
            warn!(plugin = %name, %to, error = why, "the log of a plugin cannot be forwarded");
            self.unreadable.insert(name.clone(), why);
        }
    }

    fn record(&mut self, newest: BTreeMap<PluginName, Forwarded>) {
        for (name, forwarded) in newest {
            if let Some(source) = self.sources.get_mut(&name) {
                source.is_done(forwarded);
            }
            if let Err(error) = self.logs.note_forwarded(&name, self.to, forwarded) {
                // After a restart these lines come again; the next position may be recorded.
                let to = self.to;
                warn!(plugin = %name, %to, %error, "how far a log was forwarded is not recorded");
            }
        }
    }
}

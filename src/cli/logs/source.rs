//! One log of several: reads its last lines, then follows it, over restarts of the agent.
//!
//! ```text
//! agent ─ chunks ─► Cutter ─ lines ─► --grep ─► channel ─► the printer
//! ```
//!
//! The last lines come first, up to [`Item::CaughtUp`], so that the printer can put those of several
//! logs in the order in which they were printed. What follows begins where they ended.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::local::{LogChunk, StreamLogsRequest};
use memchr::memmem::Finder;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

use super::lines::{Cutter, Part};
use crate::cli::client::{self, Patience};
use crate::cli::failure::{Exit, Failure};

/// Longest time that an agent may be away while its logs are followed.
const COMEBACK: Duration = Duration::from_secs(30);

/// Time between two attempts to connect.
const BEAT: Duration = Duration::from_millis(200);

/// What comes of a log.
#[derive(Debug)]
pub(super) enum Item {
    /// Bytes as they come, where lines do not matter.
    Bytes(LogChunk),
    Part(Part),
    /// These were the last lines; what follows is new.
    CaughtUp,
}

/// How chunks become items.
#[derive(Clone, Debug)]
pub(super) enum Cut {
    /// Not at all.
    Bytes,
    /// Into lines, of which those count that have a text.
    Lines(Option<Arc<Finder<'static>>>),
}

/// A log to read.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) socket: PathBuf,
    /// The request for its last lines.
    pub(super) last: StreamLogsRequest,
    pub(super) follows: bool,
    pub(super) cut: Cut,
}

type Out = Sender<Result<Item, Failure>>;

// === impl Source ===

impl Source {
    /// Reads until the end, or while the printer is there. The last item is the failure, if there
    /// is one.
    pub(super) async fn read(self, out: Out) {
        if let Err(Some(failure)) = self.read_all(&out).await {
            drop(out.send(Err(failure)).await);
        }
    }

    async fn read_all(mut self, out: &Out) -> Result<(), Option<Failure>> {
        let next = self.last_lines(out).await?;
        send(out, Item::CaughtUp).await?;
        if !self.follows {
            return Ok(());
        }
        let mut request = StreamLogsRequest {
            follow: true,
            lines: 0,
            from: next,
            since: None,
            ..self.last.clone()
        };
        let mut cutter = Cutter::default();
        let mut gone_since = None;
        loop {
            let before = request.from;
            let ended = self.follow(&mut request, &mut cutter, out).await;
            if request.from != before {
                gone_since = None;
            }
            let since = *gone_since.get_or_insert_with(Instant::now);
            match ended {
                // After a restart of the agent, the new stream continues after the last byte.
                Err(Some(failure))
                    if failure.exit == Exit::Unreachable
                        && request.from.is_some()
                        && since.elapsed() < COMEBACK =>
                {
                    tokio::time::sleep(BEAT).await;
                }
                ended => {
                    if let Some(part) = cutter.rest().filter(|part| self.is_wanted(part)) {
                        send(out, Item::Part(part)).await?;
                    }
                    return ended;
                }
            }
        }
    }

    /// Sends the last lines. Returns where the log ends, if the agent says so.
    async fn last_lines(&mut self, out: &Out) -> Result<Option<u64>, Option<Failure>> {
        let wanted = usize::try_from(self.last.lines).unwrap_or(usize::MAX);
        let searches = matches!(self.cut, Cut::Lines(Some(_))) && self.last.lines < u32::MAX;
        if searches {
            // The last lines are those that fit: the whole log is searched.
            self.last.lines = u32::MAX;
        }
        let mut found = VecDeque::new();
        let mut cutter = Cutter::default();
        let mut next = None;
        let mut client = client::connect(&self.socket).await?;
        let mut chunks = match client.stream_logs(self.last.clone()).await {
            Ok(answer) => answer.into_inner(),
            Err(error) => {
                return Err(Some(client::about(&mut client, &self.last.name, error).await));
            }
        };
        loop {
            let chunk = client::next(&mut chunks, Patience::Soon).await?;
            next = chunk.as_ref().map_or(next, position);
            let is_last = chunk.is_none();
            for item in self.items(chunk, &mut cutter) {
                if searches {
                    found.push_back(item);
                    while found.len() > wanted {
                        found.pop_front();
                    }
                } else {
                    send(out, item).await?;
                }
            }
            if is_last {
                break;
            }
        }
        for item in found {
            send(out, item).await?;
        }
        Ok(next)
    }

    async fn follow(
        &self,
        request: &mut StreamLogsRequest,
        cutter: &mut Cutter,
        out: &Out,
    ) -> Result<(), Option<Failure>> {
        let mut client = client::connect(&self.socket).await?;
        let mut chunks = match client.stream_logs(request.clone()).await {
            Ok(answer) => answer.into_inner(),
            Err(error) => return Err(Some(client::about(&mut client, &request.name, error).await)),
        };
        while let Some(chunk) = client::next(&mut chunks, Patience::Forever).await? {
            request.from = position(&chunk).or(request.from);
            for item in self.items(Some(chunk), cutter) {
                send(out, item).await?;
            }
        }
        Ok(())
    }

    /// The items of a chunk; without one, of what is left.
    fn items(&self, chunk: Option<LogChunk>, cutter: &mut Cutter) -> Vec<Item> {
        let parts = match (chunk, &self.cut) {
            (Some(chunk), Cut::Bytes) => return vec![Item::Bytes(chunk)],
            (Some(chunk), Cut::Lines(_)) => cutter.cut(&chunk),
            (None, _) => cutter.rest().into_iter().collect(),
        };
        parts.into_iter().filter(|part| self.is_wanted(part)).map(Item::Part).collect()
    }

    fn is_wanted(&self, part: &Part) -> bool {
        match (&self.cut, part) {
            (Cut::Lines(Some(finder)), Part::Line(line)) => finder.find(&line.data).is_some(),
            (Cut::Lines(_) | Cut::Bytes, Part::Line(_) | Part::Missing(_)) => true,
        }
    }
}

/// The position after a chunk. Older agents send none, so there is no point to continue from.
fn position(chunk: &LogChunk) -> Option<u64> {
    (chunk.next > 0 || chunk.data.is_empty()).then_some(chunk.next)
}

/// Hands an item to the printer. The error is `None` when the printer has gone, which has its own
/// reason.
async fn send(out: &Out, item: Item) -> Result<(), Option<Failure>> {
    out.send(Ok(item)).await.map_err(|_gone| None)
}

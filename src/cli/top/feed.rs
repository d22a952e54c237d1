//! Fetches the agent's data once a second, and connects again after the agent was away.

use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_agent_proto::local::{
    Event, ExplainRequest, GetStatusRequest, GetStatusResponse, StreamEventsRequest,
    StreamLogsRequest,
};
use guest_agent_serve_kit::backoff::{Backoff, Jitter, Schedule};
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::super::client::{self, Client, Patience};
use super::super::explain;
use super::super::failure::{Exit, Failure};
use super::super::format::one_line;

/// How far back events are shown.
const EVENTS_BACK: i64 = 3600;

/// Time between two requests.
const BEAT: Duration = Duration::from_secs(1);

/// An agent that takes longer counts as unreachable.
const PATIENCE: Duration = Duration::from_secs(5);

/// The waits before the next attempt.
const WAITS: Schedule =
    Schedule::doubling(Duration::from_millis(250), Duration::from_secs(5), Jitter::UpperHalf);

/// Measurements per plugin.
const USAGE_POINTS: u32 = 60;

/// Lines of its log that are shown with a plugin.
const LOG_LINES: u32 = 50;

/// Most bytes of a line of a log that are kept.
const LINE_MAX: usize = 1000;

/// New data for the screen.
#[derive(Clone, Debug)]
pub(super) enum Update {
    /// A new connection; its past events replace those of an earlier connection.
    Connected,
    Status(Box<GetStatusResponse>),
    Event(Box<Event>),
    /// The details of the selected plugin.
    Detail(Detail),
    /// What the agent answered to what a person asked for.
    Answered(String),
    Lost {
        why: String,
        retry_in: Duration,
    },
}

/// The details of one plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Detail {
    pub(super) name: String,
    /// The explanation of its state, or the error of the request.
    pub(super) explained: Vec<String>,
    /// What it printed last.
    pub(super) printed: Vec<String>,
}

/// Sends updates until the receiver is dropped.
pub(super) async fn feed(
    socket: PathBuf,
    now: fn() -> Timestamp,
    mut looked_at: watch::Receiver<Option<String>>,
    tell: mpsc::Sender<Update>,
) {
    let mut backoff = Backoff::new(WAITS);
    loop {
        let failure = match connection(&socket, now, &mut looked_at, &tell, &mut backoff).await {
            Ok(()) => return,
            Err(failure) => failure,
        };
        let retry_in = backoff.next(rand::random());
        let why = failure
            .causes
            .first()
            .map_or_else(|| failure.reason.clone(), |cause| format!("{}: {cause}", failure.reason));
        if tell.send(Update::Lost { why: one_line(&why), retry_in }).await.is_err() {
            return;
        }
        tokio::time::sleep(retry_in).await;
    }
}

/// Uses one connection; `Ok` when the receiver was dropped.
async fn connection(
    socket: &Path,
    now: fn() -> Timestamp,
    looked_at: &mut watch::Receiver<Option<String>>,
    tell: &mpsc::Sender<Update>,
    backoff: &mut Backoff,
) -> Result<(), Failure> {
    let mut client = client::connect(socket).await?;
    let request = StreamEventsRequest {
        follow: true,
        since: Some(since(now())),
        ..StreamEventsRequest::default()
    };
    let mut events = client.stream_events(request).await?.into_inner();
    if tell.send(Update::Connected).await.is_err() {
        return Ok(());
    }
    let mut beat = tokio::time::interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let told = tokio::select! {
            () = tell.closed() => return Ok(()),
            _ = beat.tick() => {
                let request = GetStatusRequest { usage_points: USAGE_POINTS, ..Default::default() };
                let status = soon(client.get_status(request)).await?.into_inner();
                backoff.reset();
                if tell.send(Update::Status(Box::new(status))).await.is_err() {
                    return Ok(());
                }
                let name = looked_at.borrow().clone();
                match name {
                    Some(name) => Update::Detail(soon_detail(&mut client, name, now).await?),
                    None => continue,
                }
            }
            changed = looked_at.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                let name = looked_at.borrow_and_update().clone();
                match name {
                    Some(name) => Update::Detail(soon_detail(&mut client, name, now).await?),
                    None => continue,
                }
            }
            event = client::next(&mut events, Patience::Forever) => match event? {
                Some(event) => Update::Event(Box::new(event)),
                None => continue,
            },
        };
        if tell.send(told).await.is_err() {
            return Ok(());
        }
    }
}

async fn soon<T>(
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<tonic::Response<T>, Failure> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_elapsed) => Err(unanswered()),
    }
}

async fn soon_detail(
    client: &mut Client,
    name: String,
    now: fn() -> Timestamp,
) -> Result<Detail, Failure> {
    let detail = tokio::time::timeout(PATIENCE, detail(client, name, now));
    detail.await.map_err(|_elapsed| unanswered())
}

fn unanswered() -> Failure {
    Failure::new(Exit::Unreachable, "the agent does not answer")
}

/// Fetches the page of a plugin. A part that cannot be fetched is replaced by the error.
async fn detail(client: &mut Client, name: String, now: fn() -> Timestamp) -> Detail {
    let explained = match client.explain(ExplainRequest { name: name.clone(), config: false }).await
    {
        Ok(answer) => explain::lines(&name, answer.get_ref(), now),
        Err(error) => vec![one_line(error.message())],
    };
    let request =
        StreamLogsRequest { name: name.clone(), lines: LOG_LINES, ..StreamLogsRequest::default() };
    let printed = match client.stream_logs(request).await {
        Ok(answer) => {
            let (mut chunks, mut bytes) = (answer.into_inner(), Vec::new());
            while let Ok(Some(chunk)) = client::next(&mut chunks, Patience::Soon).await {
                bytes.extend(chunk.data);
                // The end of the log is wanted; incomplete lines are removed below.
                let most = LINE_MAX * 2 * usize::try_from(LOG_LINES).unwrap_or_default();
                let more = bytes.len().saturating_sub(most);
                bytes.drain(..more);
            }
            lines(&bytes)
        }
        Err(error) => vec![one_line(error.message())],
    };
    Detail { name, explained, printed }
}

fn lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let line = |line: &str| {
        let safe = |c: char| if c.is_control() { ' ' } else { c };
        line.chars().take(LINE_MAX).map(safe).collect()
    };
    text.lines().map(line).collect()
}

/// From when on events are shown.
pub(super) fn since(now: jiff::Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: now.as_second() - EVENTS_BACK, nanos: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_stays_away_is_asked_less_and_less_often() {
        assert_eq!(WAITS.wait(0, 1.0), Duration::from_millis(250));
        assert_eq!(WAITS.wait(2, 1.0), Duration::from_secs(1));
        assert_eq!(WAITS.wait(2, 0.0), Duration::from_millis(500));
        assert_eq!(WAITS.wait(u32::MAX, 1.0), Duration::from_secs(5));
    }

    #[test]
    fn lines_of_a_log_cannot_move_the_cursor_and_are_not_endless() {
        assert_eq!(lines(b"a\x1b[2Jb\n\xff\n"), ["a [2Jb", "\u{fffd}"]);
        assert_eq!(lines(&[b'x'; 5000])[0].len(), LINE_MAX);
    }
}

//! A plugin's output, as a stream, and the agent's own log.

use std::time::{Duration, SystemTime};

use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::local;
use tokio::sync::mpsc::Sender;
use tonic::Status;

use crate::observe::log::recent::{From, Recent};
use crate::process::logs::PluginLogs;
use crate::process::logs::read::{Begin, Piece, Reader, Written};

/// How often a followed log is checked for new output when no notification of a write arrives.
const BEAT: Duration = Duration::from_millis(200);

type Out = Sender<Result<local::LogChunk, Status>>;

/// Sends the last lines, or what comes after a position; then, when following, sends what the
/// plugin adds until the client disconnects.
pub(super) async fn stream(
    logs: PluginLogs,
    name: PluginName,
    request: local::StreamLogsRequest,
    out: Out,
) {
    if let Err(error) = send(logs, name, &request, &out).await {
        let status =
            Status::internal(format!("failed to read the log of {}: {error}", request.name));
        drop(out.send(Err(status)).await);
    }
}

/// Sends the agent's own last lines, as [`stream`] does those of a plugin.
pub(super) async fn stream_own(recent: Recent, request: local::StreamLogsRequest, out: Out) {
    let mut from = match request.from {
        Some(position) => From::Position(position),
        None => From::Last { lines: request.lines, since: since(&request) },
    };
    let mut is_first = true;
    loop {
        // Before the lines are read, so that none is missed between the two.
        let written = recent.written();
        let lines = recent.lines(from);
        from = From::Position(lines.next);
        let is_empty = lines.text.is_empty() && lines.skipped == 0;
        if !is_empty || (is_first && !request.follow) {
            let times = lines
                .times
                .iter()
                .filter(|_| request.times)
                .map(|&(at, time)| at_place(at, Some(time)));
            let chunk = local::LogChunk {
                times: times.collect(),
                data: lines.text.into_bytes(),
                skipped: lines.skipped,
                next: lines.next,
            };
            if out.send(Ok(chunk)).await.is_err() {
                return;
            }
        }
        if !request.follow {
            return;
        }
        is_first = false;
        tokio::select! {
            () = written => {}
            () = tokio::time::sleep(BEAT) => {}
            () = out.closed() => return,
        }
    }
}

fn since(request: &local::StreamLogsRequest) -> Option<SystemTime> {
    request.since.and_then(|since| SystemTime::try_from(since).ok())
}

async fn send(
    logs: PluginLogs,
    name: PluginName,
    request: &local::StreamLogsRequest,
    out: &Out,
) -> std::io::Result<()> {
    let lines = request.lines;
    let begin = match (request.from, since(request)) {
        (Some(position), _) => Begin::At(position),
        (None, Some(at)) => Begin::Since { at, lines },
        (None, None) => Begin::LastLines(lines),
    };
    let (written, wants_times) = (logs.clone(), request.times);
    let (mut reader, start, end) = aside(move || {
        let reader = Reader::new(logs, name, begin)?;
        let (start, end) = (reader.at(), reader.end()?);
        Ok((reader, start, end))
    })
    .await?;
    if !request.follow && start >= end {
        // One who follows afterwards goes on from here.
        drop(out.send(Ok(local::LogChunk { next: start, ..local::LogChunk::default() })).await);
    }
    loop {
        let read;
        (reader, read) = aside(move || {
            let piece = reader.next()?;
            let read = piece.map(|piece| {
                let times = if wants_times { reader.written(&piece) } else { Vec::new() };
                (piece, times)
            });
            Ok((reader, read))
        })
        .await?;
        match read {
            Some((piece, times)) => {
                let next = piece.next;
                if out.send(Ok(chunk(piece, times))).await.is_err() {
                    return Ok(());
                }
                // A plugin that writes faster than this reads would never be read to its end.
                if !request.follow && next >= end {
                    return Ok(());
                }
            }
            None if request.follow => tokio::select! {
                () = written.written() => {}
                () = tokio::time::sleep(BEAT) => {}
                () = out.closed() => return Ok(()),
            },
            None => return Ok(()),
        }
    }
}

fn chunk(Piece { data, skipped, next }: Piece, times: Vec<Written>) -> local::LogChunk {
    let times = times.into_iter().map(|(at, time)| at_place(at, time)).collect();
    local::LogChunk { data, skipped, next, times }
}

fn at_place(offset: usize, at: Option<SystemTime>) -> local::LogTime {
    local::LogTime { offset: u32::try_from(offset).unwrap_or(u32::MAX), at: at.map(Into::into) }
}

async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

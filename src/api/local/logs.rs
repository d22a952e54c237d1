//! A plugin's output, as a stream.

use std::time::Duration;

use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::local;
use tokio::sync::mpsc::Sender;
use tonic::Status;

use crate::process::logs::PluginLogs;
use crate::process::logs::read::{Begin, Piece, Reader};

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

async fn send(
    logs: PluginLogs,
    name: PluginName,
    request: &local::StreamLogsRequest,
    out: &Out,
) -> std::io::Result<()> {
    let begin = match request.from {
        Some(position) => Begin::At(position),
        None => Begin::LastLines(request.lines),
    };
    let written = logs.clone();
    let (mut reader, end) = aside(move || {
        let reader = Reader::new(logs, name, begin)?;
        let end = reader.end()?;
        Ok((reader, end))
    })
    .await?;
    loop {
        let piece;
        (reader, piece) = aside(move || {
            let piece = reader.next()?;
            Ok((reader, piece))
        })
        .await?;
        match piece {
            Some(piece) => {
                let next = piece.next;
                if out.send(Ok(chunk(piece))).await.is_err() {
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

fn chunk(Piece { data, skipped, next }: Piece) -> local::LogChunk {
    local::LogChunk { data, skipped, next }
}

async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

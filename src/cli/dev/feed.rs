//! Follows the plugin: how the agent says it is, what happens to it, and what it prints.

use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_agent_proto::local::{GetStatusRequest, StreamEventsRequest, StreamLogsRequest};
use tokio::sync::mpsc;

use super::lines::Lines;
use super::model::Update;
use crate::cli::client::{self, Patience};
use crate::cli::failure::Failure;

/// How long to wait before a log that ended is followed again.
const PAUSE: Duration = Duration::from_millis(300);

/// Lines of a log that is there already.
const LINES: u32 = 100;

/// Sends updates until the receiver is dropped, or the agent ends, which is the last update.
pub(super) async fn feed(socket: PathBuf, name: String, tell: mpsc::Sender<Update>) {
    let (log_socket, log_name, log_tell) = (socket.clone(), name.clone(), tell.clone());
    let ended = tokio::select! {
        ended = statuses(&socket, &name, &tell) => ended,
        ended = events(&socket, &tell) => ended,
        () = log(&log_socket, &log_name, &log_tell) => Ok(()),
        () = tell.closed() => Ok(()),
    };
    if let Err(failure) = ended {
        // The receiver may be gone.
        let _told = tell.send(Update::Lost(failure.reason)).await;
    }
}

async fn statuses(socket: &Path, name: &str, tell: &mpsc::Sender<Update>) -> Result<(), Failure> {
    let mut client = client::connect(socket).await?;
    let mut changes = client.watch_status(GetStatusRequest::default()).await?.into_inner();
    while let Some(all) = client::next(&mut changes, Patience::Forever).await? {
        let plugin = all.plugins.into_iter().find(|plugin| plugin.name == name);
        if tell.send(Update::Status(plugin.map(Box::new))).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

async fn events(socket: &Path, tell: &mpsc::Sender<Update>) -> Result<(), Failure> {
    let mut client = client::connect(socket).await?;
    // Of all plugins: there is one, which the agent does not know yet.
    let request = StreamEventsRequest { follow: true, ..StreamEventsRequest::default() };
    let mut events = client.stream_events(request).await?.into_inner();
    while let Some(event) = client::next(&mut events, Patience::Forever).await? {
        // The second time it only says that it was delivered.
        let is_again = event.delivered_at.is_some();
        if !is_again && tell.send(Update::Event(Box::new(event))).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Follows the log, from its beginning, over whatever ends it: a plugin that is not there yet has none.
async fn log(socket: &Path, name: &str, tell: &mpsc::Sender<Update>) {
    let (mut from, mut lines) = (None, Lines::default());
    while !tell.is_closed() {
        // The other streams report why the agent cannot be reached.
        let _ended = chunks(socket, name, &mut from, &mut lines, tell).await;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn chunks(
    socket: &Path,
    name: &str,
    from: &mut Option<u64>,
    lines: &mut Lines,
    tell: &mpsc::Sender<Update>,
) -> Result<(), Failure> {
    let mut client = client::connect(socket).await?;
    let request = StreamLogsRequest {
        name: name.to_owned(),
        follow: true,
        lines: if from.is_none() { LINES } else { 0 },
        from: *from,
        ..StreamLogsRequest::default()
    };
    let mut chunks = client.stream_logs(request).await?.into_inner();
    while let Some(chunk) = chunks.message().await? {
        *from = Some(chunk.next);
        if chunk.skipped > 0 && tell.send(Update::Missed(chunk.skipped)).await.is_err() {
            return Ok(());
        }
        for line in lines.add(&chunk.data) {
            if tell.send(Update::Printed(line)).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

//! `StreamEvents` and `StreamLogs`.

use guest_agent_actors::error::Chain;
use guest_agent_proto::local;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::reach::{LocalApi, parse_name, unknown};
use super::{events, logs};

/// Messages waiting for one slow reader of a stream. When it is full, the stream waits for the
/// reader.
const STREAM_BUFFER: usize = 32;

pub(super) async fn events(
    api: &LocalApi,
    request: local::StreamEventsRequest,
) -> Result<ReceiverStream<Result<local::Event, Status>>, Status> {
    let name = &request.name;
    let listed = api.list().await?.iter().any(|listed| listed.view.name.as_str() == name);
    if !name.is_empty() && !listed {
        let known = events::are_there_of(&*api.storage, name).await;
        if !known.map_err(|error| Status::internal(Chain(&error).to_string()))? {
            return Err(unknown(name));
        }
    }
    let (sender, receiver) = mpsc::channel(STREAM_BUFFER);
    let api = api.clone();
    tokio::spawn(async move { api.events(request, sender).await });
    Ok(ReceiverStream::new(receiver))
}

pub(super) async fn logs(
    api: &LocalApi,
    request: local::StreamLogsRequest,
) -> Result<ReceiverStream<Result<local::LogChunk, Status>>, Status> {
    let (sender, receiver) = mpsc::channel(STREAM_BUFFER);
    if request.agent {
        tokio::spawn(logs::stream_own(crate::observe::log::recent(), request, sender));
        return Ok(ReceiverStream::new(receiver));
    }
    let name = parse_name(&request.name)?;
    let known = api.list().await?.iter().any(|listed| listed.view.name == name);
    if !known && !api.logs.path(&name).exists() {
        return Err(unknown(name.as_str()));
    }
    tokio::spawn(logs::stream(api.logs.clone(), name, request, sender));
    Ok(ReceiverStream::new(receiver))
}

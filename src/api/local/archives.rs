//! Archives that a client uploads over the local socket, for machines without a network.
//!
//! A thread of its own writes the pieces into the spool; when the disk is slow, the client waits.
//! The agent owns an archive once it has acknowledged it.

use std::path::PathBuf;
use std::time::Duration;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_proto::local::PlaceArchiveRequest;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use crate::install::cache::spool::Spool;
use crate::install::error::SpoolError;

/// Longest wait for the next piece of an archive.
const PIECE_WAIT: Duration = Duration::from_secs(30);

/// Pieces on their way to the disk.
const PIECES_IN_FLIGHT: usize = 4;

enum Piece {
    Data(Vec<u8>),
    End,
}

/// Receives an archive. Returns its path once the archive is durable.
pub(super) async fn place(
    spool: Spool,
    mut stream: Streaming<PlaceArchiveRequest>,
) -> Result<PathBuf, Status> {
    let first = next(&mut stream).await?;
    let first = first.ok_or_else(|| Status::invalid_argument("the upload is empty"))?;
    let sha256: Sha256Digest = first.sha256.parse().map_err(|error| {
        Status::invalid_argument(format!("the announced checksum is not a SHA-256 digest: {error}"))
    })?;
    let PlaceArchiveRequest { signature, total_bytes, data, .. } = first;
    let (pieces, mut received) = mpsc::channel(PIECES_IN_FLIGHT);
    let writing = tokio::task::spawn_blocking(move || {
        let mut arriving = spool.receive(total_bytes)?;
        loop {
            match received.blocking_recv() {
                Some(Piece::Data(data)) => arriving.write(&data)?,
                Some(Piece::End) => return arriving.accept(sha256, &signature).map(Some),
                None => return Ok(None),
            }
        }
    });
    let mut data = data;
    loop {
        // A thread that takes no more says why below.
        if pieces.send(Piece::Data(data)).await.is_err() {
            break;
        }
        match next(&mut stream).await? {
            Some(more) => data = more.data,
            None => {
                drop(pieces.send(Piece::End).await);
                break;
            }
        }
    }
    drop(pieces);
    match writing.await {
        Ok(Ok(Some(path))) => Ok(path),
        Ok(Ok(None)) => Err(Status::aborted("the upload of the archive is not complete")),
        Ok(Err(error)) => Err(refusal(&error)),
        Err(_) => Err(Status::internal("the thread that writes the archive panicked")),
    }
}

async fn next(
    stream: &mut Streaming<PlaceArchiveRequest>,
) -> Result<Option<PlaceArchiveRequest>, Status> {
    match tokio::time::timeout(PIECE_WAIT, stream.message()).await {
        Ok(message) => message,
        Err(_) => Err(Status::deadline_exceeded("the next piece of the archive did not come")),
    }
}

fn refusal(error: &SpoolError) -> Status {
    let message = Chain(error).to_string();
    match error {
        SpoolError::Other { .. } | SpoolError::Signature(_) => Status::invalid_argument(message),
        SpoolError::TooLarge { .. } | SpoolError::TooMany { .. } | SpoolError::Space(_) => {
            Status::resource_exhausted(message)
        }
        SpoolError::Io { .. } => Status::internal(message),
    }
}

//! Reads on a few connections, on threads that may block.
//!
//! Every read is short, one page at most, so that none holds up the checkpoint of the write-ahead
//! log for long.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_serve_kit::lock::lock;
use rusqlite::{Connection, ErrorCode};
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::open;
use crate::{EngineError, ReadError};

/// Connections that read at once.
const CONNECTIONS: usize = 4;

/// How long a read waits for its turn, and how long for its answer.
const TURN: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(30);

/// Why no answer came.
#[derive(Debug, Error)]
enum NoAnswer {
    #[error("{CONNECTIONS} reads were under way for {} s", TURN.as_secs())]
    Busy,
    #[error("the disk did not answer within {} s", ANSWER.as_secs())]
    Late,
    #[error("the ledger was closed")]
    Closed,
}

/// A read of the file that failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// The engine's own.
    Engine(rusqlite::Error),
    /// The caller's answer.
    Answer(ReadError),
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self::Engine(error)
    }
}

/// The connections that read.
#[derive(Debug)]
pub(super) struct Readers {
    path: PathBuf,
    turns: Arc<Semaphore>,
    /// Connections that nobody uses at the moment.
    idle: Arc<Mutex<Vec<Connection>>>,
}

// === impl Readers ===

impl Readers {
    pub(super) fn new(path: PathBuf) -> Self {
        let turns = Arc::new(Semaphore::new(CONNECTIONS));
        Self { path, turns, idle: Arc::default() }
    }

    /// Waits for the reads that are under way, and takes no others.
    pub(super) async fn close(&self) {
        // All turns together; it fails where they are closed already.
        let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
        let turns = self.turns.acquire_many(all).await;
        self.turns.close();
        lock(&self.idle).clear();
        drop(turns);
    }

    /// Runs one read. `about` names what is read, for an error.
    pub(super) async fn run<T, R>(&self, about: &str, read: R) -> Result<T, ReadError>
    where
        T: Send + 'static,
        R: FnOnce(&mut Connection) -> Result<T, Failed> + Send + 'static,
    {
        let turn = timeout(TURN, Arc::clone(&self.turns).acquire_owned()).await;
        let turn = match turn {
            Ok(Ok(turn)) => turn,
            Ok(Err(_)) => return Err(unavailable(NoAnswer::Closed)),
            Err(_) => return Err(unavailable(NoAnswer::Busy)),
        };
        let (path, idle) = (self.path.clone(), Arc::clone(&self.idle));
        // It runs to its end though the caller gives up, and gives the connection back.
        let task = tokio::task::spawn_blocking(move || {
            let kept = lock(&idle).pop();
            let mut connection = match kept {
                Some(connection) => connection,
                None => open::reader(&path)?,
            };
            let result = read(&mut connection);
            // A connection that failed may be in the middle of something.
            if result.is_ok() {
                lock(&idle).push(connection);
            }
            drop(turn);
            result
        });
        match timeout(ANSWER, task).await {
            Ok(Ok(Ok(answer))) => Ok(answer),
            Ok(Ok(Err(Failed::Answer(error)))) => Err(error),
            Ok(Ok(Err(Failed::Engine(error)))) => Err(meaning(about, error)),
            Ok(Err(gone)) => Err(unavailable(gone)),
            Err(_) => Err(unavailable(NoAnswer::Late)),
        }
    }
}

/// What an error of the engine means for a caller that reads.
fn meaning(about: &str, error: rusqlite::Error) -> ReadError {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType};
    let is_damaged = match error.sqlite_error_code() {
        Some(code) => matches!(code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase),
        None => matches!(
            error,
            FromSqlConversionFailure(..)
                | IntegralValueOutOfRange(..)
                | InvalidColumnType(..)
                | rusqlite::Error::Utf8Error(..)
        ),
    };
    if is_damaged {
        ReadError::Damaged {
            key: about.to_owned(),
            problem: format!("{error}; stop the program and restore a backup"),
        }
    } else {
        unavailable(error)
    }
}

fn unavailable(error: impl Into<EngineError>) -> ReadError {
    ReadError::Unavailable(error.into())
}

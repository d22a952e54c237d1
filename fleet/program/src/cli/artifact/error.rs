//! Why a verb failed.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use guest_fleet_server::artifacts::push::PushError;
use guest_fleet_server::artifacts::store::{PutError, StoreError};
use thiserror::Error;

/// Why a verb failed.
#[derive(Debug, Error)]
pub enum ArtifactError {
    /// The arguments do not fit each other or the files.
    #[error("{0}")]
    Usage(String),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An artifact was not kept.
    #[error("failed to keep `{}`", file.display())]
    Put {
        /// The file.
        file: PathBuf,
        /// Why not.
        #[source]
        source: PutError,
    },
    /// An artifact was not sent.
    #[error(transparent)]
    Push(#[from] PushError),
    /// A file of the arguments cannot be read.
    #[error("failed to read `{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// What releases name cannot be found out.
    #[error("failed to read which artifacts releases name")]
    Named(#[source] Box<dyn Error + Send + Sync>),
    /// The output is closed.
    #[error("failed to write the output")]
    Output(#[from] io::Error),
}

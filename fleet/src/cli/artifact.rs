//! `guest-fleet artifact`: sends, lists and deletes artifacts.
//!
//! Each verb is a function that writes to a given output. What releases name is asked of the
//! caller, who has the ledger.

mod file_name;
mod gc;
mod list;
mod push;

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use thiserror::Error;

use crate::artifacts::named::Named;
use crate::artifacts::push::PushError;
use crate::artifacts::store::{PutError, StoreError};

pub use gc::GcArgs;
pub use list::ListArgs;
pub use push::PushArgs;

/// The arguments of `artifact`.
#[derive(Args, Clone, Debug)]
pub struct ArtifactArgs {
    #[command(subcommand)]
    verb: ArtifactVerb,
}

/// What is done with artifacts.
#[derive(Clone, Debug, Subcommand)]
enum ArtifactVerb {
    /// Send archives to the store, and print a release that names them.
    Push(PushArgs),
    /// List the artifacts of the store, with the releases that name them.
    List(ListArgs),
    /// Delete the artifacts that no release names. Without --yes it only shows them.
    Gc(GcArgs),
}

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

/// Runs a verb. `named` reads what releases name, anew each time.
///
/// # Errors
/// See [`ArtifactError`].
pub async fn run(
    args: ArtifactArgs,
    named: impl AsyncFn() -> Result<Named, Box<dyn Error + Send + Sync>>,
    out: &mut dyn Write,
) -> Result<(), ArtifactError> {
    let named = async || named().await.map_err(ArtifactError::Named);
    match args.verb {
        ArtifactVerb::Push(args) => push::run(args, out).await,
        ArtifactVerb::List(args) => list::run(args, &named().await?, out).await,
        ArtifactVerb::Gc(args) => gc::run(args, named, out).await,
    }
}

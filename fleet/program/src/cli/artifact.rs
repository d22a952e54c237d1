//! `guest-fleet artifact`: sends, lists and deletes artifacts.
//!
//! Each verb is a function that writes to a given output. What releases name is asked of the
//! caller, who has the ledger.

mod error;
mod file_name;
mod gc;
mod list;
mod push;

use std::error::Error;
use std::io::Write;

use clap::{Args, Subcommand};
use guest_fleet_server::artifacts::named::Named;

pub use error::ArtifactError;
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

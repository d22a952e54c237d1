//! Why the operations of this wing fail: one type for each operation.
//!
//! All of them end up as the cause of a port's `InstallError` or `RemoveError`. No text here shows
//! a URL in any form but `ArtifactUrl`'s own, and names that an archive chose are escaped and cut.

use std::io;
use std::path::PathBuf;

use guest_agent_actors::model::id::{RevisionId, Sha256Digest};

mod fetch;
mod signature;
mod space;
mod unpack;

pub use fetch::{ChecksumError, CodingError, Exhausted, FetchError};
pub use signature::{SignError, SignatureError};
pub use space::SpaceError;
pub use unpack::UnpackError;

/// Why a [`super::Pipeline`] could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The folder that holds all plugins is missing and cannot be made.
    #[error("cannot make the folder for plugins {}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Why an archive that `guest-agent install -f` uploads is refused.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The archive is larger than the limit for archives.
    #[error("the archive has more than the {limit} bytes that are allowed")]
    TooLarge { limit: u64 },
    /// Too many uploaded archives wait for their installation already.
    #[error(
        "{waiting} archives wait in {} already, or others arrive just now; try again when they are \
         installed, or delete those that are not needed", place.display()
    )]
    TooMany { waiting: usize, place: PathBuf },
    /// The disk is full.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The checksum of the uploaded bytes differs from the announced checksum.
    #[error(
        "the checksum of the archive is {actual}, but {expected} was announced; the file is damaged"
    )]
    Other {
        /// The announced checksum.
        expected: Sha256Digest,
        /// The checksum of the bytes that arrived.
        actual: Sha256Digest,
    },
    /// The bytes that came as the signature do not have the form of a minisign signature.
    #[error("the signature of the archive is not a minisign signature: {0}")]
    Signature(&'static str),
    /// A system call failed.
    #[error("cannot write {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Why a plugin's folder could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A system call failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The operation that failed, as a verb.
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The disk is full.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The revision is installed already, from an archive with another checksum.
    #[error(
        "revision {revision} is installed from an archive with checksum {installed}, but the order \
         names {ordered}; a changed archive needs a revision of its own"
    )]
    OtherChecksum {
        revision: RevisionId,
        /// The checksum of the installed archive.
        installed: Sha256Digest,
        /// The ordered checksum.
        ordered: Sha256Digest,
    },
    /// The path of the revision exists already, and the agent did not make it.
    #[error(
        "{} exists, but the agent has no record that it made it; move it away or order another \
         revision", path.display()
    )]
    Foreign { path: PathBuf },
    /// The revision is installed, but it has no executable file at the entry point.
    #[error("the installed revision has no executable file {path:?}; correct the entry point")]
    EntryPoint {
        /// The entry point of the order.
        path: String,
    },
    /// The agent was to switch to a revision that is not installed.
    #[error("revision {revision} is not installed")]
    NotInstalled { revision: RevisionId },
    /// The installation was cancelled before its files were moved into place.
    #[error("the installation was cancelled")]
    Abandoned,
    /// A bug in the agent: the thread that changes files panicked.
    #[error("the thread that changes files panicked")]
    Panicked,
}

/// Why a folder could not be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A file or folder could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The archive could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A device, socket or pipe lies in the folder.
    #[error("{} is a {kind}; only files, folders and symbolic links can be packed", path.display())]
    Special {
        path: PathBuf,
        /// What the entry is.
        kind: &'static str,
    },
    /// A name is not UTF-8.
    #[error("{} has a name that is not UTF-8; rename it", path.display())]
    Name { path: PathBuf },
    /// No agent would install the archive, for this reason.
    #[error("{} cannot be packed, because no agent would install it", path.display())]
    Refused {
        path: PathBuf,
        #[source]
        source: UnpackError,
    },
    /// A file changed while it was read.
    #[error("{} changed while it was packed; pack again when nothing writes to it", path.display())]
    Changed { path: PathBuf },
    /// The archive would lie in the folder that is packed, and so contain itself.
    #[error("{} lies in the folder that is packed; write it somewhere else", path.display())]
    OutputInside { path: PathBuf },
}

//! Why a transfer failed, and the step of the installation that this belongs to.

use guest_agent_actors::ports::{InstallError, InstallStep};

use crate::hostinfo::preflight::Unfit;
use crate::install::error::{
    ChecksumError, CodingError, FetchError, FolderError, SignatureError, UnpackError,
};

/// Why a transfer failed.
#[derive(Debug)]
pub(in crate::install) enum Failure {
    /// The archive did not arrive.
    Fetch(FetchError),
    /// Its content coding could not be undone.
    Coded(CodingError),
    /// The checksum of the bytes is not the ordered one.
    Checksum(ChecksumError),
    /// No trusted key made the signature.
    Signature(SignatureError),
    /// It could not be unpacked.
    Unpack(UnpackError),
    /// This machine cannot run its program.
    Unfit(Unfit),
    /// Its folder could not be made or published.
    Folder(InstallStep, FolderError),
    /// The server was silent while other installations waited for the memory that this one held.
    /// It has given that back and begins again, which is not a new attempt.
    Stalled,
}

// === impl Failure ===

impl Failure {
    pub(super) fn of_coding(error: CodingError) -> Self {
        match error {
            // The installation begins again when there is memory for it.
            CodingError::Taken { wanted } => Self::Unpack(UnpackError::WindowTaken { wanted }),
            other => Self::Coded(other),
        }
    }
}

impl From<Failure> for InstallError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Fetch(error) => Self { step: InstallStep::Download, cause: error.into() },
            Failure::Coded(error) => Self { step: InstallStep::Download, cause: error.into() },
            Failure::Checksum(error) => Self { step: InstallStep::Verify, cause: error.into() },
            Failure::Signature(error) => Self { step: InstallStep::Verify, cause: error.into() },
            Failure::Unpack(error) => Self { step: InstallStep::Unpack, cause: error.into() },
            Failure::Unfit(error) => Self { step: InstallStep::Check, cause: error.into() },
            Failure::Folder(step, error) => Self { step, cause: error.into() },
            // The caller begins again instead, for this reason.
            Failure::Stalled => {
                Self { step: InstallStep::Download, cause: UnpackError::Abandoned.into() }
            }
        }
    }
}

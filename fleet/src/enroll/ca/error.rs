//! Why the authority cannot be used.

use std::path::PathBuf;

use thiserror::Error;

/// Why the authority cannot be used.
#[derive(Debug, Error)]
pub enum AuthorityError {
    /// A file or the directory cannot be read or written.
    #[error("cannot use `{path}`", path = .path.display())]
    File {
        /// The file or the directory.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// Nothing was set up there.
    #[error(
        "there is no authority in `{path}`: `guest-fleet ca init` makes one; if this fleet had one, \
         put its files back from the backup, because its agents trust no other",
        path = .0.display()
    )]
    Missing(PathBuf),
    /// Somebody else may have read the key.
    #[error(
        "other users may use the authority's key in `{path}`, whose mode is {mode:04o}: run `chmod \
         600 {path}`, and `guest-fleet ca rotate` if another user may have read it",
        path = .path.display()
    )]
    KeyOpen {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A file holds something else.
    #[error(
        "`{path}` cannot be used, because {problem}: put it back from the backup",
        path = .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, as a sentence about it.
        problem: String,
    },
    /// The two do not belong together.
    #[error(
        "`ca.key` and `ca.pem` in `{path}` do not belong together: put both back from one backup",
        path = .0.display()
    )]
    Mismatch(PathBuf),
    /// A certificate cannot be made.
    #[error("a certificate cannot be made")]
    Make(#[source] rcgen::Error),
    /// The authority has ended and can sign nothing.
    #[error("the authority's certificate has ended: `guest-fleet ca rotate` makes a new authority")]
    Ended,
    /// The name of a listener stands in no certificate.
    #[error("{name:?} is neither a DNS name nor an IP address, and no certificate can hold it")]
    Name {
        /// The name as it was given.
        name: String,
    },
    /// The task that reads the files was given up.
    #[error("the files of the authority could not be read in time")]
    Aborted,
}

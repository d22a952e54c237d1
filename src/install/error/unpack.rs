//! Why an archive could not be unpacked.

use std::io;
use std::path::PathBuf;

use super::space::SpaceError;

/// Why an archive could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The first bytes match no supported format.
    #[error("not a gzip, zstd, xz or plain tar archive: {found}")]
    Format {
        /// The format that the bytes look like, if they look like any.
        found: String,
    },
    /// The compressed or the tar stream is damaged.
    #[error("the {format} stream is damaged or ends early")]
    Damaged {
        /// The format.
        format: &'static str,
        /// The error of its reader.
        #[source]
        source: io::Error,
    },
    /// The decoder got no memory from the system.
    #[error(
        "failed to allocate memory to expand the {format} stream; free memory or raise the memory \
         limit of the agent's service, then send the order again"
    )]
    Memory {
        /// The format.
        format: &'static str,
        /// The error of its reader.
        #[source]
        source: io::Error,
    },
    /// The thread that expands the archive could not be started.
    #[error(
        "failed to start a thread that expands the archive; too many threads run, or memory is \
         short"
    )]
    Thread {
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The tar stream ends without an end marker.
    #[error("the archive has no end marker; it was probably cut off before it was published")]
    NoEndMarker,
    /// More data follows the end of the archive.
    #[error("there is data after the end of the archive")]
    TrailingData,
    /// The archive exceeds a limit on its members, names or sizes.
    #[error("the archive has more than {limit} {what}, which is the limit")]
    Limit {
        /// What the limit counts.
        what: &'static str,
        /// The largest allowed value.
        limit: u64,
    },
    /// The archive needs a larger window to expand than the agent allows.
    #[error(
        "expanding the archive takes a window of {wanted} bytes, and {limit} are the most that an \
         archive may use, because they are memory of this machine; pack it again without --long or \
         --ultra of zstd, or with a preset of xz"
    )]
    Window {
        /// The window that a header asks for, in bytes.
        wanted: u64,
        /// The largest window, in bytes.
        limit: u64,
    },
    /// Other installations use the memory for windows. The installation waits for the memory and
    /// begins again.
    #[error(
        "expanding the archive takes a window of {wanted} bytes, which others use at the moment"
    )]
    WindowTaken {
        /// The window that a header asks for, in bytes.
        wanted: u64,
    },
    /// A later part of an archive in xz takes a larger window than its beginning.
    #[error(
        "a later block of the archive takes a larger window than its first, of {first} bytes; pack it \
         again with one preset of xz for all of it"
    )]
    WindowGrows {
        /// The window of the first block, in bytes.
        first: u64,
    },
    /// The archive expands to too many times its compressed size.
    #[error("the archive expands more than {limit}:1, which only a decompression bomb does")]
    Ratio {
        /// The largest allowed ratio.
        limit: u64,
    },
    /// The name of a member is not valid, or it leads out of the archive's folder.
    #[error("the member {member} {reason}")]
    Name {
        /// Its name, escaped.
        member: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The type of a member, for example a device, is not allowed.
    #[error("the member {member} is a {kind}, which is not allowed in an archive")]
    Kind {
        /// Its name, escaped.
        member: String,
        /// The type of the member.
        kind: String,
    },
    /// The target of a link is missing, or it is outside of the archive.
    #[error("the {kind} {member} points to {target}, which {reason}")]
    Link {
        /// The kind of the link.
        kind: &'static str,
        /// Its name, escaped.
        member: String,
        /// Its target, escaped.
        target: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Two members have the same path, or one needs a folder where the other has a file.
    #[error("the path of the member {member} conflicts with that of another member")]
    Conflict {
        /// Its name, escaped.
        member: String,
    },
    /// The file of the entry point is missing or not executable.
    #[error("the entry point {path:?} {found}")]
    EntryPoint {
        /// The entry point of the order.
        path: String,
        /// What is there instead, and the fix.
        found: String,
    },
    /// A member could not be written.
    #[error("cannot write the member {member}")]
    Write {
        /// Its name, escaped.
        member: String,
        #[source]
        source: io::Error,
    },
    /// The disk is full.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The file system has no inodes left.
    #[error(
        "{} has no inodes left, so the member {member} cannot be made; delete files there and order \
         again", place.display()
    )]
    Inodes {
        place: PathBuf,
        /// Its name, escaped.
        member: String,
    },
    /// The download ended before the end of the archive; the download's own error says why.
    #[error("the download was cancelled")]
    Abandoned,
}

// === impl UnpackError ===

impl UnpackError {
    /// Whether the bytes of the archive are to blame, and not the machine it is unpacked on. A
    /// checksum error has precedence over such an error: for damaged bytes, "not the ordered
    /// checksum" is the more useful report.
    #[must_use]
    pub fn is_about_content(&self) -> bool {
        !matches!(
            self,
            Self::Write { .. }
                | Self::Space(_)
                | Self::Inodes { .. }
                | Self::WindowTaken { .. }
                | Self::Memory { .. }
                | Self::Abandoned
        )
    }
}

//! Why the operations of this wing fail: one type for each operation.
//!
//! All of them end up as the cause of a port's `InstallError` or `RemoveError`. No text here shows
//! a URL in any form but `ArtifactUrl`'s own, and names that an archive chose are escaped and cut.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use guest_agent_actors::model::id::{RevisionId, Sha256Digest};

use crate::config::trust_key::KeyId;
use crate::install::download::redirect::Misdirection;

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

/// Why an archive could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The URL has a form that is not supported.
    #[error("{url} {reason}")]
    Url {
        /// The URL without its secrets.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The HTTP client could not be set up.
    #[error("the HTTP client cannot be set up")]
    Client {
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The machine has no CA certificates, so no TLS server can be checked.
    #[error(
        "https needs CA certificates and this machine has no readable ones; install the package \
         ca-certificates, or name a file of them in SSL_CERT_FILE"
    )]
    NoAuthorities {
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server sent no answer.
    #[error("no answer from {url}")]
    Request {
        /// The URL without its secrets.
        url: String,
        #[source]
        source: reqwest::Error,
    },
    /// The server redirected too often, or to an address that is not allowed.
    #[error("the redirection from {url} was not followed")]
    Redirect {
        /// The URL without its secrets.
        url: String,
        #[source]
        source: Misdirection,
    },
    /// The server answered with an error status instead of the archive.
    #[error("{url} answered with HTTP status {status}{}", hint(*status))]
    Status {
        /// The URL without its secrets.
        url: String,
        /// The HTTP status.
        status: u16,
        /// How long the server asked the agent to wait, from `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The connection ended before the whole archive had arrived.
    #[error("the transfer from {url} broke off after {received} bytes{}", of(*total))]
    Broken {
        /// The URL without its secrets.
        url: String,
        /// How many bytes had arrived.
        received: u64,
        /// How many bytes the server had announced.
        total: Option<u64>,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server sent fewer or more bytes than its `Content-Length` announced.
    #[error("{url} sent {received} bytes where {total} were announced")]
    Short {
        /// The URL without its secrets.
        url: String,
        /// How many bytes arrived.
        received: u64,
        /// How many bytes the server had announced.
        total: u64,
    },
    /// One attempt took longer than the `download_timeout` of the order.
    #[error(
        "the download from {url} was not done within {timeout:?} ({received} bytes had arrived); \
         a larger download_timeout may help"
    )]
    Timeout {
        /// The URL without its secrets.
        url: String,
        /// The timeout of the order.
        timeout: Duration,
        /// How many bytes had arrived.
        received: u64,
    },
    /// The archive is larger than the limit.
    #[error("the archive at {url} has more than the {limit} bytes that are allowed")]
    TooLarge {
        /// The URL without its secrets.
        url: String,
        limit: u64,
    },
    /// A local archive could not be read.
    #[error("cannot read the archive {path}")]
    File {
        path: String,
        #[source]
        source: io::Error,
    },
    /// The path of a `file:` URL is not a regular file.
    #[error("{path} is not a regular file")]
    NotAFile { path: String },
}

/// Every attempt to download failed.
#[derive(Debug, thiserror::Error)]
#[error("gave up after {attempts} attempts")]
pub struct Exhausted {
    /// How many attempts there were.
    pub attempts: u32,
    /// The error of the last attempt.
    #[source]
    pub last: FetchError,
}

/// The bytes that arrived are not the bytes that were ordered.
#[derive(Debug, thiserror::Error)]
#[error(
    "the checksum of {url} is {actual}, but {expected} was ordered; \
     the archive was changed after the order was written, or the order is wrong"
)]
pub struct ChecksumError {
    /// The URL without its secrets.
    pub url: String,
    /// The ordered checksum.
    pub expected: Sha256Digest,
    /// The checksum of the bytes that arrived.
    pub actual: Sha256Digest,
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

/// Why nothing could be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file is not a usable secret key.
    #[error(
        "{} is not a secret key of minisign without a password; make one with `guest-agent keygen` \
         or `minisign -G -W`", path.display()
    )]
    Key { path: PathBuf },
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The kernel returned no random bytes.
    #[error("cannot make a key")]
    Random {
        #[source]
        source: io::Error,
    },
}

/// Why the signature of an archive is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    /// The trusted keys of this machine cannot be read.
    #[error(
        "the keys of [trust] cannot be read, and without them nothing is installed: {why}; correct \
         that and reload the agent"
    )]
    Keys { why: String },
    /// The archive has no signature.
    #[error(
        "the archive is not signed, which [trust] demands: no file is at {place}; sign it with \
         `guest-agent pack --sign-key FILE` or `minisign -S -t plugin:NAME`, and put the signature \
         there"
    )]
    Missing {
        /// Where the agent looked for the signature, without secrets.
        place: String,
    },
    /// The file at the place of the signature is not a signature.
    #[error("the file at {place} is not a minisign signature: {reason}")]
    Malformed {
        /// The URL of the signature, without secrets.
        place: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The signature has minisign's old format, for which the whole archive must be in memory.
    #[error(
        "the signature by key {key} has minisign's old format, which cannot be checked while an \
         archive is unpacked; sign again with minisign 0.10 or later"
    )]
    Legacy {
        /// The key that signed.
        key: KeyId,
    },
    /// A key that this machine does not trust signed the archive.
    #[error(
        "the archive is signed by key {found}, which this machine does not trust; it trusts {}",
        trusted.join(", ")
    )]
    UnknownKey {
        /// The key that signed.
        found: KeyId,
        /// The keys that this machine trusts.
        trusted: Vec<String>,
    },
    /// The signature does not match the bytes of the archive, or its trusted comment.
    #[error(
        "the signature by key {key} does not match this archive and its trusted comment; one of \
         them was changed, or another key has the same id"
    )]
    Wrong {
        /// The id of the key that the signature names.
        key: KeyId,
    },
    /// The trusted comment does not name the plugin or the revision.
    #[error(
        "the signature by key {key} does not name the {field} it is for; sign with a trusted \
         comment that has {field}:{ordered}, or set trust.binding (its trusted comment is \
         {comment})"
    )]
    Unbound {
        /// The key that signed.
        key: KeyId,
        /// What is missing.
        field: &'static str,
        /// What was ordered.
        ordered: String,
        /// The trusted comment, escaped.
        comment: String,
    },
    /// The trusted comment names another plugin or revision than the order.
    #[error(
        "the signature by key {key} is for another {field} than {ordered}, which was ordered (its \
         trusted comment is {comment})"
    )]
    Other {
        /// The key that signed.
        key: KeyId,
        /// What differs.
        field: &'static str,
        /// What was ordered.
        ordered: String,
        /// The trusted comment, escaped.
        comment: String,
    },
}

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

/// The disk is too full.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} has {} bytes left, but {needed} more are needed; free {} bytes and order again",
    place.display(), left(*available), needed.saturating_sub(available.unwrap_or(0)).max(1)
)]
pub struct SpaceError {
    pub place: PathBuf,
    /// Bytes that are needed at least.
    pub needed: u64,
    /// Bytes that were left, where the file system said.
    pub available: Option<u64>,
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

// === impl FetchError ===

impl FetchError {
    /// Whether the same request may succeed a little later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Request { source, .. } => !source.is_builder(),
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            Self::Broken { .. } | Self::Short { .. } | Self::Timeout { .. } => true,
            Self::Url { .. }
            | Self::Client { .. }
            | Self::NoAuthorities { .. }
            | Self::Redirect { .. }
            | Self::TooLarge { .. }
            | Self::File { .. }
            | Self::NotAFile { .. } => false,
        }
    }

    /// Whether the archive does not exist: the server answered 404 or 410, or the file system has
    /// no such file.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status, 404 | 410),
            Self::File { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    /// How long the server asked the agent to wait, from `Retry-After`.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
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

fn hint(status: u16) -> &'static str {
    match status {
        401 | 403 => "; a signed URL may have expired",
        404 | 410 => "; the archive does not exist",
        _ => "",
    }
}

fn of(total: Option<u64>) -> String {
    total.map(|total| format!(" of {total}")).unwrap_or_default()
}

fn left(available: Option<u64>) -> String {
    available.map_or_else(|| "too few".to_owned(), |bytes| bytes.to_string())
}

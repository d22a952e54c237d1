//! Why an archive could not be fetched, or the bytes that arrived could not be used.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::ports::Unused;

use crate::install::download::redirect::Misdirection;

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

/// Why the content coding of an archive could not be undone. The archive is then downloaded in a
/// simpler form.
#[derive(Debug, thiserror::Error)]
pub enum CodingError {
    /// A delta does not begin as RFC 9842 says.
    #[error("it does not begin as a delta does")]
    Header,
    /// A delta belongs to another dictionary.
    #[error("it was made for another archive than {offered}, which the agent offered")]
    OtherDictionary {
        /// The checksum of the archive that was offered.
        offered: Sha256Digest,
    },
    /// The archive in the cache that was offered cannot be used.
    #[error("the archive {} of the cache cannot be used", path.display())]
    Dictionary {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It asks for more memory than it may.
    #[error("it needs {wanted} bytes of memory to be expanded, and {limit} are allowed")]
    Window { wanted: u64, limit: u64 },
    /// Other installations use the memory at the moment.
    #[error("other installations use the memory for expanding archives ({wanted} bytes)")]
    Taken { wanted: u64 },
    /// It is not a stream of zstd.
    #[error("its compressed bytes are damaged")]
    Damaged {
        #[source]
        source: io::Error,
    },
    /// It ends in the middle of a frame.
    #[error("its compressed bytes end early")]
    Unfinished,
    /// What comes out of it is larger than an archive may be.
    #[error("it expands to more than the {limit} bytes that an archive may have")]
    TooLarge { limit: u64 },
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

// === impl CodingError ===

impl CodingError {
    /// The reason, for counts and for people.
    pub(in crate::install) fn reason(&self) -> Unused {
        match self {
            Self::Header | Self::Damaged { .. } | Self::Unfinished => Unused::Damaged,
            Self::OtherDictionary { .. } => Unused::OtherDictionary,
            Self::Dictionary { .. } => Unused::NoDictionary,
            Self::Window { .. } | Self::Taken { .. } | Self::TooLarge { .. } => Unused::TooLarge,
        }
    }
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

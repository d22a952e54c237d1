//! Why an archive could not be signed, or its signature is not accepted.

use std::io;
use std::path::PathBuf;

use crate::config::trust_key::KeyId;

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

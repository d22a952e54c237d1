//! Signed tokens of issuers (JWT, RS256 or ES256): their keys, and the check of one token.
//!
//! Agents are admitted by such tokens, and people log in by them.

pub(crate) mod keys;
pub(crate) mod source;
pub(crate) mod verify;

pub use keys::KeysError;
pub use source::KeySource;
pub use verify::GOOGLE_AUDIENCE;

//! How an archive is compressed, and why.
//!
//! A fleet's server sends archives compressed, and to agents that have a former revision as what
//! changed since then. It can do neither with an archive that is compressed already.

use std::path::Path;

use super::document::Compression as Said;
use crate::install::pack::Compression;

/// A compression, and the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The compression.
    pub compression: Compression,
    /// The reason, as the end of a sentence.
    pub why: &'static str,
}

const OF_FLEET: &str = "since a fleet's server sends it compressed, and upgrades as what changed; \
                        for another server: --for any";
const OF_ANY: &str = "since a server that sends files as they are would send all of it";

// === impl Chosen ===

impl Chosen {
    /// What a flag asks for.
    #[must_use]
    pub const fn asked(compression: Compression) -> Self {
        Self { compression, why: "as --zstd asks for" }
    }

    /// For the artifact server of a fleet.
    #[must_use]
    pub const fn for_fleet() -> Self {
        Self { compression: Compression::None, why: OF_FLEET }
    }

    /// For a server that sends files as they are, a bucket, or a disk.
    #[must_use]
    pub const fn for_any() -> Self {
        Self { compression: Compression::Gzip, why: OF_ANY }
    }

    /// For a member of a bundle.
    #[must_use]
    pub const fn for_bundle() -> Self {
        Self { compression: Compression::Gzip, why: "since a bundle travels as it is" }
    }

    /// What the manifest says.
    #[must_use]
    pub(super) const fn said(said: Said) -> Self {
        let compression = match said {
            Said::None => Compression::None,
            Said::Gzip => Compression::Gzip,
            Said::Zstd => Compression::Zstd,
        };
        Self { compression, why: "as plugin.toml says" }
    }

    /// What the end of a file's name stands for; without one, it is for a fleet.
    #[must_use]
    pub fn by_name(file: &Path) -> Self {
        let name = file.to_string_lossy().to_ascii_lowercase();
        let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
        if ends(&[".gz", ".tgz"]) {
            let why = "as the name of the file says; for a fleet: --for fleet";
            return Self { compression: Compression::Gzip, why };
        }
        if ends(&[".zst", ".tzst"]) {
            return Self { compression: Compression::Zstd, why: "as the name of the file says" };
        }
        Self::for_fleet()
    }
}

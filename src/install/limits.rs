//! The limits of an archive.
//!
//! The limits are checked while an archive streams in: the first one that is exceeded ends the
//! installation, so a decompression bomb costs no more than its limit. `transfer`, `limits_reader`,
//! `unpack` and `member` read them.

/// Limits of one archive. An archive that exceeds one is refused with an error that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the archive as it is transferred.
    pub archive_bytes: u64,
    /// Bytes of the tar stream in it, padding included.
    pub expanded_bytes: u64,
    /// Most expanded bytes for one transferred byte.
    pub ratio: u64,
    /// The ratio is checked only after this many expanded bytes, because the first few kilobytes of
    /// a tar stream compress extremely well.
    pub ratio_from_bytes: u64,
    /// Members, the directories that their paths imply included.
    pub entries: u64,
    /// Bytes of a member's path.
    pub path_bytes: usize,
    /// Bytes of one name in a path.
    pub component_bytes: usize,
    /// Names in a path.
    pub depth: usize,
    /// Bytes of headers before one member: long names, extended attributes. The parser holds them
    /// in memory, so this bounds that memory, too.
    pub header_bytes: u64,
    /// Bytes of the paths and targets of all symbolic links together. They are made last and are
    /// held in memory until then.
    pub symlink_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: u64 = 1 << 20;
        Self {
            archive_bytes: 4096 * MIB,
            expanded_bytes: 4096 * MIB,
            ratio: 1000,
            ratio_from_bytes: MIB,
            entries: 100_000,
            path_bytes: 4096,
            component_bytes: 255,
            depth: 128,
            header_bytes: MIB,
            symlink_bytes: 8 << 20,
        }
    }
}

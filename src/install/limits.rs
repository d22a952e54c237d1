//! The limits of an archive.
//!
//! An archive is judged while it streams by: the first limit that is passed ends the installation,
//! so a bomb costs no more than its limit. Read by `transfer`, `limits_reader`, `unpack` and
//! `member`.

/// Bounds of one archive. Whatever is over is refused with an error that names the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the archive as it is transferred.
    pub archive_bytes: u64,
    /// Bytes of the tar stream inside, padding included.
    pub expanded_bytes: u64,
    /// How many bytes one transferred byte may become.
    pub ratio: u64,
    /// The ratio is judged only after this many expanded bytes, because the first few kilobytes of
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
    /// Bytes of headers that stand before one member: long names, extended attributes. They are
    /// held in memory, so this is also a bound on that.
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

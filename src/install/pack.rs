//! Makes an archive of a folder that is the same, byte for byte, whenever the files are the same.
//!
//! Members are sorted; times, owners and every mode bit but "executable" are left out. Files that
//! an agent would not install are refused here already. The `pack` verb calls this; it blocks.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use guest_agent_actors::model::id::Sha256Digest;
use sha2::{Digest, Sha256};
use tokio_tar::{EntryType, Header};

use super::error::PackError;
use super::limits::Limits;
use crate::install::unpack::member::{MemberPath, Symlinks};

mod choice;

pub use choice::Choice;

/// The higher levels make an archive of programs a few percent smaller and take twenty times as
/// long.
const ZSTD_LEVEL: i32 = 9;

/// How an archive is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all: a fleet's server sends it compressed, or as what changed since the former archive.
    None,
    /// Every tool reads it.
    Gzip,
    /// Smaller, and several times faster to unpack.
    Zstd,
}

/// An archive that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Its SHA-256, as an order needs it.
    pub sha256: Sha256Digest,
    /// Its size in bytes.
    pub bytes: u64,
    /// The number of its members.
    pub entries: u64,
}

/// Packs the content of `dir` into the file `out`, which appears only when it is complete.
///
/// # Errors
/// A file cannot be read or written, or an agent would not install it.
pub fn pack(dir: &Path, out: &Path, compression: Compression) -> Result<Packed, PackError> {
    pack_chosen(dir, out, compression, &Choice::default())
}

/// Like [`pack`], with the chosen files alone.
///
/// # Errors
/// A file cannot be read or written, or an agent would not install it.
pub fn pack_chosen(
    dir: &Path,
    out: &Path,
    compression: Compression,
    choice: &Choice,
) -> Result<Packed, PackError> {
    let unwritable = |source| PackError::Write { path: out.to_owned(), source };
    let parent = match out.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    refuse_output_inside(dir, parent, out)?;
    let members = collect(dir, choice)?;
    let file = tempfile::NamedTempFile::new_in(parent).map_err(unwritable)?;
    let mut archive = Encoder::new(file, compression).map_err(unwritable)?;
    for (path, member) in &members {
        member.write(path, &mut archive).map_err(|error| error.of(out))?;
    }
    // Two empty blocks mark the end.
    archive.write_all(&[0; 1024]).map_err(unwritable)?;
    let Hashed { inner: file, digest, bytes } = archive.finish().map_err(unwritable)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o644)).map_err(unwritable)?;
    file.persist(out).map_err(|error| unwritable(error.error))?;
    let sha256 = Sha256Digest::from_bytes(digest.finalize().into());
    Ok(Packed { sha256, bytes, entries: members.len() as u64 })
}

/// A member for the archive.
#[derive(Debug)]
enum Member {
    Folder,
    File { source: PathBuf },
    Symlink { target: String },
}

/// The error of writing a member: of the file that is read, or of the archive.
enum WriteError {
    Source(PackError),
    Archive(io::Error),
}

/// Compresses the bytes that are written to it.
enum Encoder<W: Write> {
    Plain(Hashed<W>),
    Gzip(flate2::write::GzEncoder<Hashed<W>>),
    Zstd(zstd::stream::write::Encoder<'static, Hashed<W>>),
}

/// Hashes and counts the bytes that are written through it.
struct Hashed<W> {
    inner: W,
    digest: Sha256,
    bytes: u64,
}

// === impl Member ===

impl Member {
    fn write<W: Write>(&self, path: &str, archive: &mut Encoder<W>) -> Result<(), WriteError> {
        match self {
            Self::Folder => {
                header(archive, EntryType::Directory, &format!("{path}/"), "", 0o755, 0)?;
            }
            Self::Symlink { target } => {
                header(archive, EntryType::Symlink, path, target, 0o777, 0)?;
            }
            Self::File { source } => {
                let (file, found) = open(source).map_err(WriteError::Source)?;
                let size = found.len();
                let mode = if found.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 };
                header(archive, EntryType::Regular, path, "", mode, size)?;
                copy_exactly(file, size, source, archive)?;
                pad(archive, size)?;
            }
        }
        Ok(())
    }
}

// === impl WriteError ===

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::Archive(error)
    }
}

impl WriteError {
    fn of(self, out: &Path) -> PackError {
        match self {
            Self::Source(error) => error,
            Self::Archive(source) => PackError::Write { path: out.to_owned(), source },
        }
    }
}

// === impl Encoder ===

impl<W: Write> Encoder<W> {
    fn new(inner: W, compression: Compression) -> io::Result<Self> {
        let hashed = Hashed { inner, digest: Sha256::new(), bytes: 0 };
        Ok(match compression {
            Compression::None => Self::Plain(hashed),
            Compression::Gzip => {
                let level = flate2::Compression::best();
                Self::Gzip(flate2::GzBuilder::new().mtime(0).write(hashed, level))
            }
            Compression::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(hashed, ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                Self::Zstd(encoder)
            }
        })
    }

    fn finish(self) -> io::Result<Hashed<W>> {
        match self {
            Self::Plain(hashed) => Ok(hashed),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(hashed) => hashed.write(bytes),
            Self::Gzip(encoder) => encoder.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(hashed) => hashed.flush(),
            Self::Gzip(encoder) => encoder.flush(),
            Self::Zstd(encoder) => encoder.flush(),
        }
    }
}

// === impl Hashed ===

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let amount = self.inner.write(bytes)?;
        self.digest.update(&bytes[..amount]);
        self.bytes = self.bytes.saturating_add(amount as u64);
        Ok(amount)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Everything below `dir`, sorted by path.
fn collect(dir: &Path, choice: &Choice) -> Result<BTreeMap<String, Member>, PackError> {
    let limits = Limits::default();
    let mut members = BTreeMap::new();
    let mut links = Symlinks::default();
    let mut folders = vec![(dir.to_owned(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        let unreadable = |source| PackError::Read { path: folder.clone(), source };
        for entry in fs::read_dir(&folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let source = entry.path();
            let name = entry.file_name();
            let name = name.to_str().ok_or_else(|| PackError::Name { path: source.clone() })?;
            let path = format!("{prefix}{name}");
            if choice.leaves_out(&path) {
                continue;
            }
            let refused = |error| PackError::Refused { path: source.clone(), source: error };
            let parsed = MemberPath::parse(path.as_bytes(), &limits).map_err(refused)?;
            let kind = entry
                .file_type()
                .map_err(|error| PackError::Read { path: source.clone(), source: error })?;
            if !kind.is_dir() && !choice.takes(&path) {
                continue;
            }
            let member = if kind.is_dir() {
                folders.push((source, format!("{path}/")));
                Member::Folder
            } else if kind.is_file() {
                Member::File { source }
            } else if kind.is_symlink() {
                let target = fs::read_link(&source)
                    .map_err(|error| PackError::Read { path: source.clone(), source: error })?;
                links.add(parsed, target.as_os_str().as_bytes(), &limits).map_err(refused)?;
                let target = target.into_os_string().into_string();
                Member::Symlink { target: target.map_err(|_| PackError::Name { path: source })? }
            } else {
                let kind = special(&kind);
                return Err(PackError::Special { path: source, kind });
            };
            members.insert(path, member);
        }
    }
    if !choice.takes_all() {
        drop_empty_folders(&mut members);
    }
    links.check_all().map_err(|source| PackError::Refused { path: dir.to_owned(), source })?;
    Ok(members)
}

/// Drops folders that nothing chosen is in.
fn drop_empty_folders(members: &mut BTreeMap<String, Member>) {
    let mut needed = std::collections::BTreeSet::new();
    for path in members.iter().filter(|(_, it)| !matches!(it, Member::Folder)).map(|(path, _)| path)
    {
        let ends = path.char_indices().filter(|(_, letter)| *letter == '/').map(|(at, _)| at);
        needed.extend(ends.map(|end| path[..end].to_owned()));
    }
    members.retain(|path, member| !matches!(member, Member::Folder) || needed.contains(path));
}

fn special(kind: &fs::FileType) -> &'static str {
    if kind.is_fifo() {
        "named pipe"
    } else if kind.is_socket() {
        "socket"
    } else if kind.is_block_device() {
        "block device"
    } else if kind.is_char_device() {
        "character device"
    } else {
        "file of unknown type"
    }
}

fn refuse_output_inside(dir: &Path, parent: &Path, out: &Path) -> Result<(), PackError> {
    let real = |path: &Path| {
        fs::canonicalize(path).map_err(|source| PackError::Read { path: path.to_owned(), source })
    };
    if real(parent)?.starts_with(real(dir)?) {
        return Err(PackError::OutputInside { path: out.to_owned() });
    }
    Ok(())
}

/// Opens a file that was a regular file a moment ago, and checks that it still is.
fn open(source: &Path) -> Result<(File, Metadata), PackError> {
    let unreadable = |error| PackError::Read { path: source.to_owned(), source: error };
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).expect("open flags fit into an int");
    let file = File::options().read(true).custom_flags(flags).open(source).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?;
    if !found.is_file() {
        return Err(PackError::Changed { path: source.to_owned() });
    }
    Ok((file, found))
}

fn copy_exactly<W: Write>(
    mut file: File,
    size: u64,
    source: &Path,
    archive: &mut Encoder<W>,
) -> Result<(), WriteError> {
    let changed = || WriteError::Source(PackError::Changed { path: source.to_owned() });
    let mut buffer = vec![0; 128 * 1024];
    let mut left = size;
    loop {
        let amount = match file.read(&mut buffer) {
            Ok(amount) => amount,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let path = source.to_owned();
                return Err(WriteError::Source(PackError::Read { path, source: error }));
            }
        };
        if amount == 0 {
            return if left == 0 { Ok(()) } else { Err(changed()) };
        }
        left = left.checked_sub(amount as u64).ok_or_else(changed)?;
        archive.write_all(&buffer[..amount])?;
    }
}

fn header<W: Write>(
    archive: &mut Encoder<W>,
    kind: EntryType,
    path: &str,
    target: &str,
    mode: u32,
    size: u64,
) -> io::Result<()> {
    long_name(archive, EntryType::GNULongName, path)?;
    long_name(archive, EntryType::GNULongLink, target)?;
    let mut header = Header::new_gnu();
    let fields = header.as_old_mut();
    fill(&mut fields.name, path);
    fill(&mut fields.linkname, target);
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    archive.write_all(header.as_bytes())
}

/// A member of its own for a name that does not fit into a header.
fn long_name<W: Write>(archive: &mut Encoder<W>, kind: EntryType, name: &str) -> io::Result<()> {
    const ROOM: usize = 100;
    if name.len() <= ROOM {
        return Ok(());
    }
    let size = name.len() as u64 + 1;
    let mut header = Header::new_gnu();
    fill(&mut header.as_old_mut().name, "././@LongLink");
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    archive.write_all(header.as_bytes())?;
    archive.write_all(name.as_bytes())?;
    archive.write_all(&[0])?;
    pad(archive, size)
}

fn fill(field: &mut [u8; 100], text: &str) {
    let amount = text.len().min(field.len());
    field[..amount].copy_from_slice(&text.as_bytes()[..amount]);
}

fn pad<W: Write>(archive: &mut Encoder<W>, size: u64) -> io::Result<()> {
    const BLOCK: usize = 512;
    let over = usize::try_from(size % BLOCK as u64).unwrap_or(0);
    archive.write_all(&[0; BLOCK][..(BLOCK - over) % BLOCK])
}

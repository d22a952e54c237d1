//! One file with everything that installing a plugin takes: the order, the signature and the
//! archive.
//!
//! ```text
//! guest-agent-bundle-1/manifest.json      a ConfigurePlugin in JSON, without a URL
//! guest-agent-bundle-1/archive.minisig    if it is signed
//! guest-agent-bundle-1/archive            what the order's checksum is of
//! ```
//!
//! A plain tar with these members in this order, so that any tar shows what is in it. It is read
//! strictly and once: only the format that `pack` writes is accepted, and only the two small
//! members are ever in memory. The command line reads bundles; an agent gets the parts. Reading
//! blocks.

use std::fs::{self, File};
use std::io::{self, Read, Take, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::limits::Limits;
use super::trust::{self, SIGNATURE_MAX};

const MANIFEST: &str = "guest-agent-bundle-1/manifest.json";
const SIGNATURE: &str = "guest-agent-bundle-1/archive.minisig";
const ARCHIVE: &str = "guest-agent-bundle-1/archive";

/// The beginning of the first member in every version of this format.
const ANY_VERSION: &[u8] = b"guest-agent-bundle-";

/// Most bytes of an order.
const MANIFEST_MAX: u64 = 1 << 20;

const BLOCK: usize = 512;

/// The largest size that eleven octal digits can say.
const SIZE_MAX: u64 = (1 << 33) - 1;

/// A bundle that was read up to the beginning of its archive.
#[derive(Debug)]
pub struct Bundle<R> {
    /// The order, as text.
    pub manifest: String,
    /// The signature of the archive. It has the form of a signature; nobody has verified it yet.
    pub signature: Option<Vec<u8>>,
    /// The archive. Ends early when the bundle does.
    pub archive: Take<R>,
}

/// Why a file is not a bundle that can be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It cannot be read, or ends early.
    #[error("cannot read the bundle")]
    Read(#[source] io::Error),
    /// A header is not one that `pack` writes.
    #[error("the bundle is damaged: {0}")]
    Damaged(&'static str),
    /// A later version made it.
    #[error("the bundle has a newer format; install it with a newer guest-agent")]
    Version,
    /// A member is larger than it can be.
    #[error("{member} in the bundle has {bytes} bytes; the limit is {most}")]
    TooLarge {
        member: &'static str,
        /// The size that its header states.
        bytes: u64,
        /// The largest size that it may have.
        most: u64,
    },
    /// The bundle's signature does not have the form of a minisign signature.
    #[error("the signature in the bundle is not a minisign signature: {0}")]
    Signature(&'static str),
    /// It cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A member's header.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    member: &'static str,
    bytes: u64,
}

// === impl Bundle ===

impl Bundle<File> {
    /// Opens a bundle; `None` if the file is not a bundle.
    ///
    /// # Errors
    /// It is a bundle and cannot be used.
    pub fn open(path: &Path) -> Result<Option<Self>, BundleError> {
        let mut file = File::open(path).map_err(BundleError::Read)?;
        let mut start = Vec::new();
        (&mut file)
            .take(ANY_VERSION.len() as u64)
            .read_to_end(&mut start)
            .map_err(BundleError::Read)?;
        if start != ANY_VERSION {
            return Ok(None);
        }
        io::Seek::rewind(&mut file).map_err(BundleError::Read)?;
        Self::read(file).map(Some)
    }
}

impl<R: Read> Bundle<R> {
    /// Reads a bundle up to its archive.
    ///
    /// # Errors
    /// It is damaged, or larger than a bundle can be.
    pub fn read(mut from: R) -> Result<Self, BundleError> {
        let first = head(&mut from)?;
        if first.member != MANIFEST {
            return Err(BundleError::Damaged("it does not begin with an order"));
        }
        let manifest = small(&mut from, &first, MANIFEST_MAX)?;
        let manifest = String::from_utf8(manifest)
            .map_err(|_| BundleError::Damaged("its order is not text in UTF-8"))?;
        let mut next = head(&mut from)?;
        let mut signature = None;
        if next.member == SIGNATURE {
            let bytes = small(&mut from, &next, SIGNATURE_MAX as u64)?;
            trust::check_signature(&bytes).map_err(BundleError::Signature)?;
            signature = Some(bytes);
            next = head(&mut from)?;
        }
        if next.member != ARCHIVE {
            return Err(BundleError::Damaged("its members are not in their order"));
        }
        let most = Limits::default().archive_bytes;
        if next.bytes > most {
            return Err(BundleError::TooLarge { member: ARCHIVE, bytes: next.bytes, most });
        }
        Ok(Self { manifest, signature, archive: from.take(next.bytes) })
    }

    /// How many bytes of the archive remain to be read.
    pub fn archive_bytes(&self) -> u64 {
        self.archive.limit()
    }
}

/// Writes a bundle, which appears only when it is complete.
///
/// # Errors
/// The archive cannot be read, is too large, or the bundle cannot be written.
pub fn write(
    out: &Path,
    manifest: &str,
    signature: Option<&str>,
    archive: &Path,
) -> Result<(), BundleError> {
    let unwritable = |source| BundleError::Write { path: out.to_owned(), source };
    let parent = match out.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut packed = File::open(archive).map_err(BundleError::Read)?;
    let bytes = packed.metadata().map_err(BundleError::Read)?.len();
    if bytes > SIZE_MAX {
        return Err(BundleError::TooLarge { member: ARCHIVE, bytes, most: SIZE_MAX });
    }
    let mut file = tempfile::NamedTempFile::new_in(parent).map_err(unwritable)?;
    let mut small = vec![(MANIFEST, manifest)];
    small.extend(signature.map(|text| (SIGNATURE, text)));
    let fill = || {
        for (member, text) in small {
            file.write_all(&header(member, text.len() as u64))?;
            file.write_all(text.as_bytes())?;
            file.write_all(&padding(text.len() as u64))?;
        }
        file.write_all(&header(ARCHIVE, bytes))?;
        let copied = io::copy(&mut (&mut packed).take(bytes), &mut file)?;
        if copied != bytes {
            return Err(io::Error::other("the archive changed while it was copied"));
        }
        file.write_all(&padding(bytes))?;
        // The end marker.
        file.write_all(&[0; 2 * BLOCK])?;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644))
    };
    fill().map_err(unwritable)?;
    file.persist(out).map_err(|error| unwritable(error.error))?;
    Ok(())
}

/// The next member's header.
fn head(from: &mut impl Read) -> Result<Head, BundleError> {
    let mut block = [0; BLOCK];
    from.read_exact(&mut block).map_err(ended)?;
    let name = block[..100].split(|byte| *byte == 0).next().unwrap_or_default();
    let known = [MANIFEST, SIGNATURE, ARCHIVE];
    let Some(member) = known.into_iter().find(|known| known.as_bytes() == name) else {
        return Err(
            if name.starts_with(ANY_VERSION) && !name.starts_with(b"guest-agent-bundle-1/") {
                BundleError::Version
            } else {
                BundleError::Damaged("it has a member that does not belong there")
            },
        );
    };
    let bytes = octal(&block[124..136]).ok_or(BundleError::Damaged("a size is not a number"))?;
    // `pack` always writes the same header for a member of this size. A header with a link, another
    // mode or a long name is therefore damaged.
    if block != header(member, bytes) {
        return Err(BundleError::Damaged("a header was changed"));
    }
    Ok(Head { member, bytes })
}

/// The content of a small member.
fn small(from: &mut impl Read, head: &Head, most: u64) -> Result<Vec<u8>, BundleError> {
    let Head { member, bytes } = *head;
    if bytes > most {
        return Err(BundleError::TooLarge { member, bytes, most });
    }
    let mut content = Vec::new();
    from.take(bytes).read_to_end(&mut content).map_err(BundleError::Read)?;
    if content.len() as u64 != bytes {
        return Err(ended(io::ErrorKind::UnexpectedEof.into()));
    }
    let mut rest = padding(bytes);
    from.read_exact(&mut rest).map_err(ended)?;
    Ok(content)
}

fn ended(error: io::Error) -> BundleError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            BundleError::Damaged("it ends early; it was probably not copied completely")
        }
        _ => BundleError::Read(error),
    }
}

fn header(member: &str, bytes: u64) -> [u8; BLOCK] {
    let mut header = tokio_tar::Header::new_gnu();
    let name = &mut header.as_old_mut().name;
    name[..member.len()].copy_from_slice(member.as_bytes());
    header.set_entry_type(tokio_tar::EntryType::Regular);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(bytes);
    header.set_cksum();
    *header.as_bytes()
}

fn padding(bytes: u64) -> Vec<u8> {
    let over = usize::try_from(bytes % BLOCK as u64).unwrap_or(0);
    vec![0; (BLOCK - over) % BLOCK]
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_end_matches(['\0', ' ']), 8).ok()
}

#[cfg(test)]
mod tests;

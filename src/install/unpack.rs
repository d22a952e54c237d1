//! Reads an archive while it arrives and writes its members into a [`Tree`].
//!
//! ```text
//! Source ─► [WindowGate] ─► gzip | zstd | xz | nothing ─► DecoderThread ─► LimitsReader
//!        ─► tokio-tar ─► one member at a time ─► Tree
//!           (a thread of its own)
//! ```
//!
//! Regular files, folders, symbolic and hard links that stay inside are unpacked; an archive with
//! any other member is refused. A later file replaces an earlier one of the same name; symbolic
//! links are made last, so that nothing is ever written through one. Modes keep only `rwxr-xr-x`;
//! files keep their time, owners are ignored. `transfer` runs this on the installation's thread.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use guest_agent_actors::model::spec::EntryPoint;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_tar::{Archive, Entry, EntryType};

use super::error::{SpaceError, UnpackError};
use super::limits::Limits;
use super::window_budget::Hold;
use crate::install::unpack::decoder_thread::{DecoderThread, Windows};
use crate::install::unpack::format::Format;
use crate::install::unpack::limits_reader::{LimitsReader, Meter, Piece, Source, block_on};
use crate::install::unpack::member::{MemberPath, Symlinks, escaped, link_error};
use crate::install::unpack::tree::{Obstacle, Tree, is_file};
use crate::install::unpack::window_header::XZ_HEADERS_MAX;

pub(crate) mod decoder_thread;
pub(crate) mod early_flush;
pub(crate) mod format;
pub(crate) mod limits_reader;
pub(crate) mod member;
pub(crate) mod tree;
pub(crate) mod window_gate;
pub(crate) mod window_header;
pub(crate) mod write_out;

/// The block size of tar.
const BLOCK_BYTES: u64 = 512;

/// The first bytes tell compressions apart; a tar header has one block.
const PEEK_BYTES: usize = 512;

/// Content is written in pieces of this size. Pieces that arrive do not end at pages; the kernel
/// writes whole pages faster.
const COPY_BYTES: usize = 256 * 1024;

/// The target folder and the rules for unpacking.
pub(super) struct Unpacking<'a> {
    pub(super) tree: &'a mut Tree,
    /// The path of the folder, for errors.
    pub(super) place: PathBuf,
    pub(super) entry_point: &'a EntryPoint,
    pub(super) limits: &'a Limits,
    /// The memory that the decoder may use for its window.
    pub(super) windows: Arc<Hold>,
    /// Whether the installation was cancelled.
    pub(super) is_cancelled: &'a dyn Fn() -> bool,
}

type Stream = LimitsReader<DecoderThread>;

// === impl Unpacking ===

impl Unpacking<'_> {
    /// Unpacks the bytes from the channel. Returns when all bytes are read and written, and the
    /// download has reported that the checksum is right.
    pub(super) fn run(self, pieces: mpsc::Receiver<Piece>) -> Result<(), UnpackError> {
        let mut source = Source::new(pieces);
        // Only the download is still missing.
        let abandoned = |_| UnpackError::Abandoned;
        let format = Format::of(block_on(source.peek(PEEK_BYTES)).map_err(abandoned)?)?;
        let mut of_xz = 0;
        if format == Format::Xz {
            let start = block_on(source.peek(XZ_HEADERS_MAX)).map_err(abandoned)?;
            of_xz = window_header::xz_window(start).unwrap_or_default();
            if of_xz > 0 {
                self.windows.grow(of_xz)?;
            }
        }
        let windows = Windows { hold: Arc::clone(&self.windows), of_xz };
        let meter = Meter::new(*self.limits);
        std::thread::scope(|scope| {
            let (ahead, expanding) =
                DecoderThread::begin(scope, format, source, Rc::clone(&meter), windows)
                    .map_err(|source| UnpackError::Thread { source })?;
            let unpacked = block_on(self.unpack(ahead, format, meter));
            // Its receiver is dropped, so the thread ends at once; a panic of it is a bug of the
            // agent.
            drop(expanding.join());
            unpacked
        })
    }

    async fn unpack(
        mut self,
        ahead: DecoderThread,
        format: Format,
        meter: Rc<Meter>,
    ) -> Result<(), UnpackError> {
        let stream = LimitsReader::new(ahead, Rc::clone(&meter));
        let mut archive = Archive::new(stream);
        let (links, count) = self.members(&mut archive, &meter, format).await?;
        if meter.is_at_end() {
            return Err(UnpackError::NoEndMarker);
        }
        let Ok(rest) = archive.into_inner() else {
            unreachable!("the only other owner was the iteration, which has ended");
        };
        drain(rest, &meter, format).await?;
        links.check_all()?;
        for (path, target) in links.iter() {
            if (self.is_cancelled)() {
                return Err(UnpackError::Abandoned);
            }
            self.tree.symlink(path, target).map_err(|obstacle| self.blame(path, obstacle, 0))?;
            // They may be in folders that do not exist yet.
            self.check_count(count)?;
        }
        self.check_entry_point(&links)
    }

    async fn members(
        &mut self,
        archive: &mut Archive<Stream>,
        meter: &Meter,
        format: Format,
    ) -> Result<(Symlinks, u64), UnpackError> {
        let explain = |error| meter.explain(format.name(), error);
        let mut links = Symlinks::default();
        let mut buffer = vec![0; COPY_BYTES];
        let mut count: u64 = 0;
        let mut end_of_last: u64 = 0;
        let mut entries = archive.entries().map_err(explain)?;
        loop {
            if (self.is_cancelled)() {
                return Err(UnpackError::Abandoned);
            }
            meter.expect_headers();
            let Some(entry) = entries.next().await else { return Ok((links, count)) };
            let mut entry = entry.map_err(explain)?;
            let kind = entry.header().entry_type();
            let is_alone = entry.raw_header_position() == end_of_last;
            let blocks = entry.effective_size().div_ceil(BLOCK_BYTES);
            end_of_last =
                entry.raw_file_position().saturating_add(blocks.saturating_mul(BLOCK_BYTES));
            if kind == EntryType::XGlobalHeader {
                // The parser would apply the extension before this member, such as the name of the
                // next member, to this one, and then forget it.
                if !is_alone {
                    let member = escaped(&entry.header().path_bytes());
                    let kind = "global header between a member and its own headers".to_owned();
                    return Err(UnpackError::Kind { member, kind });
                }
                // Its content counts as a header, so the parser has the same limit for it.
                check_global(&mut entry).await.map_err(explain)??;
            } else {
                meter.expect_content();
                self.member(&mut entry, kind, &mut links, &mut buffer, meter, format).await?;
            }
            count += 1;
            self.check_count(count)?;
        }
    }

    /// Whether there are too many members, implied folders included.
    fn check_count(&self, members: u64) -> Result<(), UnpackError> {
        let limit = self.limits.entries;
        if members.saturating_add(self.tree.implied()) > limit {
            return Err(UnpackError::Limit { what: "members", limit });
        }
        Ok(())
    }

    async fn member(
        &mut self,
        entry: &mut Entry<Archive<Stream>>,
        kind: EntryType,
        links: &mut Symlinks,
        buffer: &mut [u8],
        meter: &Meter,
        format: Format,
    ) -> Result<(), UnpackError> {
        let explain = |error| meter.explain(format.name(), error);
        let raw = entry.path_bytes().map_err(explain)?.into_owned();
        let wrong = |reason| UnpackError::Name { member: escaped(&raw), reason };
        let refused = |kind: String| UnpackError::Kind { member: escaped(&raw), kind };
        if let Some(kind) = forbidden(kind) {
            return Err(refused(kind));
        }
        if is_sparse(entry).await.map_err(explain)? {
            return Err(refused("sparse file".to_owned()));
        }
        if !is_size_unambiguous(entry.header().as_bytes()) {
            return Err(wrong("has a size that is negative or too large for some tar readers"));
        }
        let path = MemberPath::parse(&raw, self.limits)?;
        if path.is_root() && kind != EntryType::Directory {
            return Err(wrong("has no name"));
        }
        if kind == EntryType::Regular {
            // Very old archives mark a folder like this; other readers disagree about it, so it is
            // refused.
            if raw.ends_with(b"/") {
                return Err(wrong("is a file, but its name ends with a slash"));
            }
            return self.file(entry, &path, buffer, meter, format).await;
        }
        if entry.effective_size() > 0 {
            return Err(wrong("is a folder or link, but has content"));
        }
        if kind == EntryType::Directory {
            // The root exists already, and the agent chooses its mode.
            if path.is_root() {
                return Ok(());
            }
            let mode = entry.header().mode().map_err(explain)?;
            return self
                .tree
                .make_folder(&path, mode)
                .map_err(|obstacle| self.blame(&path, obstacle, 0));
        }
        let target = entry.link_name_bytes().map_err(explain)?.unwrap_or_default().into_owned();
        if kind == EntryType::Symlink {
            return links.add(path, &target, self.limits);
        }
        let wrong = |reason| link_error("hard link", &path, &target, reason);
        let Ok(inside) = MemberPath::parse(&target, self.limits) else {
            return Err(wrong("is not a path inside the archive"));
        };
        match self.tree.hard_link(&path, &inside) {
            Err(Obstacle::NoSuchFile) => Err(wrong("is not a regular file earlier in the archive")),
            result => result.map_err(|obstacle| self.blame(&path, obstacle, 0)),
        }
    }

    async fn file(
        &mut self,
        entry: &mut Entry<Archive<Stream>>,
        path: &MemberPath,
        buffer: &mut [u8],
        meter: &Meter,
        format: Format,
    ) -> Result<(), UnpackError> {
        let explain = |error| meter.explain(format.name(), error);
        let mode = entry.header().mode().map_err(explain)?;
        let mtime = entry.header().mtime().map_err(explain)?;
        let mut left = entry.effective_size();
        let mut file =
            self.tree.make_file(path, left).map_err(|obstacle| self.blame(path, obstacle, left))?;
        loop {
            let amount = fill(entry, buffer).await.map_err(explain)?;
            if amount == 0 {
                break;
            }
            if (self.is_cancelled)() {
                return Err(UnpackError::Abandoned);
            }
            self.tree
                .write(&mut file, &buffer[..amount])
                .map_err(|error| self.blame(path, Obstacle::Io(error), left))?;
            left = left.saturating_sub(amount as u64);
        }
        self.tree
            .finish_file(file, mode, mtime)
            .map_err(|error| self.blame(path, Obstacle::Io(error), 0))
    }

    fn check_entry_point(&self, links: &Symlinks) -> Result<(), UnpackError> {
        let path = self.entry_point.as_str();
        let wrong = |found: String| Err(UnpackError::EntryPoint { path: path.to_owned(), found });
        let Ok(end) = links.resolve(path) else {
            return wrong("is a link without a target".to_owned());
        };
        match self.tree.stat(&end) {
            Ok(found) if !is_file(&found) => wrong("is not a regular file".to_owned()),
            Ok(found) if found.st_mode & 0o100 == 0 => wrong(format!(
                "is not executable (mode {:03o}); pack it with mode 755",
                found.st_mode & 0o777
            )),
            Ok(_) => Ok(()),
            Err(_) => wrong("is not in the archive; give the path inside the archive".to_owned()),
        }
    }

    fn blame(&self, path: &MemberPath, obstacle: Obstacle, needed: u64) -> UnpackError {
        let member = escaped(path.as_str().as_bytes());
        match obstacle {
            Obstacle::Conflict | Obstacle::NoSuchFile => UnpackError::Conflict { member },
            Obstacle::Io(source) => match Errno::from_io_error(&source) {
                Some(Errno::NOSPC) if self.tree.is_out_of_inodes() => {
                    UnpackError::Inodes { place: self.place.clone(), member }
                }
                Some(Errno::NOSPC | Errno::DQUOT) => UnpackError::Space(SpaceError {
                    place: self.place.clone(),
                    needed: needed.max(1),
                    available: self.tree.available(),
                }),
                _ => UnpackError::Write { member, source },
            },
        }
    }
}

/// Reads until the buffer is full or the input ends; returns how many bytes that were.
async fn fill(from: &mut (impl AsyncRead + Unpin), buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        let amount = from.read(&mut buffer[filled..]).await?;
        if amount == 0 {
            break;
        }
        filled += amount;
    }
    Ok(filled)
}

/// Reads on to the very end: the tar parser stops at its end marker, but the checksums inside the
/// compressed stream and the one of the order cover the bytes after it, too. Those may be zeros.
async fn drain(mut rest: Stream, meter: &Meter, format: Format) -> Result<(), UnpackError> {
    meter.expect_content();
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let amount = Pin::new(&mut rest)
            .read(&mut buffer)
            .await
            .map_err(|error| meter.explain(format.name(), error))?;
        if amount == 0 {
            break;
        }
        if buffer[..amount].iter().any(|byte| *byte != 0) {
            return Err(UnpackError::TrailingData);
        }
    }
    // A decoder ends here only when it saw the end of its input, which is the verified end.
    if meter.is_verified() { Ok(()) } else { Err(UnpackError::TrailingData) }
}

/// The type of a member, if it is not allowed.
fn forbidden(kind: EntryType) -> Option<String> {
    let name = match kind {
        EntryType::Regular | EntryType::Directory | EntryType::Symlink | EntryType::Link => {
            return None;
        }
        EntryType::Char => "character device",
        EntryType::Block => "block device",
        EntryType::Fifo => "named pipe",
        EntryType::GNUSparse => "sparse file",
        EntryType::Continuous => "contiguous file",
        other => {
            return Some(format!(
                "member of unknown type \"{}\"",
                [other.as_byte()].escape_ascii()
            ));
        }
    };
    Some(name.to_owned())
}

/// Whether all readers of a header see the same size. A binary size has twelve bytes, of which the
/// parser reads only the last eight.
fn is_size_unambiguous(header: &[u8; 512]) -> bool {
    const SIZE: std::ops::Range<usize> = 124..136;
    let size = &header[SIZE];
    size[0] & 0x80 == 0 || size[..4] == [0x80, 0, 0, 0]
}

/// Whether extended headers make a seemingly regular file a sparse one.
async fn is_sparse(entry: &mut Entry<Archive<Stream>>) -> io::Result<bool> {
    let Some(extensions) = entry.pax_extensions().await? else { return Ok(false) };
    for extension in extensions {
        let key = extension?.key_bytes();
        if key.starts_with(b"GNU.sparse.") || key == b"SCHILY.realsize" {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Global headers may hold a comment, as those of `git archive` do. Anything else would change the
/// members after it, which the parser does not do.
async fn check_global(entry: &mut Entry<Archive<Stream>>) -> io::Result<Result<(), UnpackError>> {
    let Some(extensions) = entry.pax_extensions().await? else { return Ok(Ok(())) };
    for extension in extensions {
        let key = extension?.key_bytes();
        if key != b"comment" {
            let kind = format!("global header that sets {}", escaped(key));
            return Ok(Err(UnpackError::Kind { member: "\"\"".to_owned(), kind }));
        }
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::unpack::tree::Resolver;
    use crate::install::window_budget::WindowBudget;

    #[test]
    fn a_disk_that_fills_up_is_named_with_what_is_missing() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let root = crate::os::remove::open_folder(dir.path()).expect("opens");
        let limits = Limits::default();
        let unpacking = Unpacking {
            tree: &mut Tree::new(root, Resolver::Kernel),
            place: "/plugins/sample".into(),
            entry_point: &EntryPoint::parse("run").expect("an entry point"),
            limits: &limits,
            windows: Arc::new(block_on(Arc::<WindowBudget>::default().take(0, || {}))),
            is_cancelled: &|| false,
        };
        let path = MemberPath::parse(b"big", &limits).expect("acceptable");
        for errno in [Errno::NOSPC, Errno::DQUOT] {
            let error = unpacking.blame(&path, Obstacle::Io(errno.into()), 4711);
            let text = error.to_string();
            assert!(text.contains("/plugins/sample") && text.contains("4711 more"), "{text}");
            assert!(!error.is_about_content());
        }
    }
}

//! Undoes the content coding of an archive on a thread of its own.
//!
//! ```text
//! fetch: coded bytes ─► thread: header of a delta ► windows ► zstd ─► expanded bytes ─► fetch
//!                                  │                  └─ Hold: memory of the dictionary and the window
//!                                  └─ made for the archive that was offered?
//! ```
//!
//! A delta is a frame of zstd that has the bytes of another archive as its dictionary, behind a
//! header with the checksum of that archive (RFC 9842, section 5). The dictionary is read from the
//! cache and hashed before it is used. The thread ends when [`Expander`] is dropped, when all is
//! expanded, or at the first error.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

use bytes::Bytes;
use guest_agent_actors::model::id::Sha256Digest;
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::DParameter;

use super::buffers::{BUFFER_BYTES, Buffers};
use super::offer::{Coding, OfferedDictionary};
use crate::install::error::{CodingError, UnpackError};
use crate::install::unpack::window_header::ZstdHeaders;
use crate::install::window_budget::{Hold, WINDOW_MAX};

/// A dictionary is smaller than this.
pub(in crate::install) const DICTIONARY_MAX: u64 = 64 << 20;

/// What a delta begins with: a frame that decoders of zstd skip, of 32 bytes.
pub(in crate::install) const DELTA_MAGIC: [u8; 8] =
    [0x5e, 0x2a, 0x4d, 0x18, 0x20, 0x00, 0x00, 0x00];

/// The header of a delta: its magic number and the checksum of the dictionary.
const DELTA_HEADER: usize = DELTA_MAGIC.len() + 32;

/// Largest window of the content coding `zstd` (RFC 9659), and the least that a delta may have.
const PLAIN_WINDOW_MAX: u64 = 8 << 20;

/// Pieces that wait for the thread, and pieces that wait for their reader.
const PIECES_IN_FLIGHT: usize = 4;

/// The two ends of the thread.
#[derive(Debug)]
pub(super) struct Expander {
    /// `None` when all of it came.
    pub(super) coded: Option<mpsc::Sender<Bytes>>,
    pub(super) expanded: mpsc::Receiver<Result<Bytes, CodingError>>,
}

/// Undoes a coding, piece by piece.
struct Stream<'a> {
    decoder: Decoder<'a>,
    headers: ZstdHeaders,
    hold: &'a Hold,
    /// The size of the dictionary, and the largest window.
    dictionary: u64,
    window_max: u64,
    /// Whether the last frame that began has ended.
    is_whole: bool,
    scratch: Vec<u8>,
    buffers: Buffers,
}

// === impl Expander ===

impl Expander {
    /// Starts the thread. `None` where there is nothing to undo.
    pub(super) fn begin(coding: &Coding) -> Option<Self> {
        let (hold, dictionary) = match coding {
            Coding::Identity => return None,
            Coding::Zstd(hold) => (hold.clone(), None),
            Coding::Delta(hold, dictionary) => (hold.clone(), Some(dictionary.clone())),
        };
        let (coded, mut pieces) = mpsc::channel(PIECES_IN_FLIGHT);
        let (tell, expanded) = mpsc::channel(PIECES_IN_FLIGHT);
        tokio::task::spawn_blocking(move || {
            let mut next = || pieces.blocking_recv();
            let mut give = |bytes| tell.blocking_send(Ok(bytes)).is_ok();
            if let Err(error) = expand(dictionary.as_ref(), &hold, &mut next, &mut give) {
                // Without a reader there is nobody to tell.
                drop(tell.blocking_send(Err(error)));
            }
        });
        Some(Self { coded: Some(coded), expanded })
    }
}

/// Expands all that `next` returns until that is `None`, and passes it on until `give` returns
/// `false`.
pub(in crate::install) fn expand(
    dictionary: Option<&OfferedDictionary>,
    hold: &Hold,
    next: &mut dyn FnMut() -> Option<Bytes>,
    give: &mut dyn FnMut(Bytes) -> bool,
) -> Result<(), CodingError> {
    let Some(dictionary) = dictionary else {
        let decoder = Decoder::new().map_err(|source| CodingError::Damaged { source })?;
        return Stream::new(decoder, hold, 0)?.run(None, next, give);
    };
    let rest = header(dictionary.sha256, next)?;
    take(hold, dictionary.bytes)?;
    let content = load(dictionary)?;
    let decoder = Decoder::with_ref_prefix(&content);
    let decoder = decoder.map_err(|source| CodingError::Damaged { source })?;
    Stream::new(decoder, hold, dictionary.bytes)?.run(Some(rest), next, give)
}

/// Reads the header of a delta, and returns what came behind it.
fn header(
    offered: Sha256Digest,
    next: &mut dyn FnMut() -> Option<Bytes>,
) -> Result<Bytes, CodingError> {
    let mut begun: Vec<u8> = Vec::new();
    loop {
        let known = begun.len().min(DELTA_MAGIC.len());
        if begun[..known] != DELTA_MAGIC[..known] {
            return Err(CodingError::Header);
        }
        if let Some((header, rest)) = begun.split_at_checked(DELTA_HEADER) {
            if header[DELTA_MAGIC.len()..] != offered.as_bytes()[..] {
                return Err(CodingError::OtherDictionary { offered });
            }
            return Ok(Bytes::copy_from_slice(rest));
        }
        match next() {
            Some(piece) => begun.extend_from_slice(&piece),
            None => return Err(CodingError::Unfinished),
        }
    }
}

/// Reads the dictionary, if its file has the bytes that were offered.
fn load(dictionary: &OfferedDictionary) -> Result<Vec<u8>, CodingError> {
    let lost = |source| CodingError::Dictionary { path: dictionary.path.clone(), source };
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(&dictionary.path);
    let size = usize::try_from(dictionary.bytes).map_err(|error| lost(io::Error::other(error)))?;
    let mut content = Vec::new();
    content.try_reserve_exact(size.saturating_add(1)).map_err(|error| lost(error.into()))?;
    let read = file.and_then(|file| file.take(dictionary.bytes + 1).read_to_end(&mut content));
    read.map_err(lost)?;
    let found = Sha256Digest::from_bytes(Sha256::digest(&content).into());
    if content.len() != size || found != dictionary.sha256 {
        return Err(lost(io::Error::other("it has other bytes than its name says")));
    }
    Ok(content)
}

/// Takes memory from the budget that all installations share.
fn take(hold: &Hold, bytes: u64) -> Result<(), CodingError> {
    hold.code(bytes).map_err(|error| match error {
        UnpackError::WindowTaken { wanted } => CodingError::Taken { wanted },
        _ => CodingError::Window { wanted: bytes, limit: WINDOW_MAX },
    })
}

// === impl Stream ===

impl<'a> Stream<'a> {
    fn new(mut decoder: Decoder<'a>, hold: &'a Hold, dictionary: u64) -> Result<Self, CodingError> {
        let largest = DParameter::WindowLogMax(WINDOW_MAX.ilog2());
        decoder.set_parameter(largest).map_err(|source| CodingError::Damaged { source })?;
        let window_max = PLAIN_WINDOW_MAX.max(dictionary + dictionary / 4).min(WINDOW_MAX);
        Ok(Self {
            decoder,
            headers: ZstdHeaders::default(),
            hold,
            dictionary,
            window_max,
            is_whole: false,
            scratch: vec![0; BUFFER_BYTES],
            buffers: Buffers::default(),
        })
    }

    fn run(
        mut self,
        mut piece: Option<Bytes>,
        next: &mut dyn FnMut() -> Option<Bytes>,
        give: &mut dyn FnMut(Bytes) -> bool,
    ) -> Result<(), CodingError> {
        loop {
            if let Some(piece) = &piece
                && !self.piece(piece, give)?
            {
                return Ok(());
            }
            piece = next();
            if piece.is_none() {
                return if self.is_whole { Ok(()) } else { Err(CodingError::Unfinished) };
            }
        }
    }

    /// Expands one piece. Returns whether more is wanted.
    fn piece(
        &mut self,
        piece: &[u8],
        give: &mut dyn FnMut(Bytes) -> bool,
    ) -> Result<bool, CodingError> {
        // The decoder would take it for the begin of another frame.
        if piece.is_empty() {
            return Ok(true);
        }
        let seen = self.headers.read(piece);
        if let Some(wanted) = seen.window {
            if wanted > self.window_max {
                return Err(CodingError::Window { wanted, limit: self.window_max });
            }
            take(self.hold, self.dictionary + wanted)?;
        }
        if seen.frames < piece.len() {
            let source = io::Error::other("something else than a zstd frame follows");
            return Err(CodingError::Damaged { source });
        }
        let mut input = InBuffer::around(piece);
        loop {
            let mut output = OutBuffer::around(self.scratch.as_mut_slice());
            let left = self.decoder.run(&mut input, &mut output);
            let left = left.map_err(|source| CodingError::Damaged { source })?;
            self.is_whole = left == 0;
            let written = output.pos();
            let is_full = written == self.scratch.len();
            if written > 0 {
                let mut buffer = self.buffers.take();
                buffer.extend_from_slice(&self.scratch[..written]);
                if !give(self.buffers.lend(buffer)) {
                    return Ok(false);
                }
            }
            // A full buffer means that the decoder may have more of what it has read already.
            if input.pos() == piece.len() && !(is_full && left != 0) {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests;

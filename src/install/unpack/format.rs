//! Detects the compression of an archive, and returns its decoder. `unpack` and `decoder_thread`
//! call this.

use std::sync::Arc;

use async_compression::tokio::bufread::{GzipDecoder, XzDecoder, ZstdDecoder};
use async_compression::zstd::DParameter;
use tokio::io::AsyncRead;

use super::member::escaped;
use crate::install::error::UnpackError;
use crate::install::unpack::limits_reader::Source;
use crate::install::unpack::window_gate::WindowGate;
use crate::install::window_budget::{Hold, WINDOW_MAX};

/// The largest window that the zstd decoder accepts, as a logarithm.
const WINDOW_LOG: u32 = WINDOW_MAX.ilog2();

/// The memory of the decoder of xz beside its window, and all that it may use if the archive does
/// not say how large that is.
const XZ_MEMORY: u64 = 1 << 20;

/// How an archive is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Gzip,
    Zstd,
    Xz,
    Tar,
}

/// The expanded bytes of an archive.
pub(crate) type Decoder = Box<dyn AsyncRead + Unpin + Send>;

// === impl Format ===

impl Format {
    /// Detected by the first bytes; the name of the file is not used.
    pub(crate) fn of(start: &[u8]) -> Result<Self, UnpackError> {
        const TAR_MAGIC: std::ops::Range<usize> = 257..262;
        match start {
            [0x1f, 0x8b, ..] => Ok(Self::Gzip),
            // A frame, or a skippable frame before it.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Self::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Ok(Self::Xz),
            _ if start.get(TAR_MAGIC) == Some(b"ustar") => Ok(Self::Tar),
            _ => Err(UnpackError::Format { found: describe(start) }),
        }
    }

    /// For errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip or tar",
            Self::Zstd => "zstd or tar",
            Self::Xz => "xz or tar",
            Self::Tar => "tar",
        }
    }

    /// The decoder of the format. It uses no more memory for its window than `hold` holds.
    /// `xz_window`: what the first header of an archive in xz asks for.
    pub(crate) fn decoder(self, source: Source, hold: &Arc<Hold>, xz_window: u64) -> Decoder {
        match self {
            Self::Gzip => {
                let mut decoder = GzipDecoder::new(source);
                decoder.multiple_members(true);
                Box::new(decoder)
            }
            Self::Zstd => {
                let window = [DParameter::window_log_max(WINDOW_LOG)];
                let gate = WindowGate::new(source, Arc::clone(hold));
                let mut decoder = ZstdDecoder::with_params(gate, &window);
                decoder.multiple_members(true);
                Box::new(decoder)
            }
            Self::Xz => {
                // Later blocks may ask for less, but not for more.
                let most = xz_window.saturating_add(XZ_MEMORY);
                let mut decoder = XzDecoder::with_mem_limit(source, most);
                decoder.multiple_members(true);
                Box::new(decoder)
            }
            Self::Tar => Box::new(source),
        }
    }
}

fn describe(start: &[u8]) -> String {
    match start {
        [] => "it is empty".to_owned(),
        [b'B', b'Z', b'h', ..] => "it is a bzip2 file".to_owned(),
        [b'P', b'K', 3, 4, ..] => "it is a zip file".to_owned(),
        [0x7f, b'E', b'L', b'F', ..] => "it is an executable; put it into an archive".to_owned(),
        [b'<', ..] => "it looks like a web page or XML document".to_owned(),
        _ => format!("it begins with {}", escaped(&start[..start.len().min(16)])),
    }
}

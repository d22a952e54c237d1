//! Makes a form of an artifact and checks it. Blocks, for seconds or minutes.
//!
//! The digests of what is read are compared with the names, and what was made is expanded again
//! before it is given out: an artifact that became another one on the disk leads to no form.

use std::fs::File;
use std::io::{self, Read, Write};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use zstd::stream::raw::{Decoder, Encoder};
use zstd::stream::zio;
use zstd::zstd_safe::{CParameter, DParameter};

use crate::artifacts::digest::Digest;
use crate::artifacts::store::temporary::Temporary;

/// What a delta begins with: a frame that decoders of zstd skip, of 32 bytes (RFC 9842, section 5).
const DELTA_MAGIC: [u8; 8] = [0x5e, 0x2a, 0x4d, 0x18, 0x20, 0x00, 0x00, 0x00];

/// The window of the content coding `zstd`, as a logarithm (RFC 9659), and the largest of a delta.
const WINDOW_LOG: u32 = 23;
const DELTA_WINDOW_LOG: u32 = 27;

/// From this window on, matches are far apart: those are looked for in another way.
const FAR_WINDOW_LOG: u32 = 23;

/// The level of compression, and that of large artifacts, which would take too long.
const LEVEL: i32 = 19;
const LARGE_LEVEL: i32 = 9;
const LARGE: u64 = 64 << 20;

/// How much is read at once, in bytes.
const CHUNK: usize = 128 << 10;

/// An artifact.
pub(super) struct Source {
    pub(super) file: File,
    pub(super) digest: Digest,
    pub(super) length: u64,
}

/// Why no form was made.
#[derive(Debug, thiserror::Error)]
pub(super) enum MakeError {
    /// The program ends, or it took too long.
    #[error("it was given up")]
    GivenUp,
    /// The artifact has other bytes than its name says.
    #[error("the artifact {0} has other bytes than its name says; push it again")]
    Other(Digest),
    /// What was made does not expand to the artifact.
    #[error("what was made does not expand to the artifact")]
    Wrong,
    /// A file cannot be read or written.
    #[error("a file cannot be read or written")]
    Io(#[from] io::Error),
}

/// Writes to a file, unless it is given up.
struct Sink<'a> {
    into: &'a mut Temporary,
    is_given_up: &'a dyn Fn() -> bool,
}

/// Hashes what is written.
#[derive(Default)]
struct Hasher(Sha256);

/// Makes the form of an artifact: compressed, or with a dictionary what changed since that.
pub(super) fn make(
    source: Source,
    dictionary: Option<Source>,
    into: &mut Temporary,
    is_given_up: &dyn Fn() -> bool,
) -> Result<(), MakeError> {
    let Source { file, digest, length } = source;
    let dictionary = dictionary.map(|it| content(it, is_given_up)).transpose()?;
    let mut encoder = match &dictionary {
        None => {
            let level = if length > LARGE { LARGE_LEVEL } else { LEVEL };
            let mut encoder = Encoder::new(level)?;
            encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
            encoder
        }
        Some((of, content)) => {
            into.write(&[Bytes::from_static(&DELTA_MAGIC), Bytes::copy_from_slice(of.as_bytes())])?;
            let window = log_of(length.max(content.len() as u64));
            let mut encoder = Encoder::with_ref_prefix(LEVEL, content)?;
            encoder.set_parameter(CParameter::WindowLog(window))?;
            if window > FAR_WINDOW_LOG {
                encoder.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
            }
            encoder
        }
    };
    encoder.set_parameter(CParameter::ChecksumFlag(true))?;
    encoder.set_pledged_src_size(Some(length))?;
    let mut writer = zio::Writer::new(Sink { into: &mut *into, is_given_up }, encoder);
    let found = copy(file.take(length), &mut writer, is_given_up)?;
    if found != digest {
        return Err(MakeError::Other(digest));
    }
    writer.finish()?;
    drop(writer);
    check(into, digest, dictionary.as_ref().map(|(_, content)| content.as_slice()), is_given_up)
}

/// The window that covers so many bytes, as a logarithm.
fn log_of(bytes: u64) -> u32 {
    bytes.max(1 << 10).next_power_of_two().ilog2().min(DELTA_WINDOW_LOG)
}

/// Reads an artifact whole.
fn content(source: Source, is_given_up: &dyn Fn() -> bool) -> Result<(Digest, Vec<u8>), MakeError> {
    let mut content = Vec::new();
    let size = usize::try_from(source.length).map_err(io::Error::other)?;
    content.try_reserve_exact(size).map_err(io::Error::from)?;
    let found = copy(source.file.take(source.length), &mut content, is_given_up)?;
    if found != source.digest {
        return Err(MakeError::Other(source.digest));
    }
    Ok((found, content))
}

/// Copies to the end, and returns the digest of what was copied.
fn copy(
    mut from: impl Read,
    into: &mut impl Write,
    is_given_up: &dyn Fn() -> bool,
) -> Result<Digest, MakeError> {
    let (mut hasher, mut chunk) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        if is_given_up() {
            return Err(MakeError::GivenUp);
        }
        match from.read(&mut chunk)? {
            0 => return Ok(Digest::finish(hasher)),
            read => {
                hasher.update(&chunk[..read]);
                into.write_all(&chunk[..read])?;
            }
        }
    }
}

/// Expands what was made, and compares it with the digest.
fn check(
    made: &Temporary,
    digest: Digest,
    dictionary: Option<&[u8]>,
    is_given_up: &dyn Fn() -> bool,
) -> Result<(), MakeError> {
    let mut file = made.read()?;
    let decoder = match dictionary {
        None => Decoder::new()?,
        Some(content) => {
            io::copy(&mut (&mut file).take(40), &mut io::sink())?;
            Decoder::with_ref_prefix(content)?
        }
    };
    let mut writer = zio::Writer::new(Hasher::default(), decoder);
    writer.operation_mut().set_parameter(DParameter::WindowLogMax(DELTA_WINDOW_LOG))?;
    copy(file, &mut writer, is_given_up)?;
    writer.finish()?;
    let (hasher, _) = writer.into_inner();
    if Digest::finish(hasher.0) == digest { Ok(()) } else { Err(MakeError::Wrong) }
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.is_given_up)() {
            return Err(io::Error::other("it was given up"));
        }
        self.into.write(&[Bytes::copy_from_slice(bytes)])?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that do not compress.
    fn noise(seed: u32, length: usize) -> Vec<u8> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        (0..length).map(next).collect()
    }

    fn source(content: &[u8]) -> Source {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(content).expect("written");
        io::Seek::rewind(&mut file).expect("a file");
        Source { file, digest: Digest::of(content), length: content.len() as u64 }
    }

    fn made(target: Source, dictionary: Option<Source>) -> Result<Vec<u8>, MakeError> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut into = Temporary::create(folder.path()).expect("a file");
        make(target, dictionary, &mut into, &|| false)?;
        let mut bytes = Vec::new();
        into.read()?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn a_delta_has_what_changed_and_names_its_dictionary() {
        let old = noise(1, 200_000);
        let new = [&old[..100_000], b"something new", &old[100_000..]].concat();
        let delta = made(source(&new), Some(source(&old))).expect("made");
        assert!(delta.len() < 1_000, "it has {} bytes", delta.len());
        assert_eq!(delta[..8], DELTA_MAGIC);
        assert_eq!(delta[8..40], *Digest::of(&old).as_bytes());
        let whole = made(source(&new), None).expect("made");
        assert!(whole.len() > 200_000);
        assert_eq!(zstd::decode_all(whole.as_slice()).expect("zstd"), new);
    }

    #[test]
    fn an_artifact_with_other_bytes_than_its_name_says_leads_to_nothing() {
        let mut wrong = source(b"an artifact");
        wrong.digest = Digest::of(b"another");
        assert!(matches!(made(wrong, None), Err(MakeError::Other(_))));
        let mut wrong = source(b"a former artifact");
        wrong.digest = Digest::of(b"another");
        assert!(matches!(made(source(b"an artifact"), Some(wrong)), Err(MakeError::Other(_))));
    }

    #[test]
    fn it_is_given_up_in_the_middle() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut into = Temporary::create(folder.path()).expect("a file");
        let asked = std::cell::Cell::new(0);
        let is_given_up = || {
            asked.set(asked.get() + 1);
            asked.get() > 2
        };
        let made = make(source(&noise(1, 3 * CHUNK)), None, &mut into, &is_given_up);
        assert!(made.is_err() && asked.get() < 10, "{made:?}");
    }

    #[test]
    fn windows_cover_the_whole_of_both() {
        for (bytes, log) in [(0, 10), (1024, 10), (1025, 11), (20 << 20, 25), (1 << 40, 27)] {
            assert_eq!(log_of(bytes), log);
        }
    }
}

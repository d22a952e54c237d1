//! How much memory the headers of compressed archives ask for. Pure.
//!
//! The formats: RFC 8878, section 3.1 (zstd); "The .xz File Format", version 1.2.1, sections 2.1.1,
//! 3.1 and 5.3.1. A decoder reserves memory when it has read a whole header, so these are read
//! first. `window_gate` and `unpack` call this.

use std::cmp::min;

/// Longest header of a frame of zstd, without its magic number.
const FRAME_HEADER_MAX: usize = 14;

/// Header of a stream of xz, and longest one of the block that follows it.
const XZ_STREAM_HEADER: usize = 12;
const XZ_BLOCK_HEADER_MAX: usize = 1024;

/// So many bytes from the beginning contain the first headers of an xz archive.
pub(crate) const XZ_HEADERS_MAX: usize = XZ_STREAM_HEADER + XZ_BLOCK_HEADER_MAX;

/// The id of LZMA2, the one filter of xz that has a window.
const LZMA2: u64 = 0x21;

/// Follows a stream of zstd frames, however it is cut into pieces.
#[derive(Debug, Default)]
pub(crate) struct ZstdHeaders {
    state: State,
    /// What has arrived of a header.
    begun: Vec<u8>,
    /// Whether a checksum follows the last block.
    has_checksum: bool,
}

/// The part of the stream that comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Four bytes that tell which kind of frame begins.
    #[default]
    Magic,
    /// The length of a skippable frame.
    SkippableLength,
    /// The header of a frame.
    Header,
    /// The three bytes before a block.
    Block,
    /// So many bytes without headers, and then another state.
    Skip(u64, Then),
    /// Something that is not a frame.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Magic,
    Block,
}

/// What a piece of a stream contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The largest window that a header asks for whose last byte is in this piece.
    pub(crate) window: Option<u64>,
    /// So many of the bytes belong to frames. The bytes after them are something else, and are not
    /// read.
    pub(crate) frames: usize,
}

// === impl ZstdHeaders ===

impl ZstdHeaders {
    /// Reads the next piece.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Seen {
        let mut seen = Seen::default();
        while let Some((&byte, rest)) = bytes[seen.frames..].split_first() {
            if let State::Skip(left, then) = self.state {
                let amount = min(left, 1 + rest.len() as u64);
                seen.frames += usize::try_from(amount).unwrap_or(usize::MAX);
                self.state = State::skip(left - amount, then);
                continue;
            }
            self.begun.push(byte);
            seen.window = seen.window.max(self.step());
            if self.state == State::Lost {
                break;
            }
            seen.frames += 1;
        }
        seen
    }

    /// Another byte that is not skipped has arrived. Returns the window of a header that is
    /// complete with it.
    fn step(&mut self) -> Option<u64> {
        let begun = self.begun.as_slice();
        let (next, window) = match self.state {
            State::Magic => {
                match begun.first_chunk::<4>().map(|magic| u32::from_le_bytes(*magic)) {
                    None => return None,
                    Some(0xfd2f_b528) => (State::Header, None),
                    Some(0x184d_2a50..=0x184d_2a5f) => (State::SkippableLength, None),
                    Some(_) => (State::Lost, None),
                }
            }
            State::SkippableLength => match begun.first_chunk::<4>() {
                None => return None,
                Some(length) => {
                    (State::skip(u32::from_le_bytes(*length).into(), Then::Magic), None)
                }
            },
            State::Header => {
                let header = FrameHeader::parse(begun)?;
                self.has_checksum = header.has_checksum;
                (State::Block, Some(header.window))
            }
            State::Block => match begun {
                [a, b, c] => {
                    let header = u32::from_le_bytes([*a, *b, *c, 0]);
                    // A block of one byte that is repeated has a size, too, and only that byte.
                    let size = if header >> 1 & 3 == 1 { 1 } else { u64::from(header >> 3) };
                    let is_last = header & 1 == 1;
                    let checksum = if self.has_checksum { 4 } else { 0 };
                    let next = match is_last {
                        true => State::skip(size + checksum, Then::Magic),
                        false => State::skip(size, Then::Block),
                    };
                    (next, None)
                }
                _ => return None,
            },
            State::Skip(..) | State::Lost => return None,
        };
        self.state = next;
        self.begun.clear();
        window
    }
}

// === impl State ===

impl State {
    fn skip(left: u64, then: Then) -> Self {
        match (left, then) {
            (0, Then::Magic) => Self::Magic,
            (0, Then::Block) => Self::Block,
            _ => Self::Skip(left, then),
        }
    }
}

struct FrameHeader {
    window: u64,
    has_checksum: bool,
}

// === impl FrameHeader ===

impl FrameHeader {
    /// Reads the header that follows the magic number. `None` while it is incomplete.
    fn parse(bytes: &[u8]) -> Option<Self> {
        debug_assert!(bytes.len() <= FRAME_HEADER_MAX);
        let (&descriptor, rest) = bytes.split_first()?;
        let is_single_segment = descriptor & 0x20 != 0;
        let (window, rest) = if is_single_segment {
            (None, rest)
        } else {
            let (&byte, rest) = rest.split_first()?;
            let base = 1u64 << (10 + (byte >> 3));
            (Some(base + base / 8 * u64::from(byte & 7)), rest)
        };
        let rest = rest.get([0, 1, 2, 4][usize::from(descriptor & 3)]..)?;
        let length = match (descriptor >> 6, is_single_segment) {
            (0, false) => 0,
            (0, true) => 1,
            (power, _) => 1 << power,
        };
        let mut size = [0; 8];
        size[..length].copy_from_slice(rest.get(..length)?);
        // A size of two bytes counts from 256.
        let size = u64::from_le_bytes(size).saturating_add(if length == 2 { 256 } else { 0 });
        // No window is larger than the whole content.
        let window = match window {
            Some(window) if length > 0 => min(window, size),
            Some(window) => window,
            None => size,
        };
        Some(Self { window, has_checksum: descriptor & 4 != 0 })
    }
}

/// The window that the first block of an xz archive asks for. `None` where the archive has no
/// block, or a malformed one; the decoder then reports it.
pub(crate) fn xz_window(start: &[u8]) -> Option<u64> {
    let block = start.get(XZ_STREAM_HEADER..)?;
    let (&size, rest) = block.split_first()?;
    // In units of four bytes, itself included. A size of zero means the index at the end.
    let length = (usize::from(size) + 1) * 4;
    let mut header = rest.get(..length - 1).filter(|_| size > 0)?;
    let (&flags, rest) = header.split_first()?;
    header = rest;
    for has_size in [flags & 0x40 != 0, flags & 0x80 != 0] {
        if has_size {
            number(&mut header)?;
        }
    }
    for _ in 0..=(flags & 3) {
        let (id, length) = (number(&mut header)?, number(&mut header)?);
        let (properties, rest) = header.split_at_checked(usize::try_from(length).ok()?)?;
        header = rest;
        if id == LZMA2 {
            return match properties {
                [40] => Some(u32::MAX.into()),
                [bits @ 0..=39] => Some((2 | u64::from(bits & 1)) << (bits / 2 + 11)),
                _ => None,
            };
        }
    }
    None
}

/// A number in as many bytes as it needs, seven bits in each.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for place in 0..9 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zstd::zstd_safe::CParameter;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A frame as the library writes it.
    fn frame(data: &[u8], window_log: u32, checksum: bool, size: Option<u64>) -> Vec<u8> {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).expect("an encoder");
        encoder.set_parameter(CParameter::WindowLog(window_log)).expect("a parameter");
        encoder.include_checksum(checksum).expect("a parameter");
        if let Some(size) = size {
            encoder.set_pledged_src_size(Some(size)).expect("a parameter");
        }
        encoder.write_all(data).expect("memory");
        encoder.finish().expect("memory")
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1u32;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        (0..length).map(next).collect()
    }

    /// The windows that the headers ask for, and how many bytes belong to frames.
    fn read(pieces: &[&[u8]]) -> (Vec<u64>, usize) {
        let mut headers = ZstdHeaders::default();
        let seen: Vec<Seen> = pieces.iter().map(|piece| headers.read(piece)).collect();
        let windows = seen.iter().filter_map(|seen| seen.window).collect();
        (windows, seen.iter().map(|seen| seen.frames).sum())
    }

    fn windows(pieces: &[&[u8]]) -> Vec<u64> {
        let (windows, frames) = read(pieces);
        assert_eq!(frames, pieces.concat().len(), "all of it is frames");
        windows
    }

    #[test]
    fn the_window_is_what_the_library_wrote_down() {
        for log in [10, 17, 20, 23] {
            let bytes = frame(&noise(300_000), log, log % 2 == 0, None);
            assert_eq!(windows(&[&bytes]), [1 << log], "{log}");
        }
        // A frame that is smaller than its window has a window of its own size.
        for size in [0, 1, 255, 256, 257, 65_791, 65_792, 100_000] {
            let bytes = frame(&noise(size), 20, false, Some(size as u64));
            assert_eq!(windows(&[&bytes]), [size as u64], "{size}");
        }
        let bytes = frame(&noise(3_000_000), 20, false, Some(3_000_000));
        assert_eq!(windows(&[&bytes]), [MIB]);
    }

    #[test]
    fn every_frame_of_a_stream_is_found_wherever_it_is_cut() {
        let skippable = [&0x184d_2a53u32.to_le_bytes()[..], &5u32.to_le_bytes(), b"(\xb5/\xfd!"];
        let stream = [
            frame(&noise(200_000), 12, true, None),
            skippable.concat(),
            frame(&[7; 400_000], 22, false, None),
            frame(&noise(5), 16, true, None),
            frame(&noise(10), 14, true, None),
        ]
        .concat();
        for length in [1, 2, 3, 7] {
            let pieces: Vec<&[u8]> = stream.chunks(length).collect();
            let expected = [1 << 12, 1 << 22, 1 << 16, 1 << 14];
            assert_eq!(windows(&pieces), expected, "in pieces of {length}");
        }
        assert_eq!(windows(&[&stream]), [1 << 22], "the largest of a piece");
    }

    #[test]
    fn what_is_not_a_frame_is_not_read() {
        let stream = frame(b"abc", 12, true, None);
        // The formats before version 0.8 have windows of their own kind.
        for other in [*b"abcd", [0x27, 0xb5, 0x2f, 0xfd]] {
            // Three bytes of a magic number are not enough for any decoder.
            let (windows, frames) = read(&[&stream, &other[..2], &other[2..], &stream]);
            assert_eq!((windows, frames), (vec![1 << 12], stream.len() + 3));
        }
    }

    #[test]
    fn the_largest_numbers_that_a_header_can_hold_are_read() {
        let largest = [&0xfd2f_b528u32.to_le_bytes()[..], &[0, 0xff]].concat();
        let base = 1u64 << 41;
        assert_eq!(windows(&[&largest]), [base + base / 8 * 7]);
        let single = [&0xfd2f_b528u32.to_le_bytes()[..], &[0xe3, 0, 0, 0, 0], &[0xff; 8]].concat();
        assert_eq!(windows(&[&single]), [u64::MAX]);
    }

    #[tokio::test]
    async fn the_dictionary_of_an_xz_archive_is_read() {
        use tokio::io::AsyncWriteExt;

        for (level, expected) in [(0, 256 << 10), (6, 8 * MIB), (9, 64 * MIB)] {
            let level = async_compression::Level::Precise(level);
            let mut encoder =
                async_compression::tokio::write::XzEncoder::with_quality(Vec::new(), level);
            encoder.write_all(b"abc").await.expect("memory");
            encoder.shutdown().await.expect("memory");
            let bytes = encoder.into_inner();
            assert_eq!(xz_window(&bytes), Some(expected), "{level:?}");
            for length in 0..13 {
                assert_eq!(xz_window(&bytes[..length]), None);
            }
        }
    }

    #[test]
    fn a_filter_in_front_of_lzma2_is_passed_over() {
        let block = |bytes: &[u8]| {
            let mut start = vec![0; XZ_STREAM_HEADER];
            start.push(u8::try_from((bytes.len() + 1).div_ceil(4) - 1).expect("short"));
            start.extend_from_slice(bytes);
            start.resize(start.len().next_multiple_of(4), 0);
            xz_window(&start)
        };
        // Both sizes, then a filter for x86 without properties, then LZMA2.
        let sizes = [0x81, 0x01, 0x05];
        let x86 = [0x04, 0x00];
        assert_eq!(
            block(&[&[0xc1][..], &sizes, &x86, &[0x21, 1, 18], &[0; 8]].concat()),
            Some(2 * MIB)
        );
        assert_eq!(block(&[0, 0x21, 1, 40, 0, 0, 0]), Some(u64::from(u32::MAX)));
        assert_eq!(block(&[0, 0x21, 1, 41, 0, 0, 0]), None);
        assert_eq!(block(&[0, 0x21, 200, 40, 0, 0, 0]), None);
        assert_eq!(block(&[3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
    }

    proptest::proptest! {
        #[test]
        fn law_any_bytes_are_read_without_harm(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)
        ) {
            let _ = xz_window(&bytes);
            let (whole, pieces) = (read(&[&bytes]), bytes.chunks(1).collect::<Vec<_>>());
            let cut = read(&pieces);
            proptest::prop_assert_eq!(whole.0, cut.0.into_iter().max().into_iter().collect::<Vec<_>>());
            proptest::prop_assert_eq!(whole.1, cut.1);
        }
    }
}

//! Archives written byte by byte, so that they can have any error.

use tokio::io::AsyncWriteExt;

/// A tar stream under construction.
#[derive(Clone, Default)]
pub(super) struct Tarball {
    bytes: Vec<u8>,
    /// The offset of the last header.
    last: usize,
}

/// A stream with one header.
pub(super) struct Head<'a> {
    pub(super) name: &'a [u8],
    pub(super) kind: u8,
    pub(super) target: &'a [u8],
    pub(super) mode: u32,
    pub(super) size: u64,
}

pub(super) const SCRIPT: &[u8] = b"#!/bin/sh\nexit 0\n";

impl Tarball {
    /// A stream with an entry point, `run`.
    pub(super) fn good() -> Self {
        Self::default().file("run", 0o755, SCRIPT)
    }

    pub(super) fn file(self, name: &str, mode: u32, data: &[u8]) -> Self {
        let size = data.len() as u64;
        self.head(Head { name: name.as_bytes(), kind: b'0', target: b"", mode, size }).data(data)
    }

    pub(super) fn folder(self, name: &str, mode: u32) -> Self {
        self.head(Head { name: name.as_bytes(), kind: b'5', target: b"", mode, size: 0 })
    }

    pub(super) fn symlink(self, name: &str, target: &str) -> Self {
        self.special(b'2', name, target)
    }

    pub(super) fn hard_link(self, name: &str, target: &str) -> Self {
        self.special(b'1', name, target)
    }

    pub(super) fn special(self, kind: u8, name: &str, target: &str) -> Self {
        let (name, target) = (name.as_bytes(), target.as_bytes());
        self.head(Head { name, kind, target, mode: 0o777, size: 0 })
    }

    /// Extended headers of the member that follows (`x`) or of all (`g`).
    pub(super) fn pax(self, kind: u8, pairs: &[(&str, &str)]) -> Self {
        let records: Vec<u8> = pairs
            .iter()
            .flat_map(|(key, value)| record(key.as_bytes(), value.as_bytes()))
            .collect();
        self.records(kind, &records)
    }

    /// Extended headers, with these bytes.
    pub(super) fn records(self, kind: u8, records: &[u8]) -> Self {
        let size = records.len() as u64;
        self.head(Head { name: b"pax", kind, target: b"", mode: 0o644, size }).data(records)
    }

    /// Changes the last header, and makes its checksum right again.
    pub(super) fn edit(mut self, change: impl FnOnce(&mut [u8; 512])) -> Self {
        let at = self.last;
        let block = self.bytes[at..].first_chunk_mut().expect("a header");
        change(block);
        sum(block);
        self
    }

    /// Changes the last header, and leaves its checksum wrong.
    pub(super) fn spoil(mut self, change: impl FnOnce(&mut [u8; 512])) -> Self {
        let at = self.last;
        change(self.bytes[at..].first_chunk_mut().expect("a header"));
        self
    }

    /// A field of the last header.
    pub(super) fn field(self, at: usize, text: &[u8]) -> Self {
        self.edit(|block| block[at..at + text.len()].copy_from_slice(text))
    }

    /// Bytes that are not a member, unchanged.
    pub(super) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// A long name (`L`) or long target (`K`) of the member that follows.
    pub(super) fn long(self, kind: u8, text: &[u8]) -> Self {
        let size = text.len() as u64;
        self.head(Head { name: b"././@LongLink", kind, target: b"", mode: 0o644, size }).data(text)
    }

    pub(super) fn head(mut self, head: Head<'_>) -> Self {
        let mut block = [0u8; 512];
        let put = |block: &mut [u8; 512], at: usize, text: &[u8]| {
            block[at..at + text.len()].copy_from_slice(text);
        };
        put(&mut block, 0, &head.name[..head.name.len().min(100)]);
        put(&mut block, 100, format!("{:07o}\0", head.mode).as_bytes());
        put(&mut block, 108, b"0001750\x000001750\0");
        put(&mut block, 124, format!("{:011o}\0", head.size).as_bytes());
        put(&mut block, 136, format!("{:011o}\0", 1_000_000_000).as_bytes());
        block[156] = head.kind;
        put(&mut block, 157, &head.target[..head.target.len().min(100)]);
        put(&mut block, 257, b"ustar\x0000");
        sum(&mut block);
        self.last = self.bytes.len();
        self.bytes.extend_from_slice(&block);
        self
    }

    pub(super) fn data(mut self, data: &[u8]) -> Self {
        self.bytes.extend_from_slice(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    /// The stream with its end marker.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(&[0; 1024]);
        self.bytes
    }

    /// The stream without its end marker.
    pub(super) fn cut(self) -> Vec<u8> {
        self.bytes
    }
}

/// Writes a header's checksum.
pub(super) fn sum(block: &mut [u8; 512]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// One extended header, with its length in front.
pub(super) fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = [b" ", key, b"=", value, b"\n"].concat();
    let mut length = rest.len() + 1;
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    [length.to_string().as_bytes(), &rest].concat()
}

pub(super) async fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = async_compression::tokio::write::GzipEncoder::new(Vec::new());
    encoder.write_all(data).await.expect("memory is writable");
    encoder.shutdown().await.expect("memory is writable");
    encoder.into_inner()
}

pub(super) async fn zstd(data: &[u8]) -> Vec<u8> {
    let mut encoder = async_compression::tokio::write::ZstdEncoder::new(Vec::new());
    encoder.write_all(data).await.expect("memory is writable");
    encoder.shutdown().await.expect("memory is writable");
    encoder.into_inner()
}

/// A zstd frame whose header asks for a window of this size (as a logarithm), and whose content
/// needs none.
pub(super) fn zstd_asking(window_log: u32, data: &[u8]) -> Vec<u8> {
    let window = u8::try_from(window_log - 10).expect("small") << 3;
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, window];
    let mut blocks = data.chunks(1000.min(1 << window_log)).peekable();
    while let Some(block) = blocks.next() {
        let size = u32::try_from(block.len()).expect("small");
        let header = size << 3 | u32::from(blocks.peek().is_none());
        frame.extend_from_slice(&header.to_le_bytes()[..3]);
        frame.extend_from_slice(block);
    }
    frame
}

pub(super) async fn xz(data: &[u8]) -> Vec<u8> {
    xz_with(6, data).await
}

pub(super) async fn xz_with(level: i32, data: &[u8]) -> Vec<u8> {
    let level = async_compression::Level::Precise(level);
    let mut encoder = async_compression::tokio::write::XzEncoder::with_quality(Vec::new(), level);
    encoder.write_all(data).await.expect("memory is writable");
    encoder.shutdown().await.expect("memory is writable");
    encoder.into_inner()
}

//! Archives: of the example plugins, of scripts, and of whatever bytes a test wants.
//!
//! Tar streams are written member by member, so that they can be wrong in every way.

use guest_agent_lab::ArtifactServer;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use super::{Bed, plugins};

/// An archive that can be downloaded.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    /// Its name on the artifact server: what faults and counters are kept by.
    pub(crate) name: String,
    pub(crate) url: String,
    /// Lower-case hexadecimal.
    pub(crate) sha256: String,
    /// The program inside.
    pub(crate) entry_point: String,
}

/// What an archive is made of.
pub(crate) struct ArchiveSpec {
    content: Content,
    compression: Compression,
    entry_point: String,
}

enum Content {
    Tar(Tarball),
    Bytes(Vec<u8>),
}

/// How a tar stream is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
    Xz,
}

/// A tar stream under construction.
#[derive(Clone, Default)]
pub(crate) struct Tarball {
    bytes: Vec<u8>,
}

// === impl ArchiveSpec ===

impl ArchiveSpec {
    /// The echo plugin, as a script that becomes it: quick to make, to send and to unpack.
    pub(crate) fn echo() -> Self {
        Self::script_for("echo_plugin")
    }

    /// The trouble plugin, as a script that becomes it.
    pub(crate) fn trouble() -> Self {
        Self::script_for("trouble_plugin")
    }

    /// The one-shot plugin, as a script that becomes it.
    pub(crate) fn one_shot() -> Self {
        Self::script_for("one_shot")
    }

    /// The trouble plugin's real program.
    pub(crate) fn trouble_program() -> Self {
        Self::program("trouble_plugin")
    }

    /// A shell script, without its first line, as the program `run`.
    pub(crate) fn script(text: &str) -> Self {
        let script = format!("#!/bin/sh\n{text}\n");
        Self::tar("run", Tarball::default().file("run", 0o755, script.as_bytes()))
    }

    /// A tar stream, with its end marker, and which member is the program.
    pub(crate) fn tar(entry_point: &str, tar: Tarball) -> Self {
        Self {
            content: Content::Tar(tar),
            compression: Compression::None,
            entry_point: entry_point.to_owned(),
        }
    }

    /// Any bytes at all.
    pub(crate) fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            content: Content::Bytes(bytes.into()),
            compression: Compression::None,
            entry_point: "run".to_owned(),
        }
    }

    /// Adds a file of so many bytes that do not compress, so that downloads take their time.
    pub(crate) fn padded(mut self, size: usize) -> Self {
        let noise: Vec<u8> = noise().flat_map(u64::to_le_bytes).take(size).collect();
        if let Content::Tar(tar) = self.content {
            self.content = Content::Tar(tar.file("padding", 0o644, &noise));
        }
        self
    }

    /// Adds more members.
    pub(crate) fn with(mut self, more: Tarball) -> Self {
        if let Content::Tar(tar) = &mut self.content {
            tar.bytes.extend_from_slice(&more.bytes);
        }
        self
    }

    /// Compresses it.
    pub(crate) fn compressed(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// The real program of an example plugin of the SDK.
    pub(crate) fn program(example: &str) -> Self {
        let program = std::fs::read(plugins::program(example)).expect("it was built");
        Self::tar("bin/plugin", Tarball::default().file("bin/plugin", 0o755, &program))
    }

    /// An example plugin of the SDK, as a script that becomes it.
    pub(crate) fn script_for(example: &str) -> Self {
        let program = plugins::program(example);
        Self::script(&format!("exec '{}' \"$@\"", program.display()))
    }

    /// The archive.
    pub(crate) async fn into_bytes(self) -> Vec<u8> {
        let bytes = match self.content {
            Content::Tar(tar) => tar.finish(),
            Content::Bytes(bytes) => bytes,
        };
        compress(self.compression, &bytes).await
    }
}

/// Numbers that do not compress, the same every time.
pub(crate) fn noise() -> impl Iterator<Item = u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(move || {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    })
}

// === impl Bed ===

impl Bed {
    /// Publishes an archive under a name on the artifact server.
    pub(crate) async fn archive(&self, name: &str, spec: ArchiveSpec) -> Archive {
        publish(&self.artifacts, name, spec).await
    }

    /// Publishes the echo plugin.
    pub(crate) async fn echo(&self) -> Archive {
        self.archive("echo.tar", ArchiveSpec::echo()).await
    }

    /// Publishes the trouble plugin.
    pub(crate) async fn trouble(&self) -> Archive {
        self.archive("trouble.tar", ArchiveSpec::trouble()).await
    }
}

/// Publishes an archive on any artifact server.
pub(crate) async fn publish(server: &ArtifactServer, name: &str, spec: ArchiveSpec) -> Archive {
    let entry_point = spec.entry_point.clone();
    let bytes = spec.into_bytes().await;
    let digest = Sha256::digest(&bytes);
    let sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let url = server.publish(name, bytes).expect("the name is an artifact name");
    Archive { name: name.to_owned(), url, sha256, entry_point }
}

/// Compresses bytes.
pub(crate) async fn compress(how: Compression, bytes: &[u8]) -> Vec<u8> {
    use async_compression::tokio::write::{GzipEncoder, XzEncoder, ZstdEncoder};
    macro_rules! with {
        ($encoder:ident) => {{
            let mut encoder = $encoder::new(Vec::new());
            encoder.write_all(bytes).await.expect("memory is writable");
            encoder.shutdown().await.expect("memory is writable");
            encoder.into_inner()
        }};
    }
    match how {
        Compression::None => bytes.to_vec(),
        Compression::Gzip => with!(GzipEncoder),
        Compression::Zstd => with!(ZstdEncoder),
        Compression::Xz => with!(XzEncoder),
    }
}

// === impl Tarball ===

impl Tarball {
    /// With a program `run` that does nothing: enough for an archive that is never to be unpacked.
    pub(crate) fn with_program() -> Self {
        Self::default().file("run", 0o755, b"#!/bin/sh\nexit 0\n")
    }

    pub(crate) fn file(self, name: &str, mode: u32, data: &[u8]) -> Self {
        self.head(name.as_bytes(), b'0', "", mode, data.len()).data(data)
    }

    pub(crate) fn folder(self, name: &str, mode: u32) -> Self {
        self.head(name.as_bytes(), b'5', "", mode, 0)
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Self {
        self.special(b'2', name, target)
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> Self {
        self.special(b'1', name, target)
    }

    /// A member without data, of any type: `3` and `4` are devices, `6` is a pipe.
    pub(crate) fn special(self, kind: u8, name: &str, target: &str) -> Self {
        self.head(name.as_bytes(), kind, target, 0o777, 0)
    }

    /// The name of the member that follows, of any length.
    pub(crate) fn long_name(self, name: &str) -> Self {
        self.head(b"././@LongLink", b'L', "", 0o644, name.len()).data(name.as_bytes())
    }

    /// Extended headers of the member that follows (`x`) or of all (`g`): `key=value` each.
    pub(crate) fn pax(self, kind: u8, records: &[&str]) -> Self {
        let text: String = records
            .iter()
            .map(|record| {
                let rest = format!(" {record}\n");
                // The length counts its own digits: two of them for what tests have to say.
                let length = rest.len() + 2;
                assert!((10..100).contains(&length), "{record} is too short or too long");
                format!("{length}{rest}")
            })
            .collect();
        self.head(b"pax", kind, "", 0o644, text.len()).data(text.as_bytes())
    }

    /// One header.
    pub(crate) fn head(
        mut self,
        name: &[u8],
        kind: u8,
        target: &str,
        mode: u32,
        size: usize,
    ) -> Self {
        let mut block = [0_u8; 512];
        let (mode, size) = (format!("{mode:07o}\0"), format!("{size:011o}\0"));
        let target = target.as_bytes();
        let fields: [(usize, &[u8]); 8] = [
            (0, &name[..name.len().min(100)]),
            (100, mode.as_bytes()),
            (108, b"0000000\x000000000\0"),
            (124, size.as_bytes()),
            (136, b"07346545000\0        "),
            (156, &[kind]),
            (157, &target[..target.len().min(100)]),
            (257, b"ustar\x0000"),
        ];
        for (at, field) in fields {
            block[at..at + field.len()].copy_from_slice(field);
        }
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend_from_slice(&block);
        self
    }

    /// The data of the member before, padded.
    pub(crate) fn data(mut self, data: &[u8]) -> Self {
        self.bytes.extend_from_slice(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    /// The stream with its end marker.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(&[0; 1024]);
        self.bytes
    }
}

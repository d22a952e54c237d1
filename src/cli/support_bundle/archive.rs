//! Writes the archive.

use std::io;
use std::path::Path;

use async_compression::tokio::write::GzipEncoder;
use jiff::Timestamp;
use tokio::fs::OpenOptions;
use tokio::io::AsyncWriteExt;
use tokio_tar::{Builder, Header};

/// One file of the bundle.
#[derive(Debug)]
pub(super) struct File {
    /// Its path in the archive.
    pub(super) path: String,
    /// Its content.
    pub(super) content: String,
}

/// Writes a compressed archive that only its owner may read. Returns its size in bytes.
///
/// # Errors
/// The file exists, or cannot be written.
pub(super) async fn write(output: &Path, files: &[File], now: Timestamp) -> io::Result<u64> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let file = options.open(output).await?;
    let mut builder = Builder::new(GzipEncoder::new(file));
    for File { path, content } in files {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(now.as_second()).unwrap_or_default());
        let path = format!("guest-agent-support/{path}");
        builder.append_data(&mut header, path, content.as_bytes()).await?;
    }
    let mut encoder = builder.into_inner().await?;
    encoder.shutdown().await?;
    Ok(encoder.into_inner().metadata().await?.len())
}

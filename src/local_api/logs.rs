//! A plugin's output, as a stream.

use std::io::SeekFrom;
use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_agent_proto::local;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc::Sender;
use tonic::Status;

/// The last lines are looked for in this much of the file's end.
const TAIL_MAX: u64 = 1024 * 1024;

/// How often a followed file is looked at.
const BEAT: Duration = Duration::from_millis(200);

/// Sends the last lines, then, when following, what is added, until the reader leaves.
///
/// A log that is cut keeps its newest part; a follower goes on at its new end.
pub(super) async fn stream(
    path: PathBuf,
    lines: u32,
    follow: bool,
    out: Sender<Result<local::LogChunk, Status>>,
) {
    let mut position = match tail(&path, lines).await {
        Ok((data, position)) => {
            if !data.is_empty() && out.send(Ok(local::LogChunk { data })).await.is_err() {
                return;
            }
            position
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => {
            let status = Status::internal(format!("failed to read {}: {error}", path.display()));
            drop(out.send(Err(status)).await);
            return;
        }
    };
    if !follow {
        return;
    }
    loop {
        tokio::select! {
            () = tokio::time::sleep(BEAT) => {}
            () = out.closed() => return,
        }
        // A log that is away for a moment (the plugin is being removed and installed) comes back.
        let Ok((data, end)) = added(&path, position).await else { continue };
        position = end;
        if !data.is_empty() && out.send(Ok(local::LogChunk { data })).await.is_err() {
            return;
        }
    }
}

async fn tail(path: &Path, lines: u32) -> std::io::Result<(Vec<u8>, u64)> {
    let mut file = File::open(path).await?;
    let end = file.metadata().await?.len();
    file.seek(SeekFrom::Start(end.saturating_sub(TAIL_MAX))).await?;
    let mut data = Vec::new();
    file.take(TAIL_MAX).read_to_end(&mut data).await?;
    let position = end.saturating_sub(TAIL_MAX) + u64::try_from(data.len()).unwrap_or(0);
    Ok((last_lines(data, lines), position))
}

fn last_lines(data: Vec<u8>, lines: u32) -> Vec<u8> {
    let lines = usize::try_from(lines).unwrap_or(usize::MAX);
    let body = data.strip_suffix(b"\n").unwrap_or(&data);
    let start = if lines == 0 {
        data.len()
    } else {
        let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
        ends.map(|(at, _)| at + 1).nth(lines - 1).unwrap_or(0)
    };
    data[start..].to_vec()
}

async fn added(path: &Path, position: u64) -> std::io::Result<(Vec<u8>, u64)> {
    let mut file = File::open(path).await?;
    let end = file.metadata().await?.len();
    let from = if end < position { end } else { position };
    file.seek(SeekFrom::Start(from)).await?;
    let mut data = Vec::new();
    file.take((end - from).min(TAIL_MAX)).read_to_end(&mut data).await?;
    let read = u64::try_from(data.len()).unwrap_or(0);
    Ok((data, from + read))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_whole_lines() {
        let log = b"one\ntwo\nthree\n".to_vec();
        assert_eq!(last_lines(log.clone(), 2), b"two\nthree\n");
        assert_eq!(last_lines(log.clone(), 10), log);
        assert_eq!(last_lines(log, 0), b"");
        assert_eq!(last_lines(b"one\ntwo".to_vec(), 1), b"two");
        assert_eq!(last_lines(Vec::new(), 5), b"");
    }

    #[tokio::test]
    async fn a_cut_log_is_followed_from_its_new_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.log");
        std::fs::write(&path, "0123456789").expect("writes");
        let (_, position) = tail(&path, 1).await.expect("reads");
        std::fs::write(&path, "cut").expect("writes");
        let (data, position) = added(&path, position).await.expect("reads");
        assert!(data.is_empty());
        std::fs::write(&path, "cut and more").expect("writes");
        let (data, _) = added(&path, position).await.expect("reads");
        assert_eq!(data, b" and more");
    }
}

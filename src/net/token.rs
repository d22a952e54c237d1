//! The source of the token that identifies this agent.

use std::path::PathBuf;

use async_trait::async_trait;
use guest_agent_actors::ports::Cause;
use tokio::io::AsyncReadExt;

/// Largest token file that is read, in bytes.
const MAX_TOKEN: u64 = 64 << 10;

/// Gives the token for the next connection.
#[async_trait]
pub trait TokenSource: Send + Sync {
    /// The token to send, or none. Asked before every connection, so an expired token is never used
    /// twice.
    async fn token(&self) -> Result<Option<String>, TokenError>;

    /// The control plane did not believe the last token: one that is kept is not given again.
    fn refused(&self) {}
}

/// Why there is no token now. The link tries again later.
#[derive(Debug, thiserror::Error)]
#[error("failed to get a token from {source_name}")]
pub struct TokenError {
    /// Where it should have come from.
    pub source_name: String,
    #[source]
    pub cause: Cause,
}

/// No token: the transport identifies the agent, or the server needs no identity.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoToken;

/// A token in a file that another program renews.
#[derive(Clone, Debug)]
pub struct FileToken {
    path: PathBuf,
}

// === impl NoToken ===

#[async_trait]
impl TokenSource for NoToken {
    async fn token(&self) -> Result<Option<String>, TokenError> {
        Ok(None)
    }
}

// === impl FileToken ===

impl FileToken {
    /// The token in the file at `path`, without the white space around it.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }
}

#[async_trait]
impl TokenSource for FileToken {
    async fn token(&self) -> Result<Option<String>, TokenError> {
        let failed =
            |cause| TokenError { source_name: format!("the file {}", self.path.display()), cause };
        let mut text = String::new();
        let file = tokio::fs::OpenOptions::new()
            .read(true)
            // A pipe without a writer would hold on to a thread for ever.
            .custom_flags(nix::libc::O_NONBLOCK)
            .open(&self.path)
            .await
            .map_err(|e| failed(e.into()))?;
        file.take(MAX_TOKEN + 1).read_to_string(&mut text).await.map_err(|e| failed(e.into()))?;
        if text.len() as u64 > MAX_TOKEN {
            return Err(failed(format!("it is larger than {MAX_TOKEN} bytes").into()));
        }
        let token = text.trim();
        if token.is_empty() {
            return Err(failed("it is empty".into()));
        }
        Ok(Some(token.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_file_is_read_anew_every_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        let source = FileToken::new(path.clone());
        assert!(source.token().await.is_err());
        std::fs::write(&path, "  first\n").expect("written");
        assert_eq!(source.token().await.expect("readable").as_deref(), Some("first"));
        std::fs::write(&path, "second").expect("written");
        assert_eq!(source.token().await.expect("readable").as_deref(), Some("second"));
    }

    #[tokio::test]
    async fn an_empty_or_endless_token_file_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        for text in [String::from(" \n"), "x".repeat(70_000)] {
            std::fs::write(&path, text).expect("written");
            assert!(FileToken::new(path.clone()).token().await.is_err());
        }
        assert!(FileToken::new("/dev/zero".into()).token().await.is_err());
    }
}

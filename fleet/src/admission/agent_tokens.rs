//! A token of each agent, in a file: lines `ID TOKEN`, or `ID sha256:DIGEST` where the file shall hold
//! no secret. Two lines of one agent are two tokens of it, so that a token can be replaced.
//!
//! The file is looked at with every call and read when it changed. A file that cannot be used changes
//! nothing; the log says so.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::hint::black_box;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use guest_agent_serve_kit::lock::lock;
use guest_fleet_sessions::admission::{Admission, Admitted, Peer, unauthenticated};
use sha2::{Digest, Sha256};
use thiserror::Error;
use tonic::Status;

use crate::chain::Chain;
use crate::enroll::AgentId;

/// Largest file: the tokens of a hundred thousand agents.
const MAX_FILE_BYTES: u64 = 32 << 20;
/// Shorter tokens could be guessed.
const MIN_TOKEN_BYTES: usize = 16;
/// What a digest in place of a token begins with.
const DIGEST: &str = "sha256:";

type Sha = [u8; 32];
/// Which file it is, and when it was changed last.
type Stamp = (u64, u64, i64, i64);

/// Admits each agent by its own token.
pub struct AgentTokens {
    path: PathBuf,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    stamp: Option<Stamp>,
    tokens: Arc<HashMap<String, Vec<Sha>>>,
}

/// Why a file of tokens cannot be used.
#[derive(Debug, Error)]
pub enum AgentTokensError {
    /// It cannot be read.
    #[error("the tokens in `{}` cannot be read", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A line is not one of a token.
    #[error(
        "line {line} of `{}` {problem}: write `AGENT-ID TOKEN`, or `AGENT-ID sha256:DIGEST`",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it. It does not show the token.
        problem: &'static str,
    },
    /// Nobody could connect.
    #[error("`{}` names no agent: write a line `AGENT-ID TOKEN` for each", .0.display())]
    Empty(PathBuf),
}

// === impl AgentTokens ===

impl AgentTokens {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// See [`AgentTokensError`].
    pub async fn open(path: PathBuf) -> Result<Self, AgentTokensError> {
        let tokens = Self { path, known: Mutex::default() };
        tokens.look().await?;
        Ok(tokens)
    }

    /// The tokens, read again if the file changed.
    async fn look(&self) -> Result<Arc<HashMap<String, Vec<Sha>>>, AgentTokensError> {
        let (path, former) = (self.path.clone(), lock(&self.known).stamp);
        let reading = tokio::task::spawn_blocking(move || read(&path, former));
        let failed = |error| AgentTokensError::File {
            path: self.path.clone(),
            source: io::Error::other(error),
        };
        let read = reading.await.map_err(failed)?;
        let mut known = lock(&self.known);
        match read {
            Ok(None) => {}
            Ok(Some((stamp, tokens))) => {
                *known = Known { stamp: Some(stamp), tokens: Arc::new(tokens) };
            }
            Err((stamp, error)) => {
                // It is written about once, and read again when it changes.
                known.stamp = stamp.or(known.stamp);
                return Err(error);
            }
        }
        Ok(known.tokens.clone())
    }
}

#[async_trait]
impl Admission for AgentTokens {
    async fn admit(&self, peer: &Peer<'_>, resource: &str) -> Result<Admitted, Status> {
        let token = peer.bearer.ok_or_else(|| unauthenticated("the bearer token is missing"))?;
        let tokens = match self.look().await {
            Ok(tokens) => tokens,
            Err(error) => {
                tracing::error!(error = %Chain(&error), "the former tokens of agents are used");
                lock(&self.known).tokens.clone()
            }
        };
        let shown: Sha = Sha256::digest(token).into();
        let of_agent = tokens.get(resource).map(Vec::as_slice).unwrap_or_default();
        // Digests are compared to the end: how long it takes says nothing about the tokens.
        let is_one = |is_found, known: &Sha| {
            let different =
                known.iter().zip(&shown).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
            is_found | (different == 0)
        };
        match of_agent.iter().fold(false, is_one) {
            true => Ok(Admitted { agent: resource.to_owned(), ..Admitted::default() }),
            // The same for an agent that the file does not name.
            false => Err(unauthenticated("the bearer token is not one of this agent")),
        }
    }
}

type Reading =
    Result<Option<(Stamp, HashMap<String, Vec<Sha>>)>, (Option<Stamp>, AgentTokensError)>;

/// Reads the file, unless it is the one of this stamp. Blocks.
fn read(path: &Path, former: Option<Stamp>) -> Reading {
    let failed = |source| (None, AgentTokensError::File { path: path.to_owned(), source });
    let file = File::open(path).map_err(failed)?;
    let stamp = stamp(&file.metadata().map_err(failed)?);
    if former == Some(stamp) {
        return Ok(None);
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(failed)?;
    parse(path, &text).map(|tokens| Some((stamp, tokens))).map_err(|error| (Some(stamp), error))
}

fn stamp(metadata: &Metadata) -> Stamp {
    (metadata.ino(), metadata.size(), metadata.ctime(), metadata.ctime_nsec())
}

fn parse(path: &Path, text: &str) -> Result<HashMap<String, Vec<Sha>>, AgentTokensError> {
    let mut tokens: HashMap<String, Vec<Sha>> = HashMap::new();
    let lines = text.lines().map(str::trim).enumerate();
    for (at, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let bad = |problem| AgentTokensError::Line { path: path.to_owned(), line: at + 1, problem };
        let mut words = line.split_whitespace();
        let (Some(id), Some(token), None) = (words.next(), words.next(), words.next()) else {
            return Err(bad("does not consist of an id and a token"));
        };
        let id: AgentId = id.parse().map_err(|_| bad("begins with what is no id of an agent"))?;
        let digest = match token.strip_prefix(DIGEST) {
            Some(digest) => unhex(digest).ok_or_else(|| bad("has a digest without 64 digits"))?,
            None if token.len() < MIN_TOKEN_BYTES => {
                return Err(bad("has a token of less than 16 bytes"));
            }
            None => Sha256::digest(token).into(),
        };
        tokens.entry(id.to_string()).or_default().push(digest);
    }
    if tokens.is_empty() {
        return Err(AgentTokensError::Empty(path.to_owned()));
    }
    Ok(tokens)
}

fn unhex(text: &str) -> Option<Sha> {
    let mut digest = Sha::default();
    if text.len() != 2 * digest.len() || !text.is_ascii() {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(digest)
}

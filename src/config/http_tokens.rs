//! The file of `api.http_tokens_file`: who may do what over HTTP, a token per line.
//!
//! ```text
//! # NAME  SCOPES    DIGEST OF THE TOKEN     and when it ends, if it does
//! grafana read      sha256:5e88…            expires 2030-01-31T00:00:00Z
//! alice   read,act  sha256:9f86…
//! ```
//!
//! The agent, `doctor` and `http-token` read it here. A line that leaves a doubt gives nobody access
//! and takes none from the other lines. The file has no secrets, but who can write it can let
//! themselves in: one that others can write is not used at all.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_actors::model::id::Sha256Digest;
use jiff::Timestamp;

pub mod edit;

/// Most tokens of a file. The lines of further ones give nobody access.
pub const TOKENS_MAX: usize = 256;

/// Largest file, in bytes.
pub const BYTES_MAX: u64 = 64 << 10;

/// Longest name of a token.
const NAME_MAX: usize = 64;

/// The names of the tokens of `api.http_token_file` and `api.http_admin_token_file`.
pub const READER: &str = "reader";
/// See [`READER`].
pub const ADMIN: &str = "admin";

/// How long before its end a token is reported.
const NOTICE: Duration = Duration::from_secs(7 * 24 * 3600);

/// What the digest of a token begins with.
const SHA256: &str = "sha256:";

/// What stands before the end of a token.
const EXPIRES: &str = "expires";

/// The lines of a file that can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpTokens {
    /// The tokens, in the order of their lines.
    pub tokens: Vec<HttpToken>,
    /// The lines that give nobody access.
    pub mistakes: Vec<Mistake>,
}

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpToken {
    /// Who acts with it.
    pub name: Arc<str>,
    /// What it allows.
    pub scopes: Scopes,
    /// The digest of the secret.
    pub digest: Sha256Digest,
    /// When it ends; `None`: when its line is deleted.
    pub expires: Option<SystemTime>,
    /// The number of its line, from 1 on.
    pub line: usize,
}

/// What a token allows, as its line says it. Who may act may look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scopes {
    /// `read`.
    Read,
    /// `act`.
    Act,
    /// `read,act`.
    ReadAndAct,
}

/// A line that gives nobody access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The number of the line, from 1 on.
    pub line: usize,
    /// What is wrong with it. Repeats nothing of it but a name, because somebody may have written a
    /// secret there.
    pub reason: String,
}

/// Why no line of a file gives anybody access.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is no file whose lines could be tokens.
    #[error("{} {reason}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and the fix.
        reason: String,
    },
}

// === impl HttpTokens ===

impl HttpTokens {
    /// Reads a file of root or of the user of this process. Blocks.
    ///
    /// # Errors
    /// No line of it can be trusted.
    pub fn read(path: &Path) -> Result<Self, Unusable> {
        Self::read_of(path, |_| false)
    }

    /// The same for a process that is not the agent, with the other users that may own the file.
    ///
    /// # Errors
    /// No line of it can be trusted.
    pub fn read_of(path: &Path, may_own: impl Fn(u32) -> bool) -> Result<Self, Unusable> {
        Ok(Self::parse(&read(path, may_own)?))
    }

    /// Reads lines.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut found = Self::default();
        for (line, text) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
            match parse_line(text) {
                Ok(None) => {}
                Ok(Some(_)) if found.tokens.len() >= TOKENS_MAX => {
                    let reason = format!("there are {TOKENS_MAX} tokens before it, the most");
                    found.mistakes.push(Mistake { line, reason });
                }
                Ok(Some(token)) => found.tokens.push(HttpToken { line, ..token }),
                Err(reason) => found.mistakes.push(Mistake { line, reason }),
            }
        }
        found.refuse_ambiguous();
        found.mistakes.sort_by_key(|mistake| mistake.line);
        found
    }

    /// Whether a request without a token may not even look. One line that says so is enough, and so is
    /// a doubt: a token that ended still says it, and a line with a mistake may have meant it.
    #[must_use]
    pub fn keep_strangers_out(&self) -> bool {
        let says_read = |token: &HttpToken| token.scopes != Scopes::Act;
        self.tokens.is_empty() || !self.mistakes.is_empty() || self.tokens.iter().any(says_read)
    }

    /// Takes out the tokens that have a name or a secret in common with another one.
    fn refuse_ambiguous(&mut self) {
        let twin = |token: &HttpToken| {
            let is_twin = |other: &&HttpToken| {
                other.line != token.line
                    && (other.name == token.name || other.digest == token.digest)
            };
            let other = self.tokens.iter().find(is_twin)?;
            let what = if other.name == token.name { "the name" } else { "the token" };
            let reason = format!("line {} has {what} as well; no two lines share one", other.line);
            Some(Mistake { line: token.line, reason })
        };
        let mistakes: Vec<Mistake> = self.tokens.iter().filter_map(twin).collect();
        let is_wrong = |line| mistakes.iter().any(|mistake| mistake.line == line);
        self.tokens.retain(|token| !is_wrong(token.line));
        self.mistakes.extend(mistakes);
    }
}

// === impl HttpToken ===

impl HttpToken {
    /// Whether it is over.
    #[must_use]
    pub fn has_ended(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// What to say about its end and what to do, where it is over or near: a sentence.
    #[must_use]
    pub fn trouble(&self, now: SystemTime) -> Option<String> {
        let expires = self.expires?;
        let (name, at) = (&self.name, shown(expires));
        if self.has_ended(now) {
            return Some(format!(
                "the HTTP token {name} has ended at {at} and is refused; delete it with `guest-agent \
                 http-token revoke {name}`"
            ));
        }
        let left = expires.duration_since(now).unwrap_or_default();
        (left <= NOTICE).then(|| {
            format!(
                "the HTTP token {name} ends at {at}; make another one with `guest-agent http-token \
                 new`, and then delete this one with `guest-agent http-token revoke {name}`"
            )
        })
    }

    /// When the sentence about it changes next.
    #[must_use]
    pub fn next_change(&self, now: SystemTime) -> Option<SystemTime> {
        let expires = self.expires?;
        let notice = expires.checked_sub(NOTICE).unwrap_or(SystemTime::UNIX_EPOCH);
        [notice, expires].into_iter().find(|at| *at > now)
    }
}

impl fmt::Display for HttpToken {
    /// Its line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {SHA256}{}", self.name, self.scopes.name(), self.digest)?;
        match self.expires {
            Some(expires) => write!(f, " {EXPIRES} {}", shown(expires)),
            None => Ok(()),
        }
    }
}

// === impl Scopes ===

impl Scopes {
    /// As a line has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Act => "act",
            Self::ReadAndAct => "read,act",
        }
    }

    /// Whether it allows more than looking.
    #[must_use]
    pub const fn can_act(self) -> bool {
        match self {
            Self::Read => false,
            Self::Act | Self::ReadAndAct => true,
        }
    }

    /// Reads scopes with commas between.
    fn parse(text: &str) -> Option<Self> {
        let mut scopes = None;
        for word in text.split(',') {
            scopes = Some(match (word, scopes) {
                ("read", None) => Self::Read,
                ("act", None) => Self::Act,
                ("act", Some(Self::Read)) | ("read", Some(Self::Act)) => Self::ReadAndAct,
                _ => return None,
            });
        }
        scopes
    }
}

// === impl Mistake ===

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} gives nobody access: {}", self.line, self.reason)
    }
}

/// Whether a token may have this name.
///
/// # Errors
/// Says what a name is.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_part) {
        return Err(format!(
            "a token is named with 1 to {NAME_MAX} letters, digits, dots, underscores and hyphens"
        ));
    }
    if [READER, ADMIN].contains(&name) {
        return Err(format!(
            "{name} is the name of a token in a file of its own (api.http_token_file is {READER}, \
             api.http_admin_token_file is {ADMIN}); name this one otherwise"
        ));
    }
    Ok(())
}

/// Reads a file that nobody but its owner can write, in its bounds.
fn read(path: &Path, may_own: impl Fn(u32) -> bool) -> Result<Vec<u8>, Unusable> {
    let failed = |source| Unusable::Read { path: path.to_owned(), source };
    let unfit = |reason: String| Unusable::Unfit { path: path.to_owned(), reason };
    // A pipe without a writer would hold on to a thread for ever.
    let flags = nix::libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let stat = file.metadata().map_err(failed)?;
    if !stat.is_file() {
        return Err(unfit("is not a file; name a file".to_owned()));
    }
    let own = rustix::process::geteuid().as_raw();
    if stat.uid() != 0 && stat.uid() != own && !may_own(stat.uid()) {
        let owner = stat.uid();
        return Err(unfit(format!(
            "belongs to uid {owner}, who can let anybody in; chown it to root"
        )));
    }
    if stat.mode() & 0o022 != 0 {
        let mode = stat.mode() & 0o7777;
        return Err(unfit(format!(
            "has the mode {mode:04o}, so other users can let anybody in; `chmod 600` it"
        )));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(unfit(format!("is larger than {BYTES_MAX} bytes; delete lines")));
    }
    Ok(bytes)
}

/// The token of a line; `None` where it has only a comment.
fn parse_line(line: &[u8]) -> Result<Option<HttpToken>, String> {
    let text = std::str::from_utf8(line).map_err(|_| "it is not UTF-8 text".to_owned())?;
    let words = text.split_whitespace().take_while(|word| !word.starts_with('#'));
    let words: Vec<&str> = words.collect();
    let (name, scopes, digest, expires) = match words.as_slice() {
        [] => return Ok(None),
        [name, scopes, digest] => (name, scopes, digest, None),
        [name, scopes, digest, word, expires] if *word == EXPIRES => {
            (name, scopes, digest, Some(expires))
        }
        _ => {
            return Err(format!(
                "it is not a name, scopes and a digest, and perhaps `{EXPIRES}` with a time"
            ));
        }
    };
    check_name(name)?;
    let Some(scopes) = Scopes::parse(scopes) else {
        return Err(format!("the scopes of {name} are not `read`, `act` or `read,act`"));
    };
    let digest = digest.strip_prefix(SHA256).and_then(|digits| digits.parse().ok());
    let Some(digest) = digest else {
        return Err(format!(
            "the digest of {name} is not `{SHA256}` and 64 hexadecimal digits; make the line with \
             `guest-agent http-token new`"
        ));
    };
    let expires = expires
        .map(|time| time.parse::<Timestamp>())
        .transpose()
        .map_err(|_| format!("the end of {name} is not a time such as 2030-01-31T12:00:00Z"))?;
    let (name, expires) = (Arc::from(*name), expires.map(SystemTime::from));
    Ok(Some(HttpToken { name, scopes, digest, expires, line: 0 }))
}

/// A time in RFC 3339, in whole seconds.
fn shown(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or(Timestamp::MAX);
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

#[cfg(test)]
mod tests;

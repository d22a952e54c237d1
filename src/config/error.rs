//! Why a configuration cannot be used.

use std::fmt;
use std::path::PathBuf;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A named file does not exist.
    #[error("the configuration file {} does not exist", path.display())]
    Missing { path: PathBuf },
    /// A file or directory cannot be read.
    #[error("failed to read the configuration {}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A file is not valid TOML.
    #[error("{} is not valid TOML: {reason}", path.display())]
    Syntax {
        path: PathBuf,
        /// The position and the reason. Never quotes the file's text, which may contain secrets.
        reason: String,
    },
    /// A `--set` without the form `section.key=value`.
    #[error("--set {text:?} is not of the form section.key=value")]
    Set {
        /// The whole text: it has no equals sign.
        text: String,
    },
    /// Keys or values that are not valid; never empty.
    #[error("the configuration has {}: {}", Count(.0.len()), Listed(.0))]
    Problems(Vec<Problem>),
}

/// One mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key, as `section.key`.
    pub key: String,
    /// Its source: a file, a variable, a flag, or `the defaults`.
    pub origin: String,
    /// What is wrong, and what to write instead.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (set in {}): {}", self.key, self.origin, self.reason)
    }
}

struct Count(usize);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("a mistake"),
            more => write!(f, "{more} mistakes"),
        }
    }
}

struct Listed<'a>(&'a [Problem]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

//! What is wrong with a declaration: where, what, why and how to put it right.

use std::fmt;

use thiserror::Error;

/// Most problems that are kept of one reading.
const PROBLEMS: usize = 1000;

/// A place in a text, both numbers from 1; the column counts characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// One problem of one declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, as it was found below the directory.
    pub file: String,
    /// Where in the file; `None` for the file as a whole.
    pub place: Option<Place>,
    /// The key, such as `release.archives.amd64.sha256`; empty for the file as a whole.
    pub key: String,
    /// What is wrong.
    pub reason: String,
    /// What puts it right.
    pub fix: String,
}

/// The declarations have problems: nothing of them is used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the declarations have {} problem{}", .0.len(), if .0.len() == 1 { "" } else { "s" })]
pub struct Problems(pub Vec<Problem>);

/// Collects problems of one file after the other.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    problems: Vec<Problem>,
}

// === impl Problem ===

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(Place { line, column }) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}; {}", self.reason, self.fix)
    }
}

// === impl Collector ===

impl Collector {
    /// Adds a problem; beyond a thousand it is left out.
    pub(crate) fn add(&mut self, problem: Problem) {
        if self.problems.len() < PROBLEMS {
            self.problems.push(problem);
        }
    }

    /// The value, or all problems in the order of files and places.
    pub(crate) fn finish<T>(self, value: T) -> Result<T, Problems> {
        if self.problems.is_empty() {
            return Ok(value);
        }
        let mut problems = self.problems;
        problems.sort_by(|a, b| (&a.file, a.place, &a.key).cmp(&(&b.file, b.place, &b.key)));
        Err(Problems(problems))
    }
}

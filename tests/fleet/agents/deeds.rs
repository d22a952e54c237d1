//! The deeds of an agent, one line each, in a file that survives the kill of its process: a line is
//! written with one call, before its deed is seen from outside.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

const FILE: &str = "deeds";

/// The file of one agent.
pub(super) struct Deeds(File);

/// A deed of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Deed {
    /// It took an order: the order and its generation are durable.
    Taken { plugin: String, generation: u64 },
    /// It began to install a revision.
    Installing { plugin: String, revision: String },
    /// It started a process.
    Launched { plugin: String, revision: String },
    /// The process of a plugin ended by itself.
    Crashed { plugin: String, revision: String },
    /// An event is durable. The agent sends it until the gateway acknowledges it.
    Told { plugin: String, revision: String, event: Outcome },
    /// It ended the process of a plugin.
    Stopped { plugin: String },
    /// It deleted the files of a plugin.
    Removed { plugin: String },
    /// Its store was not what it had been.
    StoreLost(String),
}

/// The events that say how an order goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The order was taken up.
    Begun,
    /// The revision is installed and runs.
    Installed,
    /// The revision was not installed, or did not stay.
    NotInstalled,
}

/// A deed, and when it was done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Milliseconds since the Unix epoch.
    pub(crate) at: u64,
    pub(crate) deed: Deed,
}

// === impl Deeds ===

impl Deeds {
    pub(super) fn open(directory: &Path) -> Self {
        let file = File::options().create(true).append(true).open(directory.join(FILE));
        Self(file.unwrap())
    }

    pub(super) fn note(&self, deed: &Deed) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let line = Line { at: u64::try_from(at).unwrap(), deed: deed.clone() };
        let text = serde_json::to_string(&line).unwrap() + "\n";
        (&self.0).write_all(text.as_bytes()).unwrap();
    }
}

/// The deeds of an agent in all its lives, in order. A line that is being written has no end yet.
pub(crate) fn read_lines(directory: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(directory.join(FILE)).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The same without the times.
pub(crate) fn read(directory: &Path) -> Vec<Deed> {
    read_lines(directory).into_iter().map(|line| line.deed).collect()
}

//! What an order wants: one revision of one plugin, with every default filled in.
//!
//! `wire` makes these from an order and checks every field; `snapshot` writes them to disk and
//! reads them back. Nothing here knows either form.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::model::id::{PluginName, RevisionId, Sha256Digest};

mod execution;

pub use execution::{
    Boot, EXECUTION_TIMEOUT, Enablement, Execution, Kind, MatchPolicy, OneShot, Operator, Rule,
    Rules, Triggers,
};

/// One revision of one plugin, as ordered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PluginSpec {
    /// The plugin.
    pub name: PluginName,
    /// The revision.
    pub revision: RevisionId,
    /// Where its files come from.
    pub source: Source,
    /// What is executed.
    pub entry_point: EntryPoint,
    /// Arguments that come before the agent's own.
    pub arguments: Vec<String>,
    /// Resources it may use.
    pub limits: Limits,
    /// How it is downloaded.
    pub download: Tries,
    /// How it is started.
    pub start: Tries,
    /// How long a stop may take before the process is killed.
    pub stop_timeout: Duration,
    /// How it is measured.
    pub metrics: MetricsPolicy,
    /// Factor by which the pause before a restart grows.
    pub backoff_factor: u32,
    /// The configuration that the agent passes to it in the Start call.
    pub config: Option<Config>,
    /// When it runs, and where.
    pub execution: Execution,
    /// SHA-256 of the body of the message by which a control plane ordered it. `None` where it came
    /// in another way: from this machine, or in one message with orders for other plugins. It asks
    /// for nothing.
    pub order_digest: Option<Sha256Digest>,
}

/// Where the files of a revision come from.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// An archive that is downloaded, and whose files are the agent's.
    Archive(Artifact),
    /// A folder that came with the machine. Its files are not the agent's: it never deletes them.
    Local(LocalFiles),
}

/// The files of a plugin that came with the machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalFiles {
    /// The folder that its manifest is in.
    pub folder: Arc<str>,
    /// What the entry point hashed to when the manifest was read.
    pub sha256: Sha256Digest,
}

/// An archive and the digest it must have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Artifact {
    /// Where it is.
    pub url: ArtifactUrl,
    /// What its bytes hash to.
    pub sha256: Sha256Digest,
}

/// Where an archive is.
///
/// A signed URL is a secret; `Debug` and `Display` show neither query nor user.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ArtifactUrl(Arc<str>);

/// Path of an executable, without `..`: inside an archive always relative; of a local plugin
/// relative to its folder, or absolute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntryPoint(Arc<str>);

/// Resources a plugin may use. `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Memory of the whole process tree, in bytes.
    pub memory_bytes: Option<u64>,
    /// CPU time of the whole process tree, in percent of one core.
    pub cpu_percent: Option<u32>,
    /// Processes and threads of the whole process tree. No order gives one: `None` is the agent's
    /// setting `plugins.max_tasks`.
    pub tasks: Option<u64>,
}

/// How often something is tried, and how long one try may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tries {
    /// At least one.
    pub attempts: u32,
    /// Of one attempt.
    pub timeout: Duration,
}

/// How a plugin is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MetricsPolicy {
    /// Time between two samples.
    pub interval: Duration,
    /// How many samples are kept for a report.
    pub points: usize,
}

/// The configuration that the agent passes to a plugin in the Start call, in the form in which the
/// order had it.
///
/// Configurations hold secrets; `Debug` shows their form and length.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Config {
    /// A text whose meaning only the plugin knows.
    Text(Arc<str>),
    /// An encoded `google.protobuf.Struct` with its map keys sorted.
    Struct(Arc<[u8]>),
}

/// What has to happen for a changed order of the same revision to take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Nothing that a running plugin would notice: timeouts, limits on retries, the URL.
    Unnoticed,
    /// Only the configuration, which can be handed to a running plugin.
    Config,
    /// The limits, which can be set while it runs, and at most the configuration besides.
    Limits,
    /// What it is started with: entry point, arguments; or it runs to completion now and did
    /// not before, or the other way round.
    Launch,
    /// Another archive under the same revision.
    Archive,
}

// === impl PluginSpec ===

impl PluginSpec {
    /// A daemon of which an order says nothing but what it is: everything else is as the protocol's
    /// defaults have it.
    #[must_use]
    pub fn plain(
        name: PluginName,
        revision: RevisionId,
        source: Source,
        entry_point: EntryPoint,
    ) -> Self {
        Self {
            name,
            revision,
            source,
            entry_point,
            arguments: Vec::new(),
            limits: Limits::default(),
            download: Tries { attempts: 5, timeout: Duration::from_secs(60) },
            start: Tries { attempts: 3, timeout: Duration::from_secs(30) },
            stop_timeout: Duration::from_secs(30),
            metrics: MetricsPolicy { interval: Duration::from_secs(10), points: 60 },
            backoff_factor: 2,
            config: None,
            execution: Execution::default(),
            order_digest: None,
        }
    }

    /// What differs between this spec and `other` of the same revision, the weightiest first.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Difference {
        if !self.source.is_local() && !self.source.has_files_of(&other.source) {
            Difference::Archive
        } else if self.source.is_local() && self.source != other.source
            || self.entry_point != other.entry_point
            || self.arguments != other.arguments
            || self.execution.one_shot().is_some() != other.execution.one_shot().is_some()
        {
            Difference::Launch
        } else if self.limits != other.limits {
            Difference::Limits
        } else if self.config != other.config {
            Difference::Config
        } else {
            Difference::Unnoticed
        }
    }

    /// Whether its files came with the machine.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        self.source.is_local()
    }

    /// Whether both stand for the same revision. A local revision and a dynamic one are two, also
    /// when they are called the same.
    #[must_use]
    pub fn is_revision_of(&self, other: &Self) -> bool {
        self.revision == other.revision && self.is_local() == other.is_local()
    }

    /// Whether both are the same revision, made from the same files.
    #[must_use]
    pub fn has_files_of(&self, other: &Self) -> bool {
        self.is_revision_of(other) && self.source.has_files_of(&other.source)
    }

    /// Whether both ask for the same, whichever orders they came by.
    #[must_use]
    pub fn asks_the_same(&self, other: &Self) -> bool {
        self.config == other.config && self.is_but_for_config(other)
    }

    /// Whether both ask for the same but for their configuration.
    #[must_use]
    pub fn is_but_for_config(&self, other: &Self) -> bool {
        let (config, order_digest) = (other.config.clone(), other.order_digest);
        Self { config, order_digest, ..self.clone() } == *other
    }
}

// === impl Limits ===

impl Limits {
    /// These limits, and those of `others` where these give none.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.or(others.memory_bytes),
            cpu_percent: self.cpu_percent.or(others.cpu_percent),
            tasks: self.tasks.or(others.tasks),
        }
    }
}

// === impl Source ===

impl Source {
    /// Whether the files came with the machine.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::Local(_))
    }

    /// What the archive, or the entry point of a local plugin, hashes to.
    #[must_use]
    pub const fn sha256(&self) -> Sha256Digest {
        match self {
            Self::Archive(artifact) => artifact.sha256,
            Self::Local(files) => files.sha256,
        }
    }

    /// Whether both stand for the same files. The same archive may be fetched from two places.
    #[must_use]
    pub fn has_files_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Archive(one), Self::Archive(two)) => one.sha256 == two.sha256,
            (Self::Local(one), Self::Local(two)) => one == two,
            (Self::Archive(_), Self::Local(_)) | (Self::Local(_), Self::Archive(_)) => false,
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Archive(artifact) => artifact.fmt(f),
            Self::Local(files) => files.fmt(f),
        }
    }
}

// === impl ArtifactUrl ===

impl ArtifactUrl {
    /// Wraps a URL that `wire` has checked.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self(url.into())
    }

    /// The whole URL, secrets included: for the downloader only.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ArtifactUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = &*self.0;
        let bare = url.split(['?', '#']).next().unwrap_or_default();
        match bare.split_once("://") {
            Some((scheme, rest)) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                let host = authority.rsplit('@').next().unwrap_or_default();
                write!(f, "{scheme}://{host}{path}")
            }
            None => f.write_str(bare),
        }
    }
}

impl fmt::Debug for ArtifactUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl EntryPoint ===

/// Why a text is not an entry point.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry point {path:?} {reason}")]
pub struct EntryPointError {
    path: String,
    reason: &'static str,
}

impl EntryPoint {
    /// Takes a relative path that stays inside the archive.
    ///
    /// # Errors
    /// Says why the path could leave the archive or cannot be a path.
    pub fn parse(path: &str) -> Result<Self, EntryPointError> {
        if path.starts_with('/') {
            return Err(wrong(path, "is absolute; give the path inside the archive"));
        }
        Self::parse_local(path)
    }

    /// Takes a path that is absolute, or relative and stays inside its folder.
    ///
    /// # Errors
    /// Says why the path could leave the folder or cannot be a path.
    pub fn parse_local(path: &str) -> Result<Self, EntryPointError> {
        let wrong = |reason| wrong(path, reason);
        if path.is_empty() {
            return Err(wrong("is empty"));
        }
        if path.len() > 1024 {
            return Err(wrong("is longer than 1024 bytes"));
        }
        if path.contains('\0') {
            return Err(wrong("contains a NUL byte"));
        }
        if path.split('/').any(|part| part == "..") {
            return Err(wrong("contains '..'; give the path without it"));
        }
        if path.split('/').all(|part| part.is_empty() || part == ".") {
            return Err(wrong("names a folder, not a file in it"));
        }
        Ok(Self(path.into()))
    }

    /// The path, relative to the revision's folder, or absolute where that is allowed.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn wrong(path: &str, reason: &'static str) -> EntryPointError {
    EntryPointError { path: path.chars().take(80).collect(), reason }
}

// === impl Config ===

impl Config {
    /// The digest that is reported as `config_hash`.
    #[must_use]
    pub fn digest(&self) -> Sha256Digest {
        match self {
            Self::Text(text) => Sha256Digest::of(text.as_bytes()),
            Self::Struct(bytes) => Sha256Digest::of(bytes),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Struct(bytes) => write!(f, "Struct({} bytes)", bytes.len()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A spec that nothing is wrong with.
    pub(crate) fn spec(name: &str, revision: &str) -> Arc<PluginSpec> {
        Arc::new(PluginSpec {
            name: name.parse().expect("a name"),
            revision: revision.parse().expect("a revision"),
            source: Source::Archive(Artifact {
                url: ArtifactUrl::new("https://store.example/a.tar.gz?signature=secret"),
                sha256: Sha256Digest::of(revision.as_bytes()),
            }),
            entry_point: EntryPoint::parse("bin/plugin").expect("a path"),
            arguments: vec!["--verbose".to_owned()],
            limits: Limits { memory_bytes: Some(1 << 20), ..Limits::default() },
            download: Tries { attempts: 5, timeout: Duration::from_secs(60) },
            start: Tries { attempts: 3, timeout: Duration::from_secs(30) },
            stop_timeout: Duration::from_secs(30),
            metrics: MetricsPolicy { interval: Duration::from_secs(10), points: 60 },
            backoff_factor: 2,
            config: Some(Config::Text("config".into())),
            execution: Execution::default(),
            order_digest: None,
        })
    }

    /// A spec of a plugin that came with the machine.
    pub(crate) fn local_spec(name: &str, revision: &str) -> Arc<PluginSpec> {
        let mut spec = PluginSpec::clone(&spec(name, revision));
        spec.source = Source::Local(LocalFiles {
            folder: format!("/usr/lib/guest-agent/plugins/{name}").into(),
            sha256: Sha256Digest::of(revision.as_bytes()),
        });
        Arc::new(spec)
    }

    #[test]
    fn a_local_revision_is_never_the_dynamic_one_of_the_same_name() {
        let (dynamic, local) = (spec("a", "1"), local_spec("a", "1"));
        assert!(!dynamic.is_revision_of(&local) && !local.has_files_of(&dynamic));
        assert!(local.is_revision_of(&local) && dynamic.has_files_of(&dynamic));
    }

    #[test]
    fn a_local_plugin_with_other_files_has_to_be_started_afresh() {
        let old = local_spec("a", "1");
        let mut new = PluginSpec::clone(&old);
        let (folder, sha256) = ("/elsewhere".into(), Sha256Digest::of(b"other"));
        new.source = Source::Local(LocalFiles { folder, sha256 });
        assert_eq!(old.difference(&new), Difference::Launch);
    }

    #[test]
    fn other_limits_alone_do_not_ask_for_another_start() {
        let old = spec("a", "1");
        let mut new = PluginSpec::clone(&old);
        new.limits = Limits { cpu_percent: Some(5), ..Limits::default() };
        new.config = None;
        assert_eq!(old.difference(&new), Difference::Limits);
        new.arguments.clear();
        assert_eq!(old.difference(&new), Difference::Launch);
    }

    #[test]
    fn the_order_that_a_spec_came_by_asks_for_nothing() {
        let old = spec("a", "1");
        let mut new = PluginSpec::clone(&old);
        new.order_digest = Some(Sha256Digest::of(b"an order"));
        assert!(old.asks_the_same(&new) && old.is_but_for_config(&new) && *old != new);
        assert_eq!(old.difference(&new), Difference::Unnoticed);
        new.config = None;
        assert!(!old.asks_the_same(&new) && old.is_but_for_config(&new));
    }

    #[test]
    fn only_a_local_entry_point_may_be_absolute() {
        assert!(EntryPoint::parse_local("/usr/sbin/agent").is_ok());
        for bad in ["", "..", "/usr/../sbin/x", "/", "//", "."] {
            assert!(EntryPoint::parse_local(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_printed_url_shows_neither_query_nor_user() {
        let url = ArtifactUrl::new("https://me:secret@store.example/a/b.tgz?X-Signature=abc#frag");
        assert_eq!(url.to_string(), "https://store.example/a/b.tgz");
        assert_eq!(format!("{url:?}"), url.to_string());
        let bare = ArtifactUrl::new("http://host?signature=abc");
        assert_eq!(bare.to_string(), "http://host");
    }

    #[test]
    fn a_printed_config_shows_only_its_size() {
        assert_eq!(format!("{:?}", Config::Text("password".into())), "Text(8 bytes)");
    }

    #[test]
    fn entry_points_that_could_leave_the_archive_are_refused() {
        for bad in ["", "/bin/sh", "..", "a/../../b", "a/..", ".", "./", "a\0b"] {
            assert!(EntryPoint::parse(bad).is_err(), "{bad:?} was taken");
        }
        for good in ["run", "bin/agent", "./bin/agent", "a..b/c"] {
            assert!(EntryPoint::parse(good).is_ok(), "{good:?} was refused");
        }
    }
}

//! Archives that attack the machine, and archives that are only unusual.
//!
//! Each is installed for real, next to files that must not change: another revision of the plugin,
//! another plugin, and files outside. A refused archive gives its reason and leaves nothing; of an
//! unusual one that is installed the test states exactly what it became. [`Yard`] has the
//! surroundings; each file has the archives of one kind.

mod bombs;
mod headers;
mod kinds;
mod links;
mod names;
mod numbers;
mod streams;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::{RevisionId, Sha256Digest};
use guest_agent_actors::ports::{InstallError, InstallStep, Installer, Progress};
use tokio::sync::watch;

use super::super::trust::Trust;
use super::super::{Limits, Pipeline, PipelineConfig};
use super::rig::{PATIENCE, listing, spec};
use super::tarball::{SCRIPT, Tarball, gzip, xz, zstd};
use super::witness::{Witness, inventory};
use crate::install::unpack::tree::Resolver;

/// One archive, and the expected result.
pub(super) struct Case {
    name: &'static str,
    archive: Archive,
    limits: Limits,
    step: InstallStep,
    fate: Fate,
}

enum Archive {
    /// A tar stream: how it is compressed makes no difference.
    Tar(Vec<u8>),
    /// The bytes of the archive.
    Bytes(Vec<u8>),
}

enum Fate {
    /// It is refused, with this text in the reason.
    Refused(&'static str),
    /// It is installed, with these files besides the program `run`.
    Taken(&'static [&'static str]),
}

/// A refused tar stream.
fn refused(name: &'static str, tar: Tarball, part: &'static str) -> Case {
    case(name, Archive::Tar(tar.finish()), Fate::Refused(part))
}

/// Refused bytes.
fn refused_bytes(name: &'static str, bytes: Vec<u8>, part: &'static str) -> Case {
    case(name, Archive::Bytes(bytes), Fate::Refused(part))
}

/// A tar stream that is installed.
fn taken(name: &'static str, tar: Tarball, inventory: &'static [&'static str]) -> Case {
    case(name, Archive::Tar(tar.finish()), Fate::Taken(inventory))
}

/// Bytes that are installed.
fn taken_bytes(name: &'static str, bytes: Vec<u8>, inventory: &'static [&'static str]) -> Case {
    case(name, Archive::Bytes(bytes), Fate::Taken(inventory))
}

fn case(name: &'static str, archive: Archive, fate: Fate) -> Case {
    Case { name, archive, limits: Limits::default(), step: InstallStep::Unpack, fate }
}

// === impl Case ===

impl Case {
    fn limited(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.limits);
        self
    }

    fn at(mut self, step: InstallStep) -> Self {
        self.step = step;
        self
    }
}

/// The files that must not change.
pub(super) struct Yard {
    dir: tempfile::TempDir,
    /// Archives lie elsewhere.
    archives: tempfile::TempDir,
    resolver: Resolver,
    before: Witness,
}

// === impl Yard ===

impl Yard {
    pub(super) async fn new(resolver: Resolver) -> Self {
        let dir = tempfile::tempdir().expect("temporary folder");
        let at = |name: &str| dir.path().join(name);
        let mode = |name: &str, mode| {
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("settable");
        };
        for folder in ["outside", "outside/shared", "state", "state/sample", "log"] {
            fs::create_dir(at(folder)).expect("folder");
        }
        fs::write(at("outside/file"), "precious").expect("file");
        fs::write(at("outside/shared/tool"), SCRIPT).expect("file");
        fs::write(at("state/sample/data"), "the plugin's own").expect("file");
        fs::hard_link(at("outside/file"), at("outside/twin")).expect("link");
        symlink("file", at("outside/link")).expect("link");
        mode("outside/file", 0o640);
        mode("outside/shared", 0o2775);
        mode("outside/shared/tool", 0o4711);
        mode("state/sample", 0o700);
        let mut yard = Self {
            before: Witness::of(&at("outside"), &[]),
            archives: tempfile::tempdir().expect("temporary folder"),
            resolver,
            dir,
        };
        let good = Tarball::good().file("lib/data", 0o644, b"old").symlink("l", "lib").finish();
        for (name, revision) in [("sample", "r0"), ("bystander", "r1")] {
            let pipeline = yard.pipeline(Limits::default());
            yard.install(&pipeline, name, revision, &good).await.expect("a good archive");
            let (name, revision) = (name.parse().expect("a name"), revision.parse());
            pipeline.activate(&name, &revision.expect("a revision")).await.expect("installed");
        }
        yard.before = yard.now();
        yard
    }

    /// The folder that archives try to write to.
    pub(super) fn outside() -> &'static str {
        "../../../outside"
    }

    fn pipeline(&self, limits: Limits) -> Pipeline {
        let mut pipeline = Pipeline::new(
            PipelineConfig {
                pressure: crate::install::PressurePolicy::default(),
                redirects: crate::install::RedirectRules::default(),
                plugins_dir: self.dir.path().join("plugins"),
                state_root: self.dir.path().join("state"),
                log_dir: self.dir.path().join("log"),
                cache_dir: self.dir.path().join("cache"),

                spool_dir: self.dir.path().join("spool"),
                cache_max_bytes: 0,
                limits,
                max_parallel: 1,
            },
            Trust::Anybody,
        )
        .expect("a temporary folder can be used");
        pipeline.downloader.resolver = self.resolver;
        pipeline
    }

    async fn install(
        &self,
        pipeline: &Pipeline,
        name: &str,
        revision: &str,
        archive: &[u8],
    ) -> Result<(), InstallError> {
        let digest = Sha256Digest::of(archive);
        let path = self.archives.path().join("archive");
        fs::write(&path, archive).expect("file");
        let mut spec = spec(&format!("file:{}", path.display()), digest);
        spec.name = name.parse().expect("a name");
        spec.revision = revision.parse().expect("a revision");
        let (sender, _receiver) = watch::channel(Progress::default());
        let install = pipeline.install(Arc::new(spec), sender);
        tokio::time::timeout(PATIENCE, install).await.expect("in time")
    }

    fn sample(&self) -> PathBuf {
        self.dir.path().join("plugins/sample")
    }

    fn now(&self) -> Witness {
        let plugins = self.dir.path().join("plugins");
        Witness::of(self.dir.path(), &[plugins.join("sample"), plugins])
    }

    #[track_caller]
    pub(super) fn assert_unchanged(&self, after: &str) {
        self.before.assert_same(&self.now(), after);
    }

    /// Installs an archive as `r1` and returns what it became, or why it was refused. Removes it
    /// again.
    pub(super) async fn try_out(
        &self,
        archive: &[u8],
        limits: Limits,
        name: &str,
    ) -> Result<Vec<String>, InstallError> {
        let pipeline = self.pipeline(limits);
        let result = self.install(&pipeline, "sample", "r1", archive).await;
        let made = result.is_ok().then(|| inventory(&self.sample().join("r1")));
        if made.is_some() {
            let revision: RevisionId = "r1".parse().expect("a revision");
            let plugin = "sample".parse().expect("a name");
            pipeline.discard(&plugin, &revision).await.expect("deletable");
        }
        assert_eq!(listing(&self.sample()), [".installed-r0", "current", "r0"], "{name}");
        self.assert_unchanged(name);
        result.map(|()| made.expect("it was installed"))
    }
}

/// Whether an error is fit for a person to read: it has a text on one line, without control
/// characters, and is not a bug.
#[track_caller]
pub(super) fn assert_readable(error: &InstallError, name: &str) -> String {
    let chain = Chain(error).to_string();
    assert!(!chain.contains("panicked"), "{name}: {chain}");
    assert!(!chain.contains(char::is_control), "{name}: {chain:?}");
    assert!(chain.len() < 1000, "{name}: {} bytes of reason", chain.len());
    chain
}

/// How the result of an archive differs from the expected one, if it does.
async fn check(case: &Case, archive: &[u8], yard: &Yard) -> Option<String> {
    let name = case.name;
    let result = yard.try_out(archive, case.limits, name).await;
    match (&case.fate, result) {
        (Fate::Refused(part), Err(error)) => {
            let chain = assert_readable(&error, name);
            let is_right = error.step == case.step && chain.contains(part);
            (!is_right).then(|| format!("{name}: {part:?} is not in: {:?}: {chain}", error.step))
        }
        (Fate::Taken(expected), Ok(mut made)) => {
            // These two are in all of them.
            let program = format!("file 755 run {} \"{}\"", SCRIPT.len(), SCRIPT.escape_ascii());
            made.retain(|line| *line != program && line != "folder 755 ");
            (made != *expected).then(|| format!("{name} came out as {made:#?}"))
        }
        (Fate::Refused(_), Ok(made)) => Some(format!("{name} was taken: {made:#?}")),
        (Fate::Taken(_), Err(error)) => Some(format!("{name} was refused: {}", Chain(&error))),
    }
}

/// Tries all archives, under both ways to stay inside a folder, and in every compression.
async fn check_all(cases: &[Case]) {
    let mut wrong = Vec::new();
    for (round, resolver) in [Resolver::Kernel, Resolver::Walk].into_iter().enumerate() {
        let yard = Yard::new(resolver).await;
        for (number, case) in cases.iter().enumerate() {
            let archive = match &case.archive {
                Archive::Bytes(bytes) => bytes.clone(),
                Archive::Tar(tar) => match (number + 2 * round) % 4 {
                    0 => tar.clone(),
                    1 => gzip(tar).await,
                    2 => zstd(tar).await,
                    _ => xz(tar).await,
                },
            };
            wrong.extend(check(case, &archive, &yard).await);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn no_name_leads_out() {
    check_all(&names::cases()).await;
}

#[tokio::test]
async fn no_link_leads_out() {
    check_all(&links::cases()).await;
}

#[tokio::test]
async fn no_header_hides_what_another_says() {
    check_all(&headers::cases()).await;
}

#[tokio::test]
async fn no_number_is_believed() {
    check_all(&numbers::cases()).await;
}

#[tokio::test]
async fn no_archive_costs_more_than_its_limits() {
    check_all(&bombs::cases().await).await;
}

#[tokio::test]
async fn nothing_but_files_folders_and_links_comes_out() {
    check_all(&kinds::cases()).await;
}

#[tokio::test]
async fn no_stream_ends_early_or_late() {
    check_all(&streams::cases().await).await;
}

#[tokio::test]
async fn an_archive_that_is_cut_anywhere_is_refused() {
    let yard = Yard::new(Resolver::Kernel).await;
    let tar = streams::of_everything();
    let whole = tar.len();
    yard.try_out(&tar, Limits::default(), "whole").await.expect("a good archive");
    // The second block of the end marker is not missed.
    let end = whole - 512;
    let cuts = (0..end).step_by(512).chain((1..end).step_by(301));
    for (number, cut) in cuts.enumerate() {
        let name = format!("cut after {cut} of {whole} bytes");
        let part = &tar[..cut];
        let archive = match number % 4 {
            0 => part.to_vec(),
            1 => gzip(part).await,
            2 => zstd(part).await,
            _ => xz(part).await,
        };
        let result = yard.try_out(&archive, Limits::default(), &name).await;
        let error = result.err().unwrap_or_else(|| panic!("{name} was taken"));
        assert_readable(&error, &name);
    }
}

#[test]
fn there_are_enough_of_them() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let cases = runtime.block_on(async {
        let mut all = names::cases();
        all.extend([links::cases(), headers::cases(), numbers::cases()].into_iter().flatten());
        all.extend([kinds::cases(), bombs::cases().await].into_iter().flatten());
        all.extend(streams::cases().await);
        all
    });
    let mut names: Vec<_> = cases.iter().map(|case| case.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|two| two[0] != two[1]), "a name is used twice: {names:?}");
    let refused = cases.iter().filter(|case| matches!(case.fate, Fate::Refused(_))).count();
    assert!(refused >= 100 && cases.len() - refused >= 30, "{refused} of {}", cases.len());
}

/// An absolute path that nothing may be written to.
fn absolute(name: &str) -> String {
    Path::new("/tmp/guest-agent-absolute").join(name).display().to_string()
}

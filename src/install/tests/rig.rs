//! A pipeline in a temporary folder, next to a file that must not change.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::model::spec::{
    Artifact, ArtifactUrl, EntryPoint, Execution, Limits as Resources, MetricsPolicy, PluginSpec,
    Source, Tries,
};
use guest_agent_actors::ports::{InstallError, InstallStep, Installer, Progress};
use tokio::sync::watch;

use super::super::trust::Trust;
use super::super::{Limits, Pipeline, PipelineConfig, PressurePolicy, RedirectRules};
use crate::install::unpack::tree::Resolver;

/// Longer than anything here should take, also on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Rig {
    pub(super) dir: tempfile::TempDir,
    pub(super) pipeline: Arc<Pipeline>,
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with(Limits::default(), Resolver::Kernel)
    }

    pub(super) fn with(limits: Limits, resolver: Resolver) -> Self {
        let dir = tempfile::tempdir().expect("temporary folder");
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).expect("folder");
        fs::write(outside.join("file"), "precious").expect("file");
        fs::set_permissions(outside.join("file"), fs::Permissions::from_mode(0o640))
            .expect("permissions");
        let mut pipeline = Pipeline::new(
            PipelineConfig {
                plugins_dir: dir.path().join("plugins"),
                state_root: dir.path().join("state"),
                log_dir: dir.path().join("log"),
                cache_dir: dir.path().join("cache"),
                spool_dir: dir.path().join("spool"),
                cache_max_bytes: 1 << 20,
                limits,
                max_parallel: 2,
                pressure: PressurePolicy::default(),
                redirects: RedirectRules::default(),
            },
            Trust::Anybody,
        )
        .expect("a temporary folder can be used");
        pipeline.downloader.resolver = resolver;
        Self { dir, pipeline: Arc::new(pipeline) }
    }

    pub(super) fn plugins(&self) -> PathBuf {
        self.dir.path().join("plugins")
    }

    pub(super) fn installed(&self, file: &str) -> PathBuf {
        self.plugins().join("sample/r1").join(file)
    }

    /// Writes an archive next to the other files and returns its URL.
    pub(super) fn archive(&self, bytes: &[u8]) -> String {
        let path = self.dir.path().join(format!("{}.bin", Sha256Digest::of(bytes)));
        fs::write(&path, bytes).expect("file");
        format!("file:{}", path.display())
    }

    pub(super) async fn install(&self, spec: PluginSpec) -> Result<Progress, InstallError> {
        let (sender, receiver) = watch::channel(Progress::default());
        let install = self.pipeline.install(Arc::new(spec), sender);
        tokio::time::timeout(PATIENCE, install).await.expect("in time")?;
        Ok(*receiver.borrow())
    }

    /// Installs an archive from a file, under its right checksum.
    pub(super) async fn install_bytes(&self, bytes: &[u8]) -> Result<Progress, InstallError> {
        self.install(spec(&self.archive(bytes), Sha256Digest::of(bytes))).await
    }

    /// Checks that a failure left no files, neither in the plugins' folder nor outside of it.
    #[track_caller]
    pub(super) fn assert_untouched(&self) {
        assert_eq!(listing(&self.plugins()), [""; 0], "something was left behind");
        self.assert_precious();
    }

    #[track_caller]
    pub(super) fn assert_precious(&self) {
        let outside = self.dir.path().join("outside");
        assert_eq!(listing(&outside), ["file"]);
        let file = outside.join("file");
        assert_eq!(fs::read_to_string(&file).expect("readable"), "precious");
        let mode = fs::metadata(&file).expect("it exists").permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
    }
}

/// Names in a folder, sorted.
pub(super) fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .expect("listable")
        .map(|entry| entry.expect("listable").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

pub(super) fn spec(url: &str, sha256: Sha256Digest) -> PluginSpec {
    let tries = Tries { attempts: 3, timeout: PATIENCE };
    PluginSpec {
        name: "sample".parse().expect("a name"),
        revision: "r1".parse().expect("a revision"),
        source: Source::Archive(Artifact { url: ArtifactUrl::new(url), sha256 }),
        entry_point: EntryPoint::parse("run").expect("an entry point"),
        arguments: Vec::new(),
        limits: Resources::default(),
        download: tries,
        start: tries,
        stop_timeout: PATIENCE,
        metrics: MetricsPolicy { interval: PATIENCE, points: 1 },
        backoff_factor: 2,
        config: None,
        execution: Execution::default(),
        order_digest: None,
    }
}

#[track_caller]
pub(super) fn assert_failed<T: std::fmt::Debug>(
    result: Result<T, InstallError>,
    step: InstallStep,
    part: &str,
) {
    let error = result.expect_err("it should have failed");
    let chain = Chain(&error).to_string();
    assert!(error.step == step && chain.contains(part), "{:?}: {chain}", error.step);
}

//! SIGKILL at any instant: a visible revision is complete, and the next installation converges.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::ports::{Installer, Progress};
use tokio::sync::watch;

use super::super::trust::Trust;
use super::super::{Limits, Pipeline, PipelineConfig, PressurePolicy, RedirectRules};
use super::rig::{PATIENCE, listing, spec};
use super::tarball::{Tarball, gzip};

/// Tells the child in which folder to work.
const DIR: &str = "GUEST_AGENT_TEST_CRASH_DIR";

const FILES: usize = 20;

fn pipeline(dir: &Path) -> Pipeline {
    Pipeline::new(
        PipelineConfig {
            plugins_dir: dir.join("plugins"),
            state_root: dir.join("state"),
            log_dir: dir.join("log"),
            cache_dir: dir.join("cache"),
            spool_dir: dir.join("spool"),
            cache_max_bytes: 0,
            limits: Limits::default(),
            max_parallel: 1,
            pressure: PressurePolicy::default(),
            redirects: RedirectRules::default(),
        },
        Trust::Anybody,
    )
    .expect("a temporary folder can be used")
}

/// Installs, activates and discards revisions again and again.
async fn one_round(pipeline: &Pipeline, dir: &Path, round: usize) {
    let archive = fs::read(dir.join("archive")).expect("readable");
    let url = format!("file:{}", dir.join("archive").display());
    let mut spec = spec(&url, Sha256Digest::of(&archive));
    spec.revision = format!("r{}", round % 3).parse().expect("a revision");
    let (name, revision) = (spec.name.clone(), spec.revision.clone());
    let progress = watch::channel(Progress::default()).0;
    pipeline.install(spec.into(), progress).await.expect("installable");
    pipeline.activate(&name, &revision).await.expect("installed");
    let before = format!("r{}", (round + 2) % 3).parse().expect("a revision");
    pipeline.discard(&name, &before).await.expect("deletable");
}

/// Not a test by itself: the process that the test below kills. Without its folder it does nothing.
#[tokio::test]
async fn a_child_that_is_killed() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let pipeline = pipeline(Path::new(&dir));
    for round in 0.. {
        one_round(&pipeline, Path::new(&dir), round).await;
    }
}

/// Every revision that can be seen is whole.
fn assert_complete(sample: &Path) {
    let names = if sample.exists() { listing(sample) } else { Vec::new() };
    for revision in names.iter().filter(|name| !name.starts_with('.')) {
        let files = listing(&sample.join(revision));
        assert_eq!(files.len(), FILES + 1, "{revision} of {names:?}");
        for number in 0..FILES {
            let content = fs::read(sample.join(revision).join(format!("f{number}")));
            assert_eq!(content.expect("readable").len(), 5000, "{revision} of {names:?}");
        }
    }
}

#[tokio::test]
async fn a_killed_agent_leaves_only_complete_revisions_and_the_next_one_goes_on() {
    let root = tempfile::tempdir().expect("temporary folder");
    let dir = root.path();
    let tar = (0..FILES)
        .fold(Tarball::good(), |tar, number| tar.file(&format!("f{number}"), 0o644, &[1; 5000]));
    fs::write(dir.join("archive"), gzip(&tar.finish()).await).expect("file");
    let sample = dir.join("plugins/sample");
    for delay in 0..15 {
        let mut child = Command::new(std::env::current_exe().expect("known"))
            .args(["--exact", "install::tests::crashes::a_child_that_is_killed"])
            .env(DIR, dir)
            .stdout(Stdio::null())
            .spawn()
            .expect("the test binary runs");
        // From when the child works, and later in its loop each time.
        let deadline = Instant::now() + PATIENCE;
        let before = fs::metadata(&sample).and_then(|found| found.modified()).ok();
        while fs::metadata(&sample).and_then(|found| found.modified()).ok() == before {
            assert!(Instant::now() < deadline, "the child does nothing");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_micros(1700) * delay).await;
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert_complete(&sample);
    }
    let pipeline = pipeline(dir);
    for round in 0..3 {
        one_round(&pipeline, dir, round).await;
    }
    assert_complete(&sample);
    // Besides the revision that the last round discarded two may be left, and nothing else.
    let left: Vec<String> = listing(&sample)
        .into_iter()
        .filter(|name| !name.starts_with(".installed-") && name != "current")
        .collect();
    assert_eq!(left, ["r2"]);
    assert_eq!(listing(&sample).len(), 3);
}

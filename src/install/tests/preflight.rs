//! An archive that this machine could not hold or run is refused before the disk is changed, and
//! the error names what is missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::ports::{InstallStep, Installer, Progress};
use tokio::sync::watch;

use super::super::trust::Trust;
use super::super::{Limits, Pipeline, PipelineConfig, PressurePolicy, RedirectRules};
use super::rig::{Rig, assert_failed, listing, spec};
use super::tarball::Tarball;

/// A small file system, which is unmounted on drop.
struct Mount {
    dir: tempfile::TempDir,
}

impl Mount {
    fn new(options: &str) -> Option<Self> {
        let dir = tempfile::tempdir().expect("temporary folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(dir.path())
            .status()
            .is_ok_and(|status| status.success());
        if !mounted {
            eprintln!("skipped: this user may mount nothing");
        }
        mounted.then_some(Self { dir })
    }

    fn pipeline(&self) -> Pipeline {
        let config = PipelineConfig {
            plugins_dir: self.plugins(),
            state_root: self.dir.path().join("state"),
            log_dir: self.dir.path().join("log"),
            cache_dir: self.dir.path().join("cache"),
            cache_max_bytes: 1 << 20,
            spool_dir: self.dir.path().join("spool"),
            limits: Limits::default(),
            max_parallel: 1,
            pressure: PressurePolicy::default(),
            redirects: RedirectRules::default(),
        };
        Pipeline::new(config, Trust::Anybody).expect("there is room for a folder")
    }

    fn plugins(&self) -> PathBuf {
        self.dir.path().join("plugins")
    }

    /// Installs an archive that is stored outside of that file system.
    async fn refuses(&self, tar: Vec<u8>, step: InstallStep, parts: &[&str]) {
        let elsewhere = tempfile::tempdir().expect("temporary folder");
        let path = elsewhere.path().join("archive");
        fs::write(&path, &tar).expect("file");
        let spec = spec(&format!("file:{}", path.display()), Sha256Digest::of(&tar));
        let (sender, _receiver) = watch::channel(Progress::default());
        let error = self.pipeline().install(Arc::new(spec), sender).await.expect_err("refused");
        let chain = Chain(&error).to_string();
        assert_eq!(error.step, step, "{chain}");
        for part in parts {
            assert!(chain.contains(part), "{part:?} is not in: {chain}");
        }
        assert_eq!(listing(&self.plugins()), [""; 0], "something was left behind");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // `umount -l`, because a thread of the cancelled installation may still have its last file
        // open.
        let unmounted = Command::new("umount").arg("-l").arg(self.dir.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "it stays mounted");
    }
}

fn free_bytes(path: &Path) -> u64 {
    let stat = rustix::fs::statvfs(path).expect("a file system");
    stat.f_bavail * stat.f_frsize
}

#[tokio::test]
async fn an_archive_that_does_not_fit_is_refused_with_the_exact_shortfall() {
    let Some(mount) = Mount::new("size=1m") else { return };
    drop(mount.pipeline());
    let tar = Tarball::good().file("large", 0o644, &[7; 4 << 20]).finish();
    let (needed, free) = (tar.len() as u64, free_bytes(mount.dir.path()));
    let short = format!("free {} bytes", needed - free);
    let parts = [&*format!("{free} bytes left, but {needed} more are needed"), &short];
    mount.refuses(tar, InstallStep::Prepare, &parts).await;
}

#[tokio::test]
async fn an_archive_that_only_fits_packed_is_refused_and_leaves_nothing() {
    let Some(mount) = Mount::new("size=1m") else { return };
    // These bytes compress well, but less than those of a bomb.
    let noise = |at: u32| {
        if at.is_multiple_of(64) { at.wrapping_mul(2_654_435_761).to_be_bytes()[0] } else { 7 }
    };
    let large: Vec<u8> = (0..4 << 20).map(noise).collect();
    let tar = Tarball::good().file("large", 0o644, &large).finish();
    let packed = super::tarball::gzip(&tar).await;
    mount.refuses(packed, InstallStep::Unpack, &["more are needed", "order again"]).await;
}

#[tokio::test]
async fn a_full_disk_is_told_before_anything_is_asked_for() {
    let Some(mount) = Mount::new("size=256k") else { return };
    fs::write(mount.dir.path().join("filler"), vec![0; 240 << 10]).expect("it fits");
    let parts = ["no room for the plugin", "are missing", "agent.state_dir"];
    mount.refuses(Tarball::good().finish(), InstallStep::Prepare, &parts).await;
}

#[tokio::test]
async fn inodes_that_run_out_are_told_from_bytes() {
    let Some(mount) = Mount::new("size=4m,nr_inodes=20") else { return };
    let many =
        (0..40).fold(Tarball::good(), |tar, number| tar.file(&format!("f{number}"), 0o644, b""));
    mount.refuses(many.finish(), InstallStep::Unpack, &["no inodes left", "delete files"]).await;
    drop(mount);
    let Some(mount) = Mount::new("size=4m,nr_inodes=8") else { return };
    let parts = ["no room for the plugin's files", "inodes are free"];
    mount.refuses(Tarball::good().finish(), InstallStep::Prepare, &parts).await;
}

#[tokio::test]
async fn a_place_where_nothing_can_be_run_takes_no_plugin() {
    let Some(mount) = Mount::new("size=4m,noexec") else { return };
    let parts = ["mounted noexec", "remount,exec"];
    mount.refuses(Tarball::good().finish(), InstallStep::Prepare, &parts).await;
}

#[tokio::test]
async fn a_program_that_this_machine_cannot_start_is_never_published() {
    let program = |content: &[u8]| Tarball::default().file("run", 0o755, content).finish();
    let rig = Rig::new();
    for (content, part) in [
        (&b"#!/no/such/interpreter -x\n"[..], "/no/such/interpreter does not exist"),
        (b"#!/usr/bin/env no-such-command\n", "no-such-command"),
        (b"\x7fELF\x02\x01\x01", "cannot be read"),
    ] {
        let result = rig.install_bytes(&program(content)).await;
        assert_failed(result, InstallStep::Check, part);
        rig.assert_untouched();
    }
    // The interpreter exists once the revision does.
    let own = format!("#!{}\n", rig.plugins().join("sample/current/bin/interpreter").display());
    rig.install_bytes(&program(own.as_bytes())).await.expect("installable");
}

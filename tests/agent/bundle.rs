//! Bundles: everything of a plugin in one file, installed without any server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;

use crate::harness::{Bed, listing, plugins};
use crate::trust::Pair;

impl Bed {
    /// Packs a revision of the echo plugin into a bundle. Answers with its path and the archive's
    /// checksum.
    async fn bundle(&self, revision: &str, key: Option<&Pair>) -> (PathBuf, String) {
        let folder = self.dir().join(format!("plugin-{revision}"));
        fs::create_dir_all(&folder).unwrap();
        let program = plugins::program("echo_plugin");
        let script = format!("#!/bin/sh\n# {revision}\nexec '{}' \"$@\"\n", program.display());
        fs::write(folder.join("run"), script).unwrap();
        fs::set_permissions(folder.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
        let out = self.dir().join(format!("echo-{revision}.bundle"));
        let (folder, path) = (folder.to_string_lossy(), out.to_string_lossy());
        let name = ["--name", "echo", "--revision", revision];
        let mut arguments = vec!["pack", &folder, "-o", &path, "--bundle", "--json"];
        arguments.extend(name);
        let secret = key.map(|key| key.secret.to_string_lossy().into_owned());
        if let Some(secret) = &secret {
            arguments.extend(["--sign-key", secret]);
        }
        let said: Value = serde_json::from_str(&self.cli(&arguments).await.ok()).unwrap();
        assert_eq!(said["signed"], key.is_some());
        (out.clone(), said["sha256"].as_str().unwrap().to_owned())
    }

    fn spool(&self) -> PathBuf {
        self.state_root().join("spool")
    }

    async fn spool_is_empty(&self) {
        self.until("nothing waits in the spool", async || {
            listing(&self.spool()).is_empty().then_some(())
        })
        .await;
    }

    async fn install_bundle(&self, path: &std::path::Path) -> crate::harness::Said {
        self.cli(&["install", "-f", &path.to_string_lossy(), "--wait", "--timeout", "30s"]).await
    }
}

#[tokio::test]
async fn a_bundle_installs_upgrades_and_comes_back_without_any_server() {
    let mut bed = Bed::builder().set("install.cache_max_bytes=10000000").start().await;
    bed.stop_control_plane().await;
    let ours = Pair::new(&bed, "ours").await;
    bed.trust(&[&ours]).await;
    let (one, first) = bed.bundle("1", Some(&ours)).await;
    let (two, _) = bed.bundle("2", Some(&ours)).await;
    let (three, _) = bed.bundle("3", None).await;
    let (four, _) = bed.bundle("4", Some(&ours)).await;

    bed.install_bundle(&one).await.ok();
    let before = bed.running("echo", "1").await.pid;
    bed.spool_is_empty().await;
    // It is the agent's by now.
    fs::remove_file(&one).unwrap();
    bed.kill_agent_only().await;
    bed.spawn_agent();
    bed.until("it answers", async || bed.try_status().await.ok()).await;
    assert_eq!(bed.running("echo", "1").await.pid, before);

    bed.install_bundle(&two).await.ok();
    bed.running("echo", "2").await;

    let said = bed.install_bundle(&three).await;
    assert!(said.code == 1 && said.stderr.contains("not signed"), "{said:?}");
    assert_eq!(bed.running("echo", "2").await.revision, "2");

    // Back to the first, which only the cache still has.
    bed.status_where("echo", "2 has proved itself", |status| !status.on_trial).await;
    bed.install_bundle(&four).await.ok();
    bed.running("echo", "4").await;
    bed.until("revision 1 is let go", async || {
        (bed.revisions("echo") == ["2", "4", "current"]).then_some(())
    })
    .await;
    let flags = ["--revision", "1", "--url", "file:///nowhere", "--sha256", &first];
    let mut arguments = vec!["install", "echo", "--entry-point", "run", "--wait"];
    arguments.extend(flags);
    bed.cli(&arguments).await.ok();
    bed.running("echo", "1").await;
    bed.start_control_plane().await;
    bed.finish().await;
}

#[tokio::test]
async fn what_a_plugin_runs_by_is_shown_without_secrets() {
    let bed = Bed::new().await;
    let ours = Pair::new(&bed, "ours").await;
    bed.trust(&[&ours]).await;
    let (bundle, digest) = bed.bundle("1", Some(&ours)).await;
    bed.install_bundle(&bundle).await.ok();
    let config =
        r#"{"level": "info", "db": {"password": "hunter2", "url": "pg://me:hunter3@db/x"}}"#;
    bed.configure(vec![crate::harness::orders::apply("echo", Some(config))]).await;
    bed.event(12, "echo", "1").await;
    let shown = bed.cli(&["status", "echo"]).await.ok();
    assert!(shown.contains(&digest) && !shown.contains("level"), "{shown}");
    let signed = shown.lines().find(|line| line.trim_start().starts_with("signed by")).unwrap();
    assert!(!signed.contains("nobody"), "{signed}");
    let shown = bed.cli(&["status", "echo", "--with-config"]).await.ok();
    for part in ["\"level\": \"info\"", "\"password\": \"***\"", "pg://***@db/x"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("hunter"), "{shown}");
    bed.finish().await;
}

#[tokio::test]
async fn a_bundle_that_was_tampered_with_is_refused_with_the_reason_and_leaves_nothing() {
    let bed = Bed::new().await;
    let (bundle, _) = bed.bundle("1", None).await;
    let good = fs::read(&bundle).unwrap();
    let end = good.len() - 1024;
    let gzip = good.windows(3).position(|it| it == [0x1f, 0x8b, 8]).unwrap();
    let mut flipped = good.clone();
    flipped[gzip + 50] ^= 1;
    let text = String::from_utf8_lossy(&good).into_owned();
    let checksum = text.find("checksum").unwrap() + 12;
    let mut other = good.clone();
    other[checksum] = if other[checksum] == b'0' { b'1' } else { b'0' };
    let mut no_order = good.clone();
    no_order[512] = b'[';
    let cases = [
        (good[..gzip + 100].to_vec(), "ends early"),
        (good[..700].to_vec(), "ends early"),
        (flipped, "checksum"),
        (other, "checksum"),
        (no_order, "is not an order"),
    ];
    for (bytes, part) in cases {
        fs::write(&bundle, bytes).unwrap();
        let said = bed.install_bundle(&bundle).await;
        assert!(said.code == 1 && said.stderr.contains(part), "{part}: {said:?}");
        bed.spool_is_empty().await;
    }
    assert!(bed.try_status().await.unwrap().plugins.is_empty());

    // What is cut off behind the archive only is not missed.
    fs::write(&bundle, &good[..end]).unwrap();
    bed.install_bundle(&bundle).await.ok();
    bed.running("echo", "1").await;
    bed.finish().await;
}

//! What this machine could not run is refused before anything is touched, and `plan` says so before
//! anything is ordered.

use std::path::{Path, PathBuf};
use std::process::Command;

use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::json::configure_plugin_to_json;
use serde_json::Value;

use crate::harness::archive::Tarball;
use crate::harness::{ArchiveSpec, Bed, INSTANCE, Said, listing, orders};

/// A file system of its own, for as long as this lives.
struct Mount(PathBuf);

impl Mount {
    /// Nothing where this user may not mount anything.
    fn on(place: &Path, options: &str) -> Option<Self> {
        std::fs::create_dir_all(place).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(place)
            .status()
            .is_ok_and(|status| status.success());
        if !mounted {
            eprintln!("skipped: this user may mount nothing");
        }
        mounted.then(|| Self(place.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: the store may still be open when a test has failed.
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} stays", self.0.display());
    }
}

/// A 64-bit program for a processor, with a loader if one is given. It does nothing.
fn elf(machine: u16, loader: Option<&str>) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(64 + 56, 0);
    bytes[16] = 2;
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    bytes[32] = 64;
    bytes[54] = 56;
    bytes[56] = 1;
    if let Some(path) = loader {
        bytes[64] = 3;
        bytes[72] = 120;
        bytes[96] = u8::try_from(path.len() + 1).unwrap();
        bytes.extend_from_slice(path.as_bytes());
        bytes.push(0);
    }
    bytes
}

/// The number of this machine's processor.
fn here() -> u16 {
    let me = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    u16::from_le_bytes([me[18], me[19]])
}

fn program(content: &[u8]) -> ArchiveSpec {
    ArchiveSpec::tar("run", Tarball::default().file("run", 0o755, content))
}

fn emulates_others() -> bool {
    let registered = listing(Path::new("/proc/sys/fs/binfmt_misc"));
    registered.iter().any(|path| !path.ends_with("register") && !path.ends_with("status"))
}

#[tokio::test]
async fn what_cannot_run_here_never_replaces_what_does() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let before = bed.running("echo", "1").await;
    let mut cases = vec![
        (
            "2",
            elf(here(), Some("/lib/ld-of-nobody.so.1")),
            "/lib/ld-of-nobody.so.1 is not installed",
        ),
        ("3", b"#!/no/such/shell\n".to_vec(), "/no/such/shell does not exist"),
        (
            "4",
            b"#!/usr/bin/env no-such-command\n".to_vec(),
            "no-such-command, which is not in the PATH",
        ),
        ("5", b"#!/bin/sh\r\nexit 0\r\n".to_vec(), "carriage return"),
        ("6", b"\x7fELF\x02\x01\x01 and no more".to_vec(), "cannot be read"),
    ];
    if !emulates_others() {
        // No machine is one of these.
        cases.push(("7", elf(0x1234, None), "install the build for this machine"));
    }
    let mut expected = vec![1, 4, 3];
    for (revision, content, part) in cases {
        let archive = bed.archive(&format!("{revision}.tar"), program(&content)).await;
        bed.configure(vec![orders::install("echo", revision, &archive).order()]).await;
        expected.extend([1, 8]);
        bed.expect_events("echo", &expected).await;
        let why = bed.event(8, "echo", revision).await.details().into_owned();
        assert!(why.contains("check that this machine can run"), "{why}");
        assert!(why.contains(part), "{part:?} is not in: {why}");
        assert_eq!(bed.artifacts.counters(&format!("{revision}.tar")).requests, 1);
    }
    assert_eq!(bed.running("echo", "1").await.pid, before.pid);
    assert_eq!(bed.plugin_files("echo"), [".installed-1", "1", "current"]);
    bed.finish().await;
}

#[tokio::test]
async fn nothing_is_downloaded_to_where_nothing_can_be_run() {
    let mut bed = Bed::builder().build().await;
    let state = bed.dir().join("state");
    let Some(mount) = Mount::on(&state, "noexec,mode=755") else { return bed.finish().await };
    bed.start_agent().await;
    let echo = bed.echo().await;
    let order = orders::install("echo", "1", &echo).order();
    bed.configure(vec![order.clone()]).await;
    bed.expect_events("echo", &[1, 8]).await;
    let why = bed.event(8, "echo", "1").await.details().into_owned();
    assert!(why.contains("is mounted noexec") && why.contains("remount,exec"), "{why}");
    assert_eq!(bed.artifacts.counters("echo.tar").requests, 0);
    assert!(bed.plugin_files("echo").is_empty());
    // The same before it is ordered.
    let said = plan(&bed, &order, &[]).await;
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stdout.contains("is mounted noexec"), "{said:?}");
    bed.finish_after(async move |_| drop(mount)).await;
}

async fn plan(bed: &Bed, order: &ConfigurePlugin, more: &[&str]) -> Said {
    let file = bed.dir().join("order.json");
    std::fs::write(&file, configure_plugin_to_json(order).unwrap()).unwrap();
    plan_of(bed, &file, more).await
}

async fn plan_of(bed: &Bed, file: &Path, more: &[&str]) -> Said {
    let config = bed.dir().join("agent.toml").display().to_string();
    let instance = format!("instance.id={INSTANCE}");
    let file = file.display().to_string();
    let arguments = ["plan", "--config", &config, "--set", &instance, "-f", &file];
    bed.cli(&[&arguments, more].concat()).await
}

#[tokio::test]
async fn a_plan_says_what_an_install_would_do_and_does_nothing() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    let order = orders::install("echo", "1", &echo).order();
    bed.configure(vec![order.clone()]).await;
    let before = bed.running("echo", "1").await;
    let requests = || bed.artifacts.counters("echo.tar").requests;
    assert_eq!(requests(), 1);

    let same: Value = serde_json::from_str(&plan(&bed, &order, &["--json"]).await.ok()).unwrap();
    assert_eq!(
        (&same[0]["action"], &same[0]["running"]["state"]),
        (&"reconcile".into(), &"RUNNING".into())
    );
    assert_eq!(same[0]["archive"], Value::Null, "a plan downloads nothing without --download");
    assert_eq!(requests(), 1);

    let next = orders::install("echo", "2", &echo).config("a = 1").order();
    let looked = plan(&bed, &next, &["--json", "--download"]).await.ok();
    let looked: Value = serde_json::from_str(&looked).unwrap();
    assert_eq!(looked[0]["action"], "upgrade");
    assert_eq!(looked[0]["archive"]["files"], 2, "{looked}");
    let changes = looked[0]["changes"].to_string();
    assert!(changes.contains("2 replaces revision 1"), "{changes}");
    assert!(changes.contains("configuration"), "{changes}");
    assert_eq!(requests(), 2);

    // From the file that `pack` made, without any network.
    let source = bed.dir().join("tool");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("run"), "#!/no/such/shell\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(source.join("run"), mode).unwrap();
    let packed = bed.dir().join("tool.tar.gz").display().to_string();
    bed.cli(&["pack", &source.display().to_string(), "-o", &packed]).await.ok();
    let said = plan_of(&bed, Path::new(&packed), &[]).await;
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stdout.contains("/no/such/shell does not exist"), "{said:?}");
    assert!(said.stderr.contains("1 problem stands in the way"), "{said:?}");

    // An interpreter that the plugin brings is only there when it is installed.
    let own = bed.plugin_dir("tool").join("1/sh");
    let script = Tarball::default().file("sh", 0o755, b"").file(
        "run",
        0o755,
        format!("#!{}\n", own.display()).as_bytes(),
    );
    let brings = bed.archive("brings.tar", ArchiveSpec::tar("run", script)).await;
    let order = orders::install("tool", "1", &brings).order();
    assert_eq!(plan(&bed, &order, &["--download"]).await.code, 0);

    // The same from a bundle; for a copy of it that ends early, the plan says that it ends early.
    let bundle = bed.dir().join("tool.bundle");
    let out = bundle.display().to_string();
    bed.cli(&["pack", &source.display().to_string(), "-o", &out, "--bundle"]).await.ok();
    let said = plan_of(&bed, &bundle, &["--json"]).await;
    let looked: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((said.code, &looked[0]["action"]), (1, &"install".into()), "{said:?}");
    let findings = looked[0]["findings"].to_string();
    assert!(findings.contains("/no/such/shell does not exist"), "{findings}");
    let whole = std::fs::read(&bundle).unwrap();
    std::fs::write(&bundle, &whole[..whole.len() - 1600]).unwrap();
    let said = plan_of(&bed, &bundle, &[]).await;
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("it ends early"), "{said:?}");

    bed.expect_events("echo", &[1, 4, 3]).await;
    assert_eq!(bed.running("echo", "1").await.pid, before.pid);
    assert_eq!(bed.plugin_files("echo"), [".installed-1", "1", "current"]);
    assert!(bed.status("tool").await.is_none());
    let nobody = bed.cli(&["--socket", "/no/such.sock", "plan", "-f", &packed]).await;
    assert_eq!(nobody.code, 3, "{nobody:?}");
    bed.finish().await;
}

//! What a successful INSTALL leaves behind: events, states, files, and what the plugin is given.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use serde_json::Value;

use crate::harness::archive::{Compression, Tarball};
use crate::harness::{ArchiveSpec, Bed, orders};

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[tokio::test]
async fn an_installed_plugin_runs_and_is_reported_in_order() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).config("a = 1").order()]).await;
    bed.expect_events("echo", &[1, 4, 3]).await;

    let status = bed.running("echo", "1").await;
    assert_eq!(bed.processes("echo"), [status.pid.unwrap()]);
    assert_eq!((status.kind.as_str(), status.installation.as_str()), ("daemon", "dynamic"));
    assert_eq!(status.restarts, 0);
    assert_eq!(status.install_path, bed.plugin_dir("echo").join("1").display().to_string());

    let listed = bed.listed("echo").await.unwrap();
    assert_eq!(listed.current_revision_id, "1");
    assert_eq!(listed.current_plugin_status.unwrap().status, 2, "RUNNING");
    assert_eq!(listed.pending_revision_id, "");
    assert_eq!(listed.config_hash, status.config_hash);
    assert_eq!(
        listed.config_hash, "b5bc1ffd90912fb18bef6e7d80909192c7a6492896320156d67fbaf104c6544a",
        "the SHA-256 of the configuration's text"
    );
    assert_eq!(bed.ask("echo", "config").await.results, ["a = 1"]);

    let printed = bed.cli(&["status", "--json"]).await.ok();
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(printed["plugins"][0]["name"], "echo");
    assert_eq!(printed["plugins"][0]["state"], "RUNNING");
    assert_eq!(printed["plugins"][0]["pid"], status.pid.unwrap());

    for event in bed.all_events_of("echo").await {
        assert_eq!(event.revision(), "1");
        assert!(event.event.event_timestamp.is_some());
    }
    bed.finish().await;
}

#[tokio::test]
async fn files_are_where_the_interface_says_and_not_for_everybody() {
    let bed = Bed::new().await;
    let tar = Tarball::default()
        .folder("data", 0o700)
        .file("data/private", 0o600, b"p")
        .symlink("data/link", "private");
    let spec = ArchiveSpec::echo().with(tar);
    let echo = bed.archive("echo.tar", spec).await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.running("echo", "1").await;

    let folder = bed.plugin_dir("echo");
    let revision = folder.join("1");
    assert_eq!(mode(&revision), 0o755);
    assert_eq!(std::fs::read_link(folder.join("current")).unwrap(), Path::new("1"));
    assert_eq!(std::fs::read(revision.join("data/private")).unwrap(), b"p");
    assert_eq!(mode(&revision.join("data/private")) & 0o077, 0);
    assert_eq!(std::fs::read_link(revision.join("data/link")).unwrap(), Path::new("private"));
    let me = nix::unistd::geteuid().as_raw();
    for path in [&revision, &revision.join("data/private"), &revision.join("run")] {
        assert_eq!(std::fs::symlink_metadata(path).unwrap().uid(), me, "{}", path.display());
    }
    // The revision, the link and the record of where the revision came from; no staging folder.
    let odd: Vec<_> = bed
        .plugin_files("echo")
        .into_iter()
        .filter(|name| name.contains("staging") || name.contains("trash"))
        .collect();
    assert!(odd.is_empty(), "{odd:?}");

    assert_eq!(mode(&bed.plugin_state("echo")), 0o700);
    assert_eq!(mode(&bed.state_root().join("store")) & 0o077, 0, "the store holds signed URLs");
    assert_eq!(mode(&bed.socket()), 0o600);
    let socket = bed.dir().join("run/plugins/echo_1.sock");
    assert!(std::fs::symlink_metadata(&socket).unwrap().file_type().is_socket());
    assert_eq!(mode(socket.parent().unwrap()), 0o700);
    let output = bed.dir().join("log/plugins/echo.log");
    assert_eq!(mode(&output) & 0o007, 0);
    bed.until("what the plugin prints is kept", async || {
        bed.plugin_output("echo").contains("my files are in").then_some(())
    })
    .await;
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_gets_what_the_interface_promises_and_no_more() {
    let bed = Bed::new().await;
    // What the agent has must not be the plugin's: neither protection nor exposure.
    let adjusted = format!("/proc/{}/oom_score_adj", bed.agent_pid());
    std::fs::write(adjusted, "300").unwrap();
    let archive = ArchiveSpec::trouble_program().compressed(Compression::Zstd);
    let trouble = bed.archive("trouble.tar.zst", archive).await;
    let order = orders::install("trouble", "r-1.0", &trouble)
        .arg("--write-args-to=given.json")
        .arg("--unused=a b'c\"$d")
        .order();
    bed.configure(vec![order]).await;
    let status = bed.running("trouble", "r-1.0").await;

    let state = bed.plugin_state("trouble");
    let given = std::fs::read(state.join("given.json")).unwrap();
    let given: Value = serde_json::from_slice(&given).unwrap();
    let install = bed.plugin_dir("trouble").join("r-1.0");
    let socket = bed.dir().join("run/plugins/trouble_r-1.0.sock");
    let argv: Vec<&str> =
        given["argv"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(
        argv,
        [
            install.join("bin/plugin").to_str().unwrap(),
            "--write-args-to=given.json",
            "--unused=a b'c\"$d",
            "--protocol=unix",
            &format!("--address={}", socket.display()),
            &format!("--errorlogfile={}", state.join("plugin.log").display()),
        ]
    );

    let mut environment = given["environment"].as_object().unwrap().clone();
    let mut take = |name: &str| match environment.remove(name) {
        Some(Value::String(value)) => value,
        other => panic!("{name} is {other:?}"),
    };
    assert_eq!(take("GUEST_AGENT_PLUGIN"), "trouble");
    assert_eq!(take("GUEST_AGENT_REVISION"), "r-1.0");
    assert_eq!(take("GUEST_AGENT_STATE_DIR"), state.display().to_string());
    let host_socket = bed.dir().join("run/host.sock");
    assert_eq!(take("GUEST_AGENT_HOST_SOCKET"), host_socket.display().to_string());
    assert!(take("GUEST_AGENT_TICKET").len() >= 32);
    assert!(!take("PATH").is_empty());
    for optional in ["LANG", "TZ", "HOME"] {
        environment.remove(optional);
    }
    assert!(environment.is_empty(), "the plugin was given more: {environment:?}");

    assert_eq!(given["cwd"], install.display().to_string());
    assert_eq!(given["pid"], status.pid.unwrap());
    assert_eq!(given["session"], given["pid"], "it leads a session of its own");
    assert_eq!(given["oom_score_adj"], 0);
    let descriptors = given["descriptors"].as_object().unwrap();
    let numbers: Vec<_> = descriptors.keys().map(String::as_str).collect();
    assert_eq!(numbers, ["0", "1", "2"], "{descriptors:?}");
    assert_eq!(descriptors["0"], "/dev/null");
    let output = bed.dir().join("log/plugins/trouble.log").display().to_string();
    assert_eq!(descriptors["1"], output);
    assert_eq!(descriptors["2"], output);
    bed.finish().await;
}

#[tokio::test]
async fn the_format_of_an_archive_is_known_by_its_first_bytes() {
    let bed = Bed::new().await;
    let formats = [
        ("plain", Compression::None),
        ("gzip", Compression::Gzip),
        ("zstd", Compression::Zstd),
        ("xz", Compression::Xz),
    ];
    let mut all = Vec::new();
    for (name, compression) in formats {
        // Names that say nothing, or even the wrong thing.
        let archive = ArchiveSpec::echo().compressed(compression);
        let archive = bed.archive(&format!("{name}.zip"), archive).await;
        all.push(orders::install(name, "1", &archive).order());
    }
    bed.configure(all).await;
    for (name, _) in formats {
        bed.expect_events(name, &[1, 4, 3]).await;
        bed.running(name, "1").await;
    }
    bed.finish().await;
}

#[tokio::test]
async fn what_is_installed_already_is_a_success_that_touches_nothing() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    let order = orders::install("echo", "1", &echo).order();
    bed.configure(vec![order.clone()]).await;
    let before = bed.running("echo", "1").await;
    bed.expect_events("echo", &[1, 4, 3]).await;
    bed.configure(vec![order]).await;
    bed.expect_events("echo", &[1, 4, 3, 1, 3]).await;
    let after = bed.running("echo", "1").await;
    assert_eq!(after.pid, before.pid);
    assert_eq!(bed.artifacts.counters("echo.tar").requests, 1);
    bed.finish().await;
}

#[tokio::test]
async fn plugins_can_listen_on_a_loopback_port() {
    let bed = Bed::builder().set("plugins.transport=tcp").start().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let status = bed.running("echo", "1").await;
    assert!(status.address.starts_with("tcp:127.0.0.1:"), "{}", status.address);
    assert_eq!(bed.ask("echo", "echo over tcp").await.results, ["over tcp"]);
    bed.finish().await;
}

//! Plugins that came with the machine: manifests in a folder, beside what the control plane orders.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_proto::agent_controlplane::PluginInstallationType;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    ConfigurePlugin, Manifest, Plugin,
};
use nix::sys::signal::Signal;
use prost::Message;

use crate::harness::{Bed, copy_program, orders, plugins, signal};
use crate::limits::group_of;

fn folder(bed: &Bed, name: &str) -> PathBuf {
    bed.dir().join("local").join(name)
}

fn make_folder(path: &Path) {
    std::fs::create_dir_all(path).unwrap();
    for folder in path.ancestors().take(2) {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn write(path: &Path, bytes: &[u8]) {
    // In one step, as a package manager does.
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, bytes).unwrap();
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::rename(fresh, path).unwrap();
}

/// Puts an echo plugin on the machine.
fn put(bed: &Bed, name: &str, revision: &str) {
    let folder = folder(bed, name);
    make_folder(&folder);
    let program = folder.join("echo");
    if !program.exists() {
        copy_program(&plugins::program("echo_plugin"), &program);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    write(&folder.join("manifest.json"), json(name, revision).as_bytes());
}

fn json(name: &str, revision: &str) -> String {
    serde_json::json!({
        "plugin": { "name": name, "revisionId": revision, "entryPoint": "echo" },
        "manifest": { "pluginInstallationType": "LOCAL_INSTALLATION", "stopTimeout": "5s" },
    })
    .to_string()
}

fn binary(name: &str, revision: &str, entry_point: &str) -> Vec<u8> {
    let plugin = Plugin {
        name: name.to_owned(),
        revision_id: revision.to_owned(),
        entry_point: entry_point.to_owned(),
        ..Plugin::default()
    };
    let manifest = Manifest {
        plugin_installation_type: PluginInstallationType::LocalInstallation.into(),
        stop_timeout: orders::seconds(5.0),
        ..Manifest::default()
    };
    let order =
        ConfigurePlugin { plugin: Some(plugin), manifest: Some(manifest), ..Default::default() };
    order.encode_to_vec()
}

/// The files of a plugin's folder, with their sizes.
fn files(bed: &Bed, name: &str) -> Vec<(PathBuf, u64)> {
    let mut files: Vec<_> = std::fs::read_dir(folder(bed, name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), path.metadata().unwrap().len()))
        .collect();
    files.sort();
    files
}

/// Takes every local plugin off the machine, which ends it and leaves its data, and ends the test.
pub(crate) async fn finish(bed: Bed, names: &[&str]) {
    let mut groups = Vec::new();
    for name in names {
        let pid = bed.status(name).await.and_then(|status| status.pid);
        groups.extend(pid.and_then(|pid| group_of(pid, "pids")));
    }
    std::fs::remove_dir_all(bed.dir().join("local")).unwrap();
    signal(bed.agent_pid(), Signal::SIGHUP);
    for name in names {
        bed.gone(name).await;
        assert!(bed.plugin_state(name).exists(), "the data of {name} stays");
        std::fs::remove_dir_all(bed.plugin_state(name)).unwrap();
    }
    bed.finish_after(async |_| {
        let left: Vec<_> = groups.iter().filter(|group| group.exists()).collect();
        assert!(left.is_empty(), "control groups are left: {left:?}");
    })
    .await;
}

#[tokio::test]
async fn a_local_plugin_runs_from_its_folder_in_either_form_of_manifest() {
    let mut bed = Bed::builder().build().await;
    put(&bed, "json", "1");
    let other = folder(&bed, "binary");
    make_folder(&other);
    let program = folder(&bed, "json").join("echo");
    write(&other.join("manifest.binpb"), &binary("binary", "7", program.to_str().unwrap()));
    bed.start_agent().await;
    let status = bed.running("json", "1").await;
    assert_eq!(status.installation, "local");
    assert_eq!(Path::new(&status.install_path), folder(&bed, "json"));
    let pid = status.pid.unwrap();
    let directory = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
    assert_eq!(directory, folder(&bed, "json"));
    bed.running("binary", "7").await;
    bed.expect_events("json", &[1, 4, 3]).await;
    assert!(bed.listed("json").await.is_some() && bed.listed("binary").await.is_some());
    assert!(bed.plugin_files("json").is_empty(), "nothing of it is installed");
    let before = files(&bed, "json");
    // A restart of the agent restarts no plugin.
    bed.kill_agent().await;
    bed.start_agent().await;
    assert_eq!(bed.running("json", "1").await.pid, Some(pid));
    assert_eq!(files(&bed, "json"), before);
    finish(bed, &["json", "binary"]).await;
}

/// What ships in the field says neither of what installation type it is nor which revision.
#[tokio::test]
async fn a_manifest_as_they_ship_in_the_field_is_enough() {
    let mut bed = Bed::builder().build().await;
    put(&bed, "bare", "unused");
    let folder = folder(&bed, "bare");
    let manifest = serde_json::json!({
        "action": "INSTALL",
        "plugin": { "name": "bare", "entryPoint": "echo", "arguments": ["--greeting=hi"] },
        "manifest": { "stopTimeout": "5s" },
    });
    write(&folder.join("manifest.json"), manifest.to_string().as_bytes());
    let mut program = std::fs::read(folder.join("echo")).unwrap();
    let revision = |program: &[u8]| Sha256Digest::of(program).to_string();
    bed.start_agent().await;
    let first = bed.running("bare", &revision(&program)).await;
    assert_eq!(first.installation, "local");
    bed.expect_events("bare", &[1, 4, 3]).await;
    // A restarted agent finds the same revision.
    bed.kill_agent().await;
    bed.start_agent().await;
    assert_eq!(bed.running("bare", &revision(&program)).await.pid, first.pid);
    // Another program is another revision. What follows the sections of an ELF file is not read.
    program.extend_from_slice(b"another");
    let fresh = folder.join("echo.new");
    std::fs::write(&fresh, &program).unwrap();
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(fresh, folder.join("echo")).unwrap();
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.running("bare", &revision(&program)).await;
    bed.expect_events("bare", &[1, 4, 3, 1, 6, 4, 3]).await;
    finish(bed, &["bare"]).await;
}

#[tokio::test]
async fn a_dynamic_revision_takes_precedence_and_its_removal_falls_back() {
    let mut bed = Bed::builder().build().await;
    put(&bed, "echo", "image");
    let before = files(&bed, "echo");
    bed.start_agent().await;
    bed.running("echo", "image").await;
    bed.expect_events("echo", &[1, 4, 3]).await;
    let archive = bed.echo().await;
    bed.configure(vec![orders::install("echo", "new", &archive).order()]).await;
    assert_eq!(bed.running("echo", "new").await.installation, "dynamic");
    // The window of probation passes: nothing of the local version is let go.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    bed.expect_events("echo", &[1, 4, 3, 1, 6, 4, 3]).await;
    bed.kill_agent().await;
    bed.start_agent().await;
    assert_eq!(bed.running("echo", "new").await.installation, "dynamic");
    bed.configure(vec![orders::remove("echo")]).await;
    assert_eq!(bed.running("echo", "image").await.installation, "local");
    bed.expect_events("echo", &[1, 4, 3, 1, 6, 4, 3, 2, 6, 5, 1, 4, 3]).await;
    assert!(bed.plugin_files("echo").is_empty(), "{:?}", bed.plugin_files("echo"));
    assert_eq!(files(&bed, "echo"), before);
    bed.configure(vec![orders::remove("echo")]).await;
    let refused = bed.event(10, "echo", "image").await;
    assert!(refused.details().contains("manifest"), "{}", refused.details());
    bed.running("echo", "image").await;
    finish(bed, &["echo"]).await;
}

#[tokio::test]
async fn an_agent_that_is_killed_between_install_and_remove_comes_back_to_the_local_version() {
    let mut bed = Bed::builder().build().await;
    put(&bed, "echo", "image");
    let before = files(&bed, "echo");
    bed.start_agent().await;
    bed.running("echo", "image").await;
    let archive = bed.echo().await;
    for (round, pause) in [5u64, 60, 250].into_iter().enumerate() {
        let revision = format!("new-{round}");
        bed.configure(vec![orders::install("echo", &revision, &archive).order()]).await;
        tokio::time::sleep(std::time::Duration::from_millis(pause)).await;
        bed.kill_agent().await;
        bed.start_agent().await;
        bed.configure(vec![orders::remove("echo")]).await;
        tokio::time::sleep(std::time::Duration::from_millis(pause)).await;
        bed.kill_agent().await;
        bed.start_agent().await;
        bed.status_where("echo", "the local version runs", |status| {
            status.revision == "image" && status.state == "RUNNING" && status.pending.is_none()
        })
        .await;
        assert_eq!(bed.processes("echo").len(), 1);
        assert_eq!(files(&bed, "echo"), before);
    }
    finish(bed, &["echo"]).await;
}

#[tokio::test]
async fn sighup_reads_manifests_again_and_bad_ones_harm_nothing() {
    let mut bed = Bed::builder().build().await;
    put(&bed, "echo", "1");
    put(&bed, "other", "1");
    let broken = folder(&bed, "broken");
    make_folder(&broken);
    write(&broken.join("manifest.json"), b"{ no json");
    bed.start_agent().await;
    let other = bed.running("other", "1").await;
    bed.running("echo", "1").await;
    let refused = bed.event(8, "broken", "").await;
    assert!(refused.details().contains("manifest.json"), "{}", refused.details());
    put(&bed, "echo", "2");
    put(&bed, "third", "1");
    write(&folder(&bed, "other").join("manifest.json"), b"{}");
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.running("echo", "2").await;
    bed.running("third", "1").await;
    bed.expect_events("echo", &[1, 4, 3, 1, 6, 4, 3]).await;
    bed.event(8, "other", "").await;
    assert_eq!(bed.running("other", "1").await.pid, other.pid, "what runs is not harmed");
    std::fs::remove_file(folder(&bed, "third").join("manifest.json")).unwrap();
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.gone("third").await;
    bed.expect_events("third", &[1, 4, 3, 2, 6, 5]).await;
    assert!(folder(&bed, "third").join("echo").exists());
    bed.expect_events("broken", &[8]).await;
    finish(bed, &["echo", "other", "third"]).await;
}

#[tokio::test]
async fn a_refused_manifest_is_told_wherever_somebody_looks() {
    let mut bed = Bed::builder().build().await;
    let broken = folder(&bed, "broken");
    make_folder(&broken);
    write(&broken.join("manifest.json"), b"{ \"plugin\": 1 }");
    bed.start_agent().await;
    bed.until("the refusal is in the status", async || {
        let said = bed.cli(&["status"]).await.ok();
        said.contains("the local plugin broken is refused").then_some(())
    })
    .await;
    let config = bed.dir().join("agent.toml").display().to_string();
    let said = bed.cli(&["doctor", "--json", "--config", &config]).await;
    assert_eq!(said.code, 1, "{}", said.stderr);
    let report: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let about = |finding: &&serde_json::Value| {
        finding["what"].as_str().is_some_and(|what| what.contains("plugin broken is refused"))
    };
    let found = findings.iter().find(about).unwrap_or_else(|| panic!("{report}"));
    assert!(found["why"].as_str().unwrap().contains("manifest.json"), "{found}");
    assert!(found["fix"].as_str().unwrap().contains("reload"), "{found}");
    let about = findings.iter().filter(|finding| finding.to_string().contains("broken")).count();
    assert_eq!(about, 1, "one finding names the manifest: {report}");
    let said = bed.cli(&["remove", "broken", "--yes"]).await;
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("only a folder whose manifest is refused"), "{said:?}");
    std::fs::remove_dir_all(broken).unwrap();
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.gone("broken").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_refused_manifest_is_a_row_until_it_is_mended_or_removed() {
    let mut bed = Bed::builder().set("api.http_listen=127.0.0.1:0").build().await;
    put(&bed, "echo", "1");
    write(&folder(&bed, "echo").join("manifest.json"), json("other", "1").as_bytes());
    // Somebody else's text: it must not act on a terminal or in a browser.
    let odd = "od\u{1b}[2Jd <b>\u{202e}";
    make_folder(&folder(&bed, odd));
    write(&folder(&bed, odd).join("manifest.json"), b"{\"plugin\": \"\x1b[2J<script>\"}");
    bed.start_agent().await;
    let rows = async || {
        let status = bed.cli(&["status", "--json"]).await.ok();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["plugins"].as_array().unwrap().clone()
    };
    let plugins = bed
        .until("both are rows", async || Some(rows().await).filter(|rows| rows.len() == 2))
        .await;
    let shown_as = "od\\u{1b}[2Jd <b>\\u{202e}";
    for (plugin, (name, why)) in
        plugins.iter().zip([("echo", "it names the plugin \"other\""), (shown_as, "its folder")])
    {
        assert_eq!(plugin["name"], name);
        let facts = [&plugin["state"], &plugin["verdict"], &plugin["cause"], &plugin["kind"]];
        assert_eq!(facts, ["INSTALL_FAILED", "failing", "manifest_refused", "daemon"], "{plugin}");
        assert_eq!(plugin["pid"], serde_json::Value::Null);
        let reason = plugin["reason"].as_str().unwrap();
        assert!(reason.contains("refused") && reason.contains(why), "{reason}");
        let explained = bed.cli(&["explain", name]).await.ok();
        assert!(explained.contains(why) && explained.contains("guest-agent doctor"), "{explained}");
        let detail = bed.cli(&["status", name]).await.ok();
        assert!(detail.contains("INSTALL_FAILED") && !detail.contains("signed by"), "{detail}");
        assert!(![&explained, &detail].iter().any(|text| text.contains('\u{1b}')));
    }
    let problems = bed.cli(&["status", "--problems"]).await.ok();
    assert!(problems.contains("echo") && !problems.contains('\u{1b}'), "{problems}");
    let metrics = bed.get("/metrics").await.body;
    assert!(
        metrics.contains("guest_agent_plugin_verdict{plugin=\"echo\",verdict=\"failing\",cause=\"manifest_refused\"} 1"),
        "{metrics}"
    );
    assert!(metrics.contains("guest_agent_plugins{state=\"INSTALL_FAILED\"} 2"), "{metrics}");
    let page = bed.get("/").await.body;
    assert!(page.contains("/console/plugins/echo") && page.contains("Install failed"), "{page}");
    assert!(!page.contains("<b>") && !page.contains("<script>\""), "{page}");
    let page = bed.get("/console/plugins/echo").await.body;
    assert!(page.contains("its manifest is refused"), "{page}");
    // The control plane ordered none of them.
    assert_eq!(bed.listed("echo").await, None);
    bed.event(8, "echo", "").await;

    put(&bed, "echo", "1");
    std::fs::remove_dir_all(folder(&bed, odd)).unwrap();
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.running("echo", "1").await;
    let plugins = bed
        .until("one row is left", async || Some(rows().await).filter(|rows| rows.len() == 1))
        .await;
    assert_eq!(plugins[0]["name"], "echo");
    // A plugin that runs keeps running and says what is wrong.
    write(&folder(&bed, "echo").join("manifest.json"), b"[");
    signal(bed.agent_pid(), Signal::SIGHUP);
    let status = bed
        .status_where("echo", "it is degraded", |status| {
            status.verdict.as_ref().is_some_and(|verdict| verdict.cause == "manifest_refused")
        })
        .await;
    assert_eq!(
        (status.state.as_str(), status.verdict.unwrap().level.as_str()),
        ("RUNNING", "degraded")
    );
    finish(bed, &["echo"]).await;
}

#[tokio::test]
async fn removing_what_came_with_the_machine_says_that_it_stays() {
    let mut bed = Bed::builder().build().await;
    put(&bed, "echo", "image");
    bed.start_agent().await;
    bed.running("echo", "image").await;
    let said = bed.cli(&["remove", "echo", "--wait"]).await.ok();
    assert_eq!(
        said,
        "echo: RUNNING, as the version that came with the machine; it is deleted with its files\n"
    );
    finish(bed, &["echo"]).await;
}

//! Verbs that need no running agent.

use super::*;

// === pack ===

fn tree(executables: &[&str]) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().expect("a temporary directory");
    let dir = folder.path().join("my-plugin");
    std::fs::create_dir(&dir).expect("a directory");
    std::fs::write(dir.join("README"), "text").expect("a file");
    for name in executables {
        std::fs::write(dir.join(name), "#!/bin/sh\n").expect("a file");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.join(name), mode).expect("a mode");
    }
    folder
}

fn pack(folder: &tempfile::TempDir, more: &[&str]) -> Ran {
    let dir = folder.path().join("my-plugin").display().to_string();
    let out = folder.path().join("out.tar.gz").display().to_string();
    let arguments = [&["pack", &dir, "-o", &out], more].concat();
    ran(&arguments)
}

#[test]
fn what_is_packed_can_be_installed() {
    let folder = tree(&["serve"]);
    let packed = pack(&folder, &["--arg", "-v"]);
    assert_eq!(packed.exit, Exit::Done, "{}", packed.err);
    let place = folder.path().display().to_string();
    assert_snapshot!(packed.out.replace(&place, "PLACE"));
    let archive = folder.path().join("out.tar.gz");
    let order = std::fs::read_to_string(order::order_beside(&archive)).expect("the order");
    assert_snapshot!("packed_order", order.replace(&place, "/PLACE"));

    let agent = FakeAgent::start(Script { configure: accepted(7), ..Script::default() });
    let ran = ran_on(&agent, &["install", "-f", &archive.display().to_string()]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    let asked = agent.asked().configure;
    let order = &asked[0].orders.as_ref().expect("orders").configure_plugins[0];
    let plugin = order.plugin.as_ref().expect("a plugin");
    assert_eq!((plugin.name.as_str(), plugin.entry_point.as_str()), ("my-plugin", "serve"));
    assert_eq!(plugin.gcs_signed_url, format!("file://{}", archive.display()));
}

#[test]
fn the_entry_point_must_be_clear() {
    let none = pack(&tree(&[]), &[]);
    assert_eq!(none.exit, Exit::Usage);
    assert!(none.err.contains("no executable is at the top"), "{}", none.err);
    let folder = tree(&["one", "two"]);
    let many = pack(&folder, &[]);
    assert!(many.err.contains("one, two"), "{}", many.err);
    assert_eq!(pack(&folder, &["--entry-point", "two"]).exit, Exit::Done);
    let text = pack(&folder, &["--entry-point", "README"]);
    assert!(text.err.contains("not an executable file"), "{}", text.err);
}

#[test]
fn an_archive_is_not_written_into_what_it_packs() {
    let folder = tree(&["serve"]);
    let dir = folder.path().join("my-plugin");
    let (dir, out) = (dir.display().to_string(), dir.join("x.tar.gz").display().to_string());
    assert_eq!(ran(&["pack", &dir, "-o", &out]).exit, Exit::Usage);
}

/// Packs a folder that has a manifest.
fn pack_by(folder: &tempfile::TempDir, manifest: &str, more: &[&str]) -> Ran {
    std::fs::write(folder.path().join("my-plugin/plugin.toml"), manifest).expect("a file");
    pack(folder, more)
}

fn order_text(folder: &tempfile::TempDir) -> String {
    std::fs::read_to_string(folder.path().join("out.tar.gz.json")).expect("the order")
}

#[test]
fn a_manifest_says_what_the_order_has() {
    let folder = tree(&["serve", "other"]);
    let manifest = "name = \"greeter\"\nrevision = \"3\"\nentry_point = \"serve\"\n\
                    url = \"https://store.example/{file}\"\n[limits]\nmemory_bytes = 1000\n";
    let packed = pack_by(&folder, manifest, &[]);
    assert_eq!(packed.exit, Exit::Done, "{}", packed.err);
    let order: serde_json::Value = serde_json::from_str(&order_text(&folder)).expect("JSON");
    assert_eq!(order["plugin"]["name"], "greeter");
    assert_eq!(order["plugin"]["revisionId"], "3");
    assert_eq!(order["plugin"]["gcsSignedUrl"], "https://store.example/out.tar.gz");
    assert_eq!(order["manifest"]["maxMemoryUsageBytes"], "1000");
    // Flags go before it, and a changed manifest is what the next order is made of.
    let again = manifest.replace("1000", "2000");
    assert_eq!(pack_by(&folder, &again, &["--revision", "4", "--arg", "x"]).exit, Exit::Done);
    let order: serde_json::Value = serde_json::from_str(&order_text(&folder)).expect("JSON");
    assert_eq!(order["plugin"]["revisionId"], "4");
    assert_eq!(order["plugin"]["arguments"][0], "x");
    assert_eq!(order["manifest"]["maxMemoryUsageBytes"], "2000");
}

#[test]
fn an_order_that_a_person_changed_is_not_overwritten_by_a_manifest() {
    let folder = tree(&["serve"]);
    let manifest = "name = \"greeter\"\n[stop]\ntimeout = \"5s\"\n";
    assert_eq!(pack_by(&folder, manifest, &[]).exit, Exit::Done);
    let changed = order_text(&folder).replace("5s", "7s");
    std::fs::write(folder.path().join("out.tar.gz.json"), &changed).expect("a file");
    let refused = pack_by(&folder, manifest, &[]);
    assert_eq!(refused.exit, Exit::Failed);
    assert!(refused.err.contains("plugin.toml would overwrite it"), "{}", refused.err);
    assert_eq!(order_text(&folder), changed);
}

#[test]
fn packing_again_keeps_what_a_person_wrote_into_the_order() {
    let folder = tree(&["serve", "other"]);
    let first = pack(&folder, &["--entry-point", "serve", "--revision", "1", "--arg", "-v"]);
    assert_eq!(first.exit, Exit::Done, "{}", first.err);
    let file = folder.path().join("out.tar.gz.json");
    let mut order: serde_json::Value = serde_json::from_str(&order_text(&folder)).expect("JSON");
    order["manifest"] = serde_json::json!({ "start_timeout": "45s", "string_config": "mine" });
    order["plugin"]["gcsSignedUrl"] = "https://store.example/a".into();
    order["plugin"]["checksum"] = "00".repeat(32).into();
    std::fs::write(&file, order.to_string()).expect("a file");
    let again = pack(&folder, &[]);
    assert_eq!(again.exit, Exit::Done, "{}", again.err);
    assert!(again.out.contains("revision 1 is of another archive than before"), "{}", again.out);
    let after: serde_json::Value = serde_json::from_str(&order_text(&folder)).expect("JSON");
    assert_eq!(after["manifest"]["startTimeout"], "45s");
    assert_eq!(after["manifest"]["stringConfig"], "mine");
    assert_eq!(after["plugin"]["gcsSignedUrl"], "https://store.example/a");
    assert_eq!(after["plugin"]["arguments"][0], "-v");
    assert_eq!(after["plugin"]["entryPoint"], "serve");
    assert_ne!(after["plugin"]["checksum"], order["plugin"]["checksum"]);
    // Something else in its place is nobody's order.
    std::fs::write(&file, "notes").expect("a file");
    let refused = pack(&folder, &[]);
    assert!(refused.err.contains("is no order"), "{}", refused.err);
}

#[test]
fn several_architectures_make_a_release_with_an_index() {
    let folder = tree(&[]);
    for architecture in ["amd64", "arm64"] {
        let built = folder.path().join("my-plugin/build").join(architecture);
        std::fs::create_dir_all(&built).expect("a folder");
        std::fs::copy("/bin/sh", built.join("serve")).expect("a program");
    }
    let manifest = "name = \"greeter\"\nrevision = \"3\"\narchitectures = [\"amd64\", \"arm64\"]\n\
                    [pack]\nfolder = \"build/{architecture}\"\n[limits]\ncpu_percent = 5\n";
    let refused = pack_by(&folder, manifest, &[]);
    assert!(refused.exit == Exit::Usage && refused.err.contains("--index"), "{}", refused.err);
    let index = folder.path().join("release.json").display().to_string();
    let packed = pack_by(&folder, manifest, &["--index", &index, "--json"]);
    let index = std::fs::read_to_string(index).expect("the index");
    assert_eq!(packed.out, index, "{}", packed.err);
    let digest = Sha256Digest::of(&[0x1f, 0x8b, 8, 0]).to_string();
    let archive = |name: &str| serde_json::json!({ "file": name, "sha256": digest, "bytes": 2048, "url": null, "signature": null });
    let expected = serde_json::json!({
        "schema_version": 1,
        "plugin": "greeter",
        "revision": "3",
        "entry_point": "serve",
        "arguments": [],
        "manifest": { "maxCpuUsagePercentage": 5 },
        "archives": { "amd64": archive("out-amd64.tar.gz"), "arm64": archive("out-arm64.tar.gz") },
    });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&index).expect("JSON"), expected);
    assert!(folder.path().join("out-arm64.tar.gz.json").exists());
}

#[test]
fn mistakes_in_a_manifest_are_listed_with_their_lines() {
    let ran = pack_by(&tree(&["serve"]), "name = \"a\"\nrevison = \"1\"\n[limit]\n", &[]);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains("has 2 mistakes"), "{}", ran.err);
    assert!(
        ran.err.contains("line 2: the key \"revison\" is not known; did you mean \"revision\"?")
    );
    assert!(ran.err.contains("line 3: the key \"limit\" is not known; did you mean \"limits\"?"));
}

// === config ===

#[test]
fn the_configuration_is_shown_with_its_origins() {
    let ran = ran(&["config", "show", "--set", "agent.name=x", "--set", "plugins.probation=1m"]);
    assert_eq!(ran.exit, Exit::Done);
    assert_snapshot!(ran.out);
}

#[test]
fn the_effective_configuration_can_be_used_as_one() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("a.toml");
    let shown = ran(&["config", "show", "--effective", "--set", "agent.name=x"]);
    std::fs::write(&file, &shown.out).expect("a file");
    let file = file.display().to_string();
    let again = json(&ran(&["config", "show", "--config", &file, "--json"]));
    let entries = again.as_array().expect("an array");
    assert!(entries.iter().all(|entry| entry["origin"] == file.as_str()));
    assert!(entries.iter().any(|entry| entry["key"] == "agent.name" && entry["value"] == "x"));
    let has = |key: &str, value: serde_json::Value| {
        entries.iter().any(|entry| entry["key"] == key && entry["value"] == value)
    };
    assert!(has("plugins.health_failures", 3.into()), "a number is a number");
    assert!(has("trust.keys", serde_json::json!([])), "a list is a list");
}

#[test]
fn mistakes_in_the_configuration_are_listed() {
    assert_eq!(ran(&["config", "check"]).out, "the configuration is good\n");
    let ran = ran(&["config", "check", "--set", "agent.nmae=x", "--set", "plugins.probtion=1s"]);
    assert_eq!(ran.exit, Exit::Failed);
    assert_snapshot!(ran.err);
}

#[test]
fn mistakes_in_the_configuration_are_values_for_scripts() {
    let document = |ran: &Ran| -> serde_json::Value {
        serde_json::from_str(&ran.out).expect("JSON, although the verb failed")
    };
    let good = json(&ran(&["config", "check", "--json"]));
    assert_eq!(good, serde_json::json!({ "problems": [] }));
    let bad = ran(&["config", "check", "--json", "--set", "plugins.probation=forever"]);
    assert_eq!(bad.exit, Exit::Failed);
    let problems = document(&bad)["problems"].clone();
    assert_eq!(problems.as_array().map(Vec::len), Some(1), "{problems}");
    assert_eq!(problems[0]["key"], "plugins.probation");
    assert_eq!(problems[0]["origin"], "--set plugins.probation");
    let refused = document(&ran(&["config", "check", "--json", "--set", "agent.name=refused"]));
    assert_eq!(refused["problems"][0]["key"], serde_json::Value::Null);
}

#[test]
fn what_the_service_would_refuse_is_refused_by_the_check() {
    let ran = ran(&["config", "check", "--set", "agent.name=refused"]);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains("the service would refuse it"), "{}", ran.err);
}

// === run, dev, sample-plugin ===

#[test]
fn run_starts_the_service_with_the_checked_configuration() {
    let recorder = Recorder::default();
    let mut environment = MapEnvironment::default();
    environment.variables.insert("GUEST_AGENT_LOG".to_owned(), "debug".to_owned());
    let arguments = ["run", "--set", "agent.state_dir=/tmp/x", "--stop-plugins"];
    let ran = ran_with(&arguments, &environment, &recorder, Looks::Plain);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    let runs = recorder.runs.borrow();
    assert_eq!(runs[0].config.agent.state_dir, Path::new("/tmp/x"));
    assert!(runs[0].stop_plugins);
    assert_eq!(runs[0].sources.set, ["agent.state_dir=/tmp/x"]);
    assert_eq!(recorder.logs.borrow()[0].level, "debug");
}

#[test]
fn run_does_not_start_with_a_bad_configuration() {
    let recorder = Recorder::default();
    let arguments = ["run", "--set", "plugins.probation=forever"];
    let ran = ran_with(&arguments, &MapEnvironment::default(), &recorder, Looks::Plain);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(recorder.runs.borrow().is_empty() && recorder.logs.borrow().is_empty());
}

#[test]
fn dev_passes_its_flags_and_reports_its_failure() {
    let recorder = Recorder::default();
    let arguments = ["dev", "--once", "--plugins", "3", "--dir", "/tmp/d"];
    let ran = ran_with(&arguments, &MapEnvironment::default(), &recorder, Looks::Plain);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Failed, "guest-agent: the walk ended early\n"));
    let expected = DevArgs { once: true, plugins: 3, dir: Some("/tmp/d".into()) };
    assert_eq!(recorder.devs.borrow()[0], expected);
}

#[test]
fn a_sample_plugin_gets_every_argument_untouched() {
    let recorder = Recorder::default();
    let own = ["--json", "--help", "x", "--", "--address=/x", "--set"];
    let arguments = [&["sample-plugin"][..], &own].concat();
    let ran = ran_with(&arguments, &MapEnvironment::default(), &recorder, Looks::Plain);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert_eq!(recorder.samples.borrow()[0].args, own);
}

#[test]
fn a_keeper_of_logs_is_told_what_to_keep_and_by_nobody_else() {
    let recorder = Recorder::default();
    let keep = |arguments: &[&str]| {
        let arguments = [&["keep-logs"], arguments].concat();
        ran_with(&arguments, &MapEnvironment::default(), &recorder, Looks::Plain)
    };
    assert_eq!(keep(&["/var/log/x", "4096", "/state"]).exit, Exit::Done);
    let expected =
        KeeperArgs { dir: "/var/log/x".into(), max: 4096, state_root: Some("/state".into()) };
    assert_eq!(recorder.kept.borrow()[0], expected);
    for wrong in [&[][..], &["/var/log/x"], &["/var/log/x", "much"], &["/x", "-1"]] {
        assert_eq!(keep(wrong).exit, Exit::Failed, "{wrong:?}");
    }
}

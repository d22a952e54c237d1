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

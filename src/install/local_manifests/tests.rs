use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use guest_agent_actors::model::spec::Source;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{ConfigurePlugin, Plugin};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

struct Machine {
    dir: TempDir,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        Self { dir }
    }

    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.dir.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        folder
    }

    /// A valid plugin.
    fn plugin(&self, name: &str) -> PathBuf {
        let folder = self.folder(name);
        executable(&folder.join("run"), b"#!/bin/sh\n");
        self.manifest(name, &manifest(name));
        folder
    }

    fn manifest(&self, name: &str, manifest: &Value) {
        write(&self.folder(name).join(JSON), manifest.to_string().as_bytes());
    }

    fn scan(&self) -> LocalScan {
        PluginFolders::new(self.dir.path().to_owned()).read().unwrap()
    }

    /// Only `name` is refused, for this reason; the plugin `good` beside it is not.
    #[track_caller]
    fn refuses(&self, name: &str, expected: &str) {
        self.plugin("good");
        let scan = self.scan();
        let good: Vec<&str> = scan.plugins.keys().map(PluginName::as_str).collect();
        assert_eq!(good, ["good"], "{:?}", scan.refused);
        let reason = scan.refused.get(name).map(String::as_str).unwrap_or_default();
        assert!(reason.contains(expected), "{:?} does not say {expected:?}", scan.refused);
        assert!(!reason.contains("s3cr3t"), "{reason}");
    }
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
}

fn executable(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

fn manifest(name: &str) -> Value {
    json!({
        "action": "INSTALL",
        "plugin": { "name": name, "revisionId": "1", "entryPoint": "run" },
        "manifest": {
            "pluginInstallationType": "LOCAL_INSTALLATION",
            "stopTimeout": "2.5s",
            "stringConfig": "s3cr3t",
        },
    })
}

#[test]
fn a_machine_without_the_folder_has_no_local_plugins() {
    let machine = Machine::new();
    let scan = PluginFolders::new(machine.dir.path().join("none")).read().unwrap();
    assert_eq!(scan, LocalScan::default());
}

#[test]
fn both_forms_of_a_manifest_say_the_same() {
    let machine = Machine::new();
    let folder = machine.plugin("a");
    let json = machine.scan();
    let bytes = of_json(manifest("a").to_string().as_bytes()).unwrap();
    fs::remove_file(folder.join(JSON)).unwrap();
    write(&folder.join(BINARY), &bytes);
    let binary = machine.scan();
    assert_eq!(json, binary);
    let spec = &binary.plugins.values().next().unwrap();
    assert_eq!(spec.stop_timeout, std::time::Duration::from_millis(2500));
    let Source::Local(files) = &spec.source else { panic!("{spec:?}") };
    assert_eq!(Path::new(&*files.folder), folder);
    assert_eq!(files.sha256, Sha256Digest::of(b"#!/bin/sh\n"));
}

#[test]
fn what_is_not_a_plugin_is_left_alone() {
    let machine = Machine::new();
    machine.plugin("a");
    machine.folder("empty");
    machine.folder(".hidden");
    write(&machine.dir.path().join("README"), b"text");
    let scan = machine.scan();
    assert_eq!((scan.plugins.len(), scan.refused.len()), (1, 0), "{scan:?}");
}

#[test]
fn a_broken_manifest_is_refused_without_what_it_quotes() {
    let machine = Machine::new();
    write(&machine.folder("broken").join(JSON), b"{\"plugin\": s3cr3t");
    machine.refuses("broken", "not a ConfigurePlugin");
    let mut wrong = manifest("wrong");
    wrong["manifest"]["structConfig"] = json!("s3cr3t");
    wrong["manifest"].as_object_mut().unwrap().remove("stringConfig");
    machine.folder("broken");
    fs::remove_dir_all(machine.dir.path().join("broken")).unwrap();
    machine.manifest("wrong", &wrong);
    machine.refuses("wrong", "not a ConfigurePlugin");
}

#[test]
fn an_unknown_field_is_named() {
    let machine = Machine::new();
    let mut odd = manifest("odd");
    odd["plugin"]["entrypoint2"] = json!("run");
    machine.manifest("odd", &odd);
    machine.refuses("odd", "entrypoint2");
}

#[test]
fn a_manifest_in_the_folder_of_another_plugin_is_refused() {
    let machine = Machine::new();
    machine.manifest("here", &manifest("there"));
    machine.refuses("here", "\"there\"");
}

#[test]
fn a_plugin_that_is_to_be_downloaded_is_refused() {
    let machine = Machine::new();
    let mut dynamic = manifest("dynamic");
    dynamic["manifest"]["pluginInstallationType"] = json!("DYNAMIC_INSTALLATION");
    dynamic["plugin"]["gcsSignedUrl"] = json!("https://store.example/s3cr3t");
    machine.manifest("dynamic", &dynamic);
    machine.refuses("dynamic", "gcs_signed_url");
}

#[test]
fn a_manifest_that_says_neither_installation_type_nor_revision_is_used() {
    let machine = Machine::new();
    let folder = machine.plugin("bare");
    let bare = json!({ "plugin": { "name": "bare", "entryPoint": "run" } });
    machine.manifest("bare", &bare);
    let json = machine.scan();
    let spec = json.plugins.values().next().unwrap();
    assert!(spec.is_local(), "{spec:?}");
    assert_eq!(spec.revision.as_str(), Sha256Digest::of(b"#!/bin/sh\n").to_string());
    fs::remove_file(folder.join(JSON)).unwrap();
    write(&folder.join(BINARY), &of_json(bare.to_string().as_bytes()).unwrap());
    assert_eq!(machine.scan(), json);
    executable(&folder.join("run"), b"#!/bin/sh\nexit\n");
    let replaced = machine.scan();
    assert_ne!(replaced.plugins.values().next().unwrap().revision, spec.revision);
}

#[test]
fn two_manifests_are_one_too_many() {
    let machine = Machine::new();
    let folder = machine.plugin("two");
    write(&folder.join(BINARY), b"");
    machine.refuses("two", "both");
}

#[test]
fn a_manifest_that_is_huge_or_no_file_is_refused() {
    let machine = Machine::new();
    let huge = fs::File::create(machine.folder("huge").join(JSON)).unwrap();
    huge.set_len(1 << 40).unwrap();
    huge.set_permissions(Permissions::from_mode(0o644)).unwrap();
    machine.refuses("huge", "larger than");
    fs::remove_dir_all(machine.dir.path().join("huge")).unwrap();
    fs::create_dir(machine.folder("folder").join(JSON)).unwrap();
    machine.refuses("folder", "not a regular file");
    fs::remove_dir_all(machine.dir.path().join("folder")).unwrap();
    let pipe = machine.folder("pipe").join(JSON);
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o644)).unwrap();
    machine.refuses("pipe", "not a regular file");
}

#[test]
fn links_lead_nowhere() {
    let machine = Machine::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let other = elsewhere.path().join("linked");
    fs::create_dir(&other).unwrap();
    write(&other.join(JSON), manifest("linked").to_string().as_bytes());
    symlink(&other, machine.dir.path().join("linked")).unwrap();
    machine.refuses("linked", "is a link");
    fs::remove_file(machine.dir.path().join("linked")).unwrap();
    symlink(other.join(JSON), machine.folder("sly").join(JSON)).unwrap();
    machine.refuses("sly", "not a regular file");
}

#[test]
fn an_entry_point_has_to_be_there_to_be_run_and_to_be_inside() {
    let machine = Machine::new();
    let folder = machine.plugin("a");
    fs::remove_file(folder.join("run")).unwrap();
    machine.refuses("a", "failed to read");
    write(&folder.join("run"), b"text");
    machine.refuses("a", "not executable");
    fs::remove_file(folder.join("run")).unwrap();
    fs::create_dir(folder.join("run")).unwrap();
    machine.refuses("a", "not a regular file");
    fs::remove_dir(folder.join("run")).unwrap();
    symlink("/bin/sh", folder.join("run")).unwrap();
    machine.refuses("a", "leads out of its folder");
}

#[test]
fn an_absolute_entry_point_may_be_anywhere() {
    let machine = Machine::new();
    let mut absolute = manifest("a");
    absolute["plugin"]["entryPoint"] = json!("/bin/sh");
    machine.manifest("a", &absolute);
    let scan = machine.scan();
    assert_eq!(scan.plugins.len(), 1, "{:?}", scan.refused);
}

#[test]
fn what_everybody_may_write_is_not_run() {
    let machine = Machine::new();
    let folder = machine.plugin("a");
    for path in [folder.join("run"), folder.join(JSON), folder.clone()] {
        let mode = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        machine.refuses("a", "may be written by others");
        fs::set_permissions(&path, mode).unwrap();
    }
    fs::set_permissions(machine.dir.path(), Permissions::from_mode(0o777)).unwrap();
    let all = PluginFolders::new(machine.dir.path().to_owned()).read();
    assert!(matches!(all, Err(FoldersError::Distrusted(_))), "{all:?}");
}

#[test]
fn what_root_would_run_has_to_be_roots() {
    let machine = Machine::new();
    let folder = machine.plugin("a");
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give files away");
        return;
    }
    let owner = Some(nix::unistd::Uid::from_raw(12345));
    nix::unistd::chown(&folder.join("run"), owner, None).unwrap();
    machine.refuses("a", "belongs to user 12345");
}

#[test]
fn names_that_no_plugin_has_are_shown_harmless() {
    let machine = Machine::new();
    write(&machine.folder("a\x1b[31m b").join(JSON), b"{}");
    machine.refuses("a\\u{1b}[31m b", "name of its folder");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    let keys = prop_oneof![
        Just("plugin".to_owned()),
        Just("manifest".to_owned()),
        Just("name".to_owned()),
        Just("structConfig".to_owned()),
        Just("stopTimeout".to_owned()),
        ".{0,5}",
    ];
    leaf.prop_recursive(6, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(keys.clone(), inner, 0..4).prop_map(Value::from_iter),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn law_hostile_manifests_never_panic(
        value in any_json(), bytes in prop::collection::vec(any::<u8>(), 0..200)
    ) {
        let name = "a".parse().unwrap();
        for bytes in [of_json(value.to_string().as_bytes()), of_json(&bytes), Ok(bytes.clone())] {
            let Ok(bytes) = bytes else { continue };
            drop(wire::decode_local(&bytes, &name, "/a", |_| Ok(Sha256Digest::of(b""))));
        }
    }
}

#[test]
fn a_deeply_nested_manifest_is_refused() {
    let machine = Machine::new();
    let (open, close) = (r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    let nested = format!(r#"{{"manifest":{{"structConfig":{open}1{close}}}}}"#);
    write(&machine.folder("deep").join(JSON), nested.as_bytes());
    machine.refuses("deep", "recursion");
}

#[test]
fn a_binary_manifest_of_nothing_is_refused() {
    let machine = Machine::new();
    write(&machine.folder("empty").join(BINARY), b"");
    machine.refuses("empty", "does not name a plugin");
    let plugin = Plugin { name: "empty".to_owned(), ..Plugin::default() };
    let order = ConfigurePlugin { plugin: Some(plugin), ..ConfigurePlugin::default() };
    write(&machine.folder("empty").join(BINARY), &order.encode_to_vec());
    machine.refuses("empty", "entry point \"\" is empty");
}

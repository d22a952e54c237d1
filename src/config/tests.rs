//! Loading as a whole: layers, mistakes, and the file that documents every key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::*;

pub(super) struct Fixture {
    folder: tempfile::TempDir,
    environment: MapEnvironment,
    sources: Sources,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("guest-agent.toml");
        let environment = MapEnvironment { variables: BTreeMap::new(), file };
        Self { folder, environment, sources: Sources::default() }
    }

    pub(super) fn file(self, name: &str, text: &str) -> Self {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(path, text).expect("a file");
        self
    }

    pub(super) fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(super) fn set(mut self, setting: &str) -> Self {
        self.sources.set.push(setting.to_owned());
        self
    }

    pub(super) fn load(&self) -> Result<Loaded, ConfigError> {
        load(&self.environment, &self.sources)
    }

    #[track_caller]
    pub(super) fn problem(&self) -> Problem {
        match self.load().expect_err("a mistake") {
            ConfigError::Problems(problems) => {
                assert_eq!(problems.len(), 1, "{problems:?}");
                problems.into_iter().next().expect("one problem")
            }
            other => panic!("another error: {other}"),
        }
    }
}

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/guest-agent.toml")
}

#[test]
fn the_shipped_file_names_every_key_with_its_default() {
    let text = std::fs::read_to_string(shipped()).expect("the shipped file");
    let written: Config = toml::from_str(&text).expect("every key is there with its type");
    assert_eq!(written, Config::default());
    let names = |table: &toml::Table| -> Vec<String> {
        table
            .iter()
            .flat_map(|(section, keys)| {
                let keys = keys.as_table().expect("sections only").keys();
                keys.map(move |key| format!("{section}.{key}"))
            })
            .collect()
    };
    let shipped: toml::Table = toml::from_str(&text).expect("TOML");
    let known = toml::Table::try_from(Config::default()).expect("TOML");
    assert_eq!(names(&shipped), names(&known), "no key is missing and none is unknown");
}

#[test]
fn the_shipped_file_says_a_sentence_for_every_key() {
    let text = std::fs::read_to_string(shipped()).expect("the shipped file");
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| line.contains(" = ")) {
        if !line.starts_with('#') {
            assert!(lines[index - 1].starts_with("# "), "no sentence before: {line}");
        }
    }
}

#[test]
fn nothing_set_gives_the_defaults() {
    let loaded = Fixture::new().load().expect("defaults");
    assert_eq!(loaded.config, Config::default());
    assert!(loaded.origins.is_empty());
}

#[test]
fn later_layers_win_and_each_value_knows_its_layer() {
    let fixture = Fixture::new()
        .file("guest-agent.toml", "[agent]\nname = \"file\"\n[plugins]\nhealth_failures = 5\n")
        .file("conf.d/20-b.toml", "[agent]\nlog_dir = \"/b\"\n")
        .file("conf.d/10-a.toml", "[agent]\nlog_dir = \"/a\"\nstate_dir = \"/a\"\n")
        .file("conf.d/ignored.txt", "nonsense")
        .variable("GUEST_AGENT__AGENT__STATE_DIR", "/variable")
        .variable("GUEST_AGENT__INSTANCE__ID", "12345")
        .variable("GUEST_AGENT__ADMISSION__COMMAND", "[\"/bin/check\", \"-v\"]")
        .variable("GUEST_AGENT_SOCKET", "/not/a/setting")
        .set("agent.name=flag")
        .set("control_plane.enabled=false");
    let loaded = fixture.load().expect("a good configuration");
    let config = &loaded.config;
    assert_eq!(config.agent.name, "flag");
    assert_eq!(config.agent.log_dir, Path::new("/b"));
    assert_eq!(config.agent.state_dir, Path::new("/variable"));
    assert_eq!(config.instance.id, "12345", "a text of digits stays a text");
    assert_eq!(config.admission.command, ["/bin/check", "-v"]);
    assert_eq!(config.plugins.health_failures, 5);
    assert!(!config.control_plane.enabled);
    assert_eq!(loaded.origins["agent.name"], "--set agent.name");
    assert!(loaded.origins["agent.log_dir"].ends_with("conf.d/20-b.toml"));
    assert_eq!(
        loaded.origins["agent.state_dir"],
        "environment variable GUEST_AGENT__AGENT__STATE_DIR"
    );
    assert!(!loaded.origins.contains_key("agent.runtime_dir"));
}

#[test]
fn an_unknown_key_is_named_with_its_place_and_its_nearest_neighbour() {
    let problem = Fixture::new().file("conf.d/x.toml", "[agent]\nstate_dri = \"/x\"").problem();
    assert_eq!(problem.key, "agent.state_dri");
    assert!(problem.origin.ends_with("conf.d/x.toml"), "{}", problem.origin);
    assert_eq!(problem.reason, "the key is unknown; did you mean agent.state_dir?");

    let problem = Fixture::new().variable("GUEST_AGENT__PLUGINS__PROBATIN", "1s").problem();
    assert_eq!(problem.origin, "environment variable GUEST_AGENT__PLUGINS__PROBATIN");
    assert_eq!(problem.reason, "the key is unknown; did you mean plugins.probation?");

    let problem = Fixture::new().set("agent.endpoint=unix:/x").problem();
    assert_eq!(problem.reason, "the key is unknown; did you mean control_plane.endpoint?");

    let problem = Fixture::new().file("guest-agent.toml", "[plugin]\nprobation = \"1s\"").problem();
    assert_eq!(problem.reason, "the section is unknown; did you mean [plugins]?");
}

#[test]
fn a_missing_default_file_is_fine_and_a_missing_named_one_is_not() {
    let mut fixture = Fixture::new();
    assert!(fixture.load().is_ok());
    let path = fixture.folder.path().join("absent.toml");
    fixture.sources.file = Some(path.clone());
    let error = fixture.load().expect_err("the file is missing");
    assert!(matches!(error, ConfigError::Missing { path: missing } if missing == path));
}

#[test]
fn conf_d_is_read_beside_a_named_file() {
    let mut fixture = Fixture::new()
        .file("other/a.toml", "[agent]\nname = \"a\"")
        .file("other/conf.d/b.toml", "[agent]\nlog_dir = \"/b\"");
    fixture.sources.file = Some(fixture.folder.path().join("other/a.toml"));
    let loaded = fixture.load().expect("a good configuration");
    assert_eq!(loaded.config.agent.name, "a");
    assert_eq!(loaded.config.agent.log_dir, Path::new("/b"));
}

#[test]
fn a_syntax_error_names_the_line_and_does_not_quote_it() {
    let fixture = Fixture::new().file("guest-agent.toml", "[agent]\nname = hunter2\n");
    let error = fixture.load().expect_err("not TOML").to_string();
    assert!(error.contains("line 2"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[track_caller]
fn check(setting: &str, expected: &str) {
    let problem = Fixture::new().set(setting).problem();
    assert_eq!(problem.key, setting.split('=').next().expect("a key"));
    assert!(problem.origin.starts_with("--set "), "{}", problem.origin);
    assert!(problem.reason.contains(expected), "{setting}: {}", problem.reason);
}

#[test]
fn values_out_of_bounds_are_refused_with_the_bounds() {
    check("plugins.health_interval=1ms", "1ms is out of bounds; use 100ms to 1h");
    check("plugins.health_timeout=2m", "use 10ms to 1m");
    check("plugins.probation=2h", "use 0s to 1h");
    check("plugins.restart_initial_backoff=0s", "use 1ms to 1h");
    check("plugins.restart_max_backoff=2d", "use 1ms to 1d");
    check("plugins.restart_max_backoff=10ms", "shorter than plugins.restart_initial_backoff");
    check("plugins.health_failures=0", "use 1 to 100");
    check("plugins.log_max_bytes=1", "use 4096 to");
    check("api.command_timeout=1h", "use 100ms to 10m");
    check("install.max_parallel=0", "use 1 to 64");
}

#[test]
fn values_of_another_kind_are_refused_with_what_is_expected() {
    check("plugins.probation=30", "the unit is missing");
    check("plugins.health_failures=three", "a whole number is expected");
    check("control_plane.enabled=yes", "true or false is expected");
    check("control_plane.auth=password", "token-file");
    check("control_plane.endpoint=http://example.com:80", "use https://");
    check("api.command_socket_mode=rwx", "in octal");
    check("api.http_listen=9464", "write it like \"127.0.0.1:9464\"");
    check("admission.command=/bin/check", "a list of texts");
    check("admission.command=[\"check\"]", "not an absolute path");
    check("log.level=", "use error, warn, info, debug or trace");
    check("agent.state_dir=relative", "start it with a slash");
    check("agent.name=", "use 1 to 63");
    check("instance.id=../x", "cannot be the name of a directory");
    check("instance.metadata_url=ftp://x", "http://HOST");
    check("instance.metadata_url=http://x/path", "or write \"none\" to use no metadata server");
}

#[test]
fn the_metadata_server_of_the_environment_holds_where_no_setting_says_another() {
    let at = |fixture: Fixture| fixture.load().expect("good").config.instance.metadata_url;
    let fixture = || {
        Fixture::new()
            .file("guest-agent.toml", "[instance]\nmetadata_url = \"\"\n")
            .variable("GCE_METADATA_HOST", "127.0.0.1:81")
    };
    assert_eq!(at(fixture()), "http://127.0.0.1:81");
    assert_eq!(at(fixture().set("instance.metadata_url=http://h")), "http://h");
    assert_eq!(at(fixture().set("instance.metadata_url=none")), "none");
    let problem = Fixture::new().variable("GCE_METADATA_HOST", "a b").problem();
    assert_eq!(problem.origin, "environment variable GCE_METADATA_HOST");
}

#[test]
fn what_only_a_metadata_server_can_say_needs_one() {
    let alone = || {
        Fixture::new()
            .set("instance.metadata_url=none")
            .set("control_plane.endpoint=unix:/run/cp.sock")
    };
    let problem = alone().set("control_plane.resource=r").problem();
    assert_eq!(problem.key, "control_plane.auth");
    assert_eq!(alone().set("control_plane.auth=none").problem().key, "control_plane.resource");
    let told = alone().set("control_plane.auth=none").set("control_plane.resource=r");
    assert!(told.load().is_ok());
    let asked = Fixture::new().set("control_plane.endpoint=unix:/run/cp.sock");
    assert!(asked.load().is_ok(), "the metadata server says the rest");
}

#[test]
fn a_number_where_a_duration_belongs_is_explained() {
    let problem = Fixture::new().file("guest-agent.toml", "[plugins]\nprobation = 30\n").problem();
    assert_eq!(problem.key, "plugins.probation");
    assert!(problem.origin.ends_with("guest-agent.toml"), "{}", problem.origin);
    assert!(problem.reason.contains("a duration with its unit"), "{}", problem.reason);
}

#[test]
fn a_listener_beyond_loopback_must_be_allowed() {
    check("api.http_listen=0.0.0.0:9464", "api.http_allow_remote = true");
    let allowed =
        || Fixture::new().set("api.http_listen=0.0.0.0:9464").set("api.http_allow_remote=true");
    let problem = allowed().problem();
    assert_eq!(problem.key, "api.http_token_file");
    assert!(problem.reason.contains("openssl rand"), "{}", problem.reason);
    assert!(allowed().set("api.http_token_file=/etc/token").load().is_ok());
    check("api.http_token_file=token", "start it with a slash");
    let only_certificate = Fixture::new().set("api.http_tls_cert=/etc/tls.crt").problem();
    assert_eq!(only_certificate.key, "api.http_tls_key");
    let (needs, named) = ("TLS needs a certificate and its key", "and api.http_tls_cert is not");
    let reason = only_certificate.reason;
    assert!(reason.contains(needs) && reason.contains(named), "{reason}");
    let only_key = Fixture::new().set("api.http_tls_key=/etc/tls.key").problem();
    assert_eq!(only_key.key, "api.http_tls_cert");
    let both = |cert: &str| {
        Fixture::new().set(&format!("api.http_tls_cert={cert}")).set("api.http_tls_key=/tls.key")
    };
    assert!(both("/tls.crt").load().is_ok());
    assert!(both("tls.crt").problem().reason.contains("start it with a slash"));
    check("api.http_socket=http.sock", "start it with a slash");
    check("api.http_socket=/run/guest-agent/command.sock", "another socket of the agent");
    let of_length = |length: usize| format!("api.http_socket=/{}.sock", "x".repeat(length - 6));
    check(&of_length(108), "choose a shorter path");
    assert!(Fixture::new().set(&of_length(107)).load().is_ok());
    check("api.http_socket_group=a:b", "is not the name of a group");
    check("api.http_socket_mode=rw", "write permissions in octal");
    assert!(Fixture::new().set("api.http_socket=/run/guest-agent/http.sock").load().is_ok());
    let one = Fixture::new().set("api.http_token_file=/t").set("api.http_admin_token_file=/t");
    assert_eq!(one.problem().key, "api.http_admin_token_file");
}

#[test]
fn logs_go_to_destinations_that_there_are() {
    let list = |list: &str| format!("plugins.log_to={list}");
    let otlp = Fixture::new().set(&list("[\"otlp\"]"));
    let problem = otlp.problem();
    assert_eq!(problem.key, "plugins.log_to");
    assert!(problem.reason.contains("set that, or leave \"otlp\" out"), "{problem:?}");
    otlp.set("telemetry.otlp_endpoint=http://127.0.0.1:4317").load().expect("good");
    let twice = Fixture::new().set(&list("[\"journald\", \"journald\"]")).problem();
    assert!(twice.reason.contains("\"journald\" twice"), "{twice:?}");
    let unknown = Fixture::new().set(&list("[\"syslog\"]")).problem();
    assert!(unknown.reason.contains("`journald`"), "{unknown:?}");
    let socket = Fixture::new().set("plugins.log_journal_socket=journal.sock").problem();
    assert!(socket.reason.contains("start it with a slash"), "{socket:?}");
}

#[test]
fn a_runtime_directory_too_long_for_sockets_is_refused() {
    check(&format!("agent.runtime_dir=/{}", "x".repeat(61)), "choose a shorter path");
    let longest = Fixture::new().set(&format!("agent.runtime_dir=/{}", "x".repeat(60)));
    assert!(longest.load().is_ok(), "61 bytes are allowed");
}

#[test]
fn ways_to_authenticate_need_their_files() {
    let problem = Fixture::new().set("control_plane.auth=token-file").problem();
    assert_eq!(problem.key, "control_plane.token_file");
    let mtls = Fixture::new()
        .set("control_plane.auth=mtls")
        .set("control_plane.client_cert=/c.pem")
        .set("control_plane.client_key=/k.pem")
        .set("control_plane.endpoint=unix:/run/cp.sock");
    assert_eq!(mtls.problem().key, "control_plane.auth");
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let error = Fixture::new()
        .set("agent.name=")
        .set("plugins.probation=2h")
        .load()
        .expect_err("two mistakes");
    assert!(matches!(&error, ConfigError::Problems(problems) if problems.len() == 2));
    assert!(error.to_string().starts_with("the configuration has 2 mistakes: agent.name"));
}

#[test]
fn a_setting_without_a_value_is_refused() {
    let error = Fixture::new().set("agent.name").load().expect_err("no equals sign");
    assert!(matches!(error, ConfigError::Set { text } if text == "agent.name"));
}

#[test]
fn a_command_of_the_wrong_form_is_refused_without_being_quoted() {
    for command in
        ["\"/bin/check --token=hunter2\"", "[\"check --token=hunter2\"]", "[[\"hunter2\"]]"]
    {
        let text = format!("[admission]\ncommand = {command}\n");
        let problem = Fixture::new().file("guest-agent.toml", &text).problem();
        assert!(problem.key.starts_with("admission.command"), "{problem}");
        assert!(!problem.to_string().contains("hunter2"), "{problem}");
    }
}

#[test]
fn what_is_shown_has_every_key_and_no_secret() {
    let fixture = Fixture::new().set("admission.command=[\"/bin/check\", \"--token=hunter2\"]");
    let entries = entries(&fixture.load().expect("a good configuration"));
    let known = toml::Table::try_from(Config::default()).expect("TOML");
    let count: usize = known.values().filter_map(toml::Value::as_table).map(toml::Table::len).sum();
    assert_eq!(entries.len(), count);
    let command = entries.iter().find(|entry| entry.key == "admission.command").expect("the key");
    assert_eq!(command.value, "[\"/bin/check\", \"<not shown>\"]");
    assert_eq!(command.origin.as_deref(), Some("--set admission.command"));
}

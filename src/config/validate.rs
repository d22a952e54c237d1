//! Rules for one value, or for two values together. `layers.rs` checks types before this; the
//! machine (files, groups, free ports) is not looked at here.

use std::path::Path;
use std::time::Duration;

use super::{
    ApiConfig, Auth, Config, LogDestination, NO_METADATA, Problem, format_duration, log_filter,
    trust_key,
};
use crate::net::endpoint::Endpoint;
use crate::net::metadata_address::MetadataAddress;

/// Most labels of a machine.
pub(super) const LABELS_MAX: usize = 64;

/// Longest value of a label, in bytes.
pub(super) const LABEL_MAX: usize = 256;

/// Longest name of a label, in bytes.
const LABEL_NAME_MAX: usize = 63;

/// Longest socket address of a unix socket, in bytes, without its final NUL.
const SOCKET_PATH_MAX: usize = 107;

/// The longest name of a socket below the runtime directory: a hashed one of a plugin.
const LONGEST_SOCKET: &str = "plugins/0123456789abcdef0123456789abcdef.sock";

/// Least bytes for the agent and its plugins together: enough for the agent itself and a small
/// plugin.
const TOTAL_MEMORY_MIN: u64 = 64 << 20;

/// All rules that the configuration breaks.
pub(super) fn check(config: &Config, origin_of: &dyn Fn(&str) -> String) -> Vec<Problem> {
    let mut rules = Rules { origin_of, problems: Vec::new() };
    agent(config, &mut rules);
    instance(config, &mut rules);
    labels(config, &mut rules);
    control_plane(config, &mut rules);
    plugins(config, &mut rules);
    install(config, &mut rules);
    trust(config, &mut rules);
    api(config, &mut rules);
    log(config, &mut rules);
    telemetry(config, &mut rules);
    rules.problems
}

struct Rules<'a> {
    origin_of: &'a dyn Fn(&str) -> String,
    problems: Vec<Problem>,
}

fn labels(config: &Config, rules: &mut Rules<'_>) {
    let count = config.labels.len();
    rules.require("labels", count <= LABELS_MAX, || {
        format!("there are {count} labels; use at most {LABELS_MAX}")
    });
    for (name, value) in &config.labels {
        let key = format!("labels.{name}");
        let is_name = (1..=LABEL_NAME_MAX).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        rules.require(&key, is_name, || {
            format!(
                "{name:?} is not the name of a label; use 1 to {LABEL_NAME_MAX} letters, digits, `_` \
                 and `-`"
            )
        });
        rules.text(&key, value, 0, LABEL_MAX);
    }
}

fn agent(config: &Config, rules: &mut Rules<'_>) {
    let agent = &config.agent;
    rules.text("agent.name", &agent.name, 1, 63);
    rules.absolute("agent.state_dir", &agent.state_dir);
    rules.absolute("agent.runtime_dir", &agent.runtime_dir);
    rules.absolute("agent.log_dir", &agent.log_dir);
    rules.absolute("agent.local_plugin_dir", &agent.local_plugin_dir);
    rules.group("agent.socket_group", &agent.socket_group);
    rules.group("agent.admin_group", &agent.admin_group);
    let longest = agent.runtime_dir.join(LONGEST_SOCKET).as_os_str().len();
    rules.require("agent.runtime_dir", longest <= SOCKET_PATH_MAX, || {
        format!(
            "sockets in {} would have addresses of {longest} bytes, but the kernel takes at most \
             {SOCKET_PATH_MAX}; choose a shorter path",
            agent.runtime_dir.display()
        )
    });
}

fn instance(config: &Config, rules: &mut Rules<'_>) {
    let id = &config.instance.id;
    rules.text("instance.id", id, 0, 128);
    rules.require("instance.id", !id.contains('/') && id != "." && id != "..", || {
        format!("{id:?} cannot be the name of a directory; use letters, digits and dashes")
    });
    let url = &config.instance.metadata_url;
    rules.text("instance.metadata_url", url, 0, 255);
    let wrong = match url.as_str() {
        "" | NO_METADATA => None,
        url => url.parse::<MetadataAddress>().err(),
    };
    rules.require("instance.metadata_url", wrong.is_none(), || {
        format!(
            "{}; or write {NO_METADATA:?} to use no metadata server",
            wrong.map(|wrong| wrong.to_string()).unwrap_or_default()
        )
    });
}

fn control_plane(config: &Config, rules: &mut Rules<'_>) {
    let control = &config.control_plane;
    rules.text("control_plane.channel", &control.channel, 1, 255);
    rules.text("control_plane.resource", &control.resource, 0, 255);
    for (key, file) in [
        ("control_plane.ca_file", &control.ca_file),
        ("control_plane.client_cert", &control.client_cert),
        ("control_plane.client_key", &control.client_key),
        ("control_plane.token_file", &control.token_file),
    ] {
        rules.require(key, file.is_empty() || Path::new(file).is_absolute(), || {
            format!("{file:?} is not an absolute path; start it with a slash")
        });
    }
    if !control.enabled {
        return;
    }
    if control.endpoint.is_some() && config.instance.metadata_url == NO_METADATA {
        rules.require("control_plane.resource", !control.resource.is_empty(), || {
            "it is empty, and instance.metadata_url turns the metadata server off; write this \
             machine's resource id"
                .to_owned()
        });
        rules.require("control_plane.auth", control.auth != Auth::Metadata, || {
            "instance.metadata_url turns the metadata server off, which gives the tokens; use \
             \"token-file\", \"mtls\" or \"none\", or set the URL"
                .to_owned()
        });
    }
    let needs = |auth: Auth, key: &str| format!("auth = {auth:?} needs {key}; set it to a file");
    match control.auth {
        Auth::TokenFile => {
            rules.require("control_plane.token_file", !control.token_file.is_empty(), || {
                needs(Auth::TokenFile, "control_plane.token_file")
            })
        }
        Auth::Mtls => {
            for (key, file) in [
                ("control_plane.client_cert", &control.client_cert),
                ("control_plane.client_key", &control.client_key),
            ] {
                rules.require(key, !file.is_empty(), || needs(Auth::Mtls, key));
            }
            let tls = control.endpoint.as_ref().is_none_or(Endpoint::is_encrypted);
            rules.require("control_plane.auth", tls, || {
                "a client certificate needs an https:// endpoint; change endpoint or auth"
                    .to_owned()
            });
        }
        Auth::Metadata | Auth::None => {}
    }
}

fn plugins(config: &Config, rules: &mut Rules<'_>) {
    const HOUR: Duration = Duration::from_secs(3600);
    const MINUTE: Duration = Duration::from_secs(60);
    let millis = Duration::from_millis;
    let plugins = &config.plugins;
    rules.duration("plugins.health_interval", plugins.health_interval, millis(100), HOUR);
    rules.duration("plugins.health_timeout", plugins.health_timeout, millis(10), MINUTE);
    rules.number("plugins.health_failures", plugins.health_failures.into(), 1, 100);
    rules.duration("plugins.probation", plugins.probation, Duration::ZERO, HOUR);
    rules.duration("plugins.stop_grace", plugins.stop_grace, Duration::ZERO, HOUR);
    let first = plugins.restart_initial_backoff;
    rules.duration("plugins.restart_initial_backoff", first, millis(1), HOUR);
    let most = plugins.restart_max_backoff;
    rules.duration("plugins.restart_max_backoff", most, millis(1), 24 * HOUR);
    rules.require("plugins.restart_max_backoff", most >= first, || {
        format!(
            "{} is shorter than plugins.restart_initial_backoff, {}; raise it",
            format_duration(most),
            format_duration(first)
        )
    });
    rules.number("plugins.log_max_bytes", plugins.log_max_bytes, 4096, 1 << 40);
    log_destinations(config, rules);
    let parent = &plugins.cgroup_parent;
    rules.text("plugins.cgroup_parent", parent, 0, 1024);
    let is_path = parent.is_empty() || parent.starts_with('/');
    let is_path = is_path && parent.split('/').all(|part| part != "..");
    rules.require("plugins.cgroup_parent", is_path, || {
        format!(
            "{parent:?} is not the path of a control group; write it as in /proc/PID/cgroup, such \
             as \"/system.slice/guest-agent-plugins.service\""
        )
    });
    rules.number("plugins.max_tasks", plugins.max_tasks, 0, 1 << 22);
    let total = plugins.total_memory_bytes;
    rules.require("plugins.total_memory_bytes", total == 0 || total >= TOTAL_MEMORY_MIN, || {
        format!(
            "{total} bytes are too few for the agent itself; give at least {TOTAL_MEMORY_MIN}, or 0 \
             for no limit"
        )
    });
    rules.number("plugins.total_cpu_percent", plugins.total_cpu_percent.into(), 0, 1_000_000);
}

fn log_destinations(config: &Config, rules: &mut Rules<'_>) {
    let (plugins, telemetry) = (&config.plugins, &config.telemetry);
    let all = &plugins.log_to;
    let twice = all.iter().enumerate().find(|(at, to)| all[..*at].contains(to));
    rules.require("plugins.log_to", twice.is_none(), || {
        let name = twice.map_or("", |(_, to)| to.name());
        format!("it names {name:?} twice; name each destination once")
    });
    let has_collector = telemetry.otlp_endpoint.is_some();
    rules.require("plugins.log_to", has_collector || !all.contains(&LogDestination::Otlp), || {
        "it names \"otlp\", and telemetry.otlp_endpoint names no collector; set that, or leave \
             \"otlp\" out"
            .to_owned()
    });
    let socket = &plugins.log_journal_socket;
    rules.absolute("plugins.log_journal_socket", socket);
    let length = socket.as_os_str().len();
    rules.require("plugins.log_journal_socket", length <= SOCKET_PATH_MAX, || {
        format!(
            "it is {length} bytes long, but the kernel takes at most {SOCKET_PATH_MAX}; choose a \
             shorter path"
        )
    });
}

fn install(config: &Config, rules: &mut Rules<'_>) {
    let install = &config.install;
    rules.number("install.max_entries", install.max_entries, 1, 10_000_000);
    rules.number("install.max_expanded_bytes", install.max_expanded_bytes, 4096, 1 << 44);
    rules.number("install.max_expansion_ratio", install.max_expansion_ratio.into(), 1, 100_000);
    rules.number("install.max_path_bytes", install.max_path_bytes.into(), 64, 4096);
    rules.number("install.max_parallel", install.max_parallel.into(), 1, 64);
    rules.number("install.max_memory_pressure", install.max_memory_pressure.into(), 0, 100);
    let most = Duration::from_secs(600);
    rules.duration("install.pressure_patience", install.pressure_patience, Duration::ZERO, most);
    let file = &install.pressure_file;
    rules.require(
        "install.pressure_file",
        file.is_empty() || Path::new(file).is_absolute(),
        || format!("{file:?} is not an absolute path; start it with a slash"),
    );
    rules.number("install.cache_max_bytes", install.cache_max_bytes, 0, 1 << 44);
    let hosts = u64::try_from(install.redirect_hosts.len()).unwrap_or(u64::MAX);
    rules.number("install.redirect_hosts", hosts, 0, 64);
}

fn trust(config: &Config, rules: &mut Rules<'_>) {
    let trust = &config.trust;
    let wrong = trust.keys.iter().find_map(|key| trust_key::check_key(key).err());
    rules.require("trust.keys", wrong.is_none(), || {
        wrong.map(|wrong| wrong.to_string()).unwrap_or_default()
    });
    let all = trust.keys.len().max(trust.key_files.len());
    rules.number("trust.keys", u64::try_from(all).unwrap_or(u64::MAX), 0, 64);
    for file in &trust.key_files {
        rules.require("trust.key_files", file.is_absolute(), || {
            format!("{} is not an absolute path; start it with a slash", file.display())
        });
    }
}

fn api(config: &Config, rules: &mut Rules<'_>) {
    if let Some(program) = config.admission.command.first() {
        rules.require("admission.command", Path::new(program).is_absolute(), || {
            // Not quoted: a user may have written a whole command line with a token here.
            "its program is not an absolute path; start it with a slash".to_owned()
        });
    }
    let timeout = config.admission.timeout;
    rules.duration("admission.timeout", timeout, Duration::from_secs(1), Duration::from_secs(600));
    let api = &config.api;
    let bounds = (Duration::from_millis(100), Duration::from_secs(600));
    rules.duration("api.command_timeout", api.command_timeout, bounds.0, bounds.1);
    rules.text("api.command_socket_group", &api.command_socket_group, 0, 32);
    http(api, rules);
    http_tls(api, rules);
    http_socket(config, rules);
}

fn http(api: &ApiConfig, rules: &mut Rules<'_>) {
    let files = [
        ("api.http_token_file", &api.http_token_file),
        ("api.http_admin_token_file", &api.http_admin_token_file),
        ("api.http_tokens_file", &api.http_tokens_file),
    ];
    for (key, file) in files {
        rules.require(key, file.is_empty() || Path::new(file).is_absolute(), || {
            format!("{file:?} is not an absolute path; start it with a slash")
        });
    }
    let is_one =
        !api.http_token_file.is_empty() && api.http_token_file == api.http_admin_token_file;
    rules.require("api.http_admin_token_file", !is_one, || {
        "it is api.http_token_file, too, so every client that may look could act; name another file"
            .to_owned()
    });
    let is_one =
        [&api.http_token_file, &api.http_admin_token_file].contains(&&api.http_tokens_file);
    rules.require("api.http_tokens_file", api.http_tokens_file.is_empty() || !is_one, || {
        "another key names it as the file with one plain token; name a file that `guest-agent \
         http-token new` makes"
            .to_owned()
    });
    let has_readers = !api.http_token_file.is_empty() || !api.http_tokens_file.is_empty();
    if let Some(address) = api.http_listen {
        rules.require(
            "api.http_token_file",
            address.ip().is_loopback() || !api.http_allow_remote || has_readers,
            || {
                format!(
                    "it is empty, and api.http_listen = \"{address}\" can be reached from other \
                     machines; name a file with a token, made with `openssl rand -hex 32`, or one with \
                     several as api.http_tokens_file"
                )
            },
        );
        rules.require(
            "api.http_listen",
            address.ip().is_loopback() || api.http_allow_remote,
            || {
                format!(
                    "{address} can be reached from other machines; listen on 127.0.0.1, or set \
                 api.http_allow_remote = true if you want that, with api.http_tls_cert and \
                 api.http_tls_key unless the network encrypts"
                )
            },
        );
    }
}

fn http_tls(api: &ApiConfig, rules: &mut Rules<'_>) {
    let (certificate, key) = ("api.http_tls_cert", "api.http_tls_key");
    for (name, file, of, other) in [
        (certificate, &api.http_tls_cert, key, &api.http_tls_key),
        (key, &api.http_tls_key, certificate, &api.http_tls_cert),
    ] {
        rules.require(name, file.is_empty() || Path::new(file).is_absolute(), || {
            format!("{file:?} is not an absolute path; start it with a slash")
        });
        rules.require(name, !file.is_empty() || other.is_empty(), || {
            format!(
                "it is empty, and {of} is not: TLS needs a certificate and its key; name the file \
                 of this one, or empty both"
            )
        });
    }
}

fn http_socket(config: &Config, rules: &mut Rules<'_>) {
    let name = "api.http_socket";
    rules.group("api.http_socket_group", &config.api.http_socket_group);
    if config.api.http_socket.is_empty() {
        return;
    }
    let path = Path::new(&config.api.http_socket);
    rules.absolute(name, path);
    rules.require(name, path.as_os_str().len() <= SOCKET_PATH_MAX, || {
        format!(
            "{path:?} is too long for the address of a socket, which has at most {SOCKET_PATH_MAX} \
             bytes; choose a shorter path"
        )
    });
    let agent = &config.agent;
    let others = [agent.socket(), agent.command_socket(), agent.host_socket()];
    rules.require(name, !others.iter().any(|other| other == path), || {
        format!("{path:?} is another socket of the agent; choose another path")
    });
}

fn log(config: &Config, rules: &mut Rules<'_>) {
    let wrong = log_filter::check(&config.log.level).err();
    rules.require("log.level", wrong.is_none(), || wrong.unwrap_or_default());
}

fn telemetry(config: &Config, rules: &mut Rules<'_>) {
    let telemetry = &config.telemetry;
    for (key, file) in [
        ("telemetry.otlp_headers_file", &telemetry.otlp_headers_file),
        ("telemetry.otlp_ca_file", &telemetry.otlp_ca_file),
    ] {
        rules.require(key, file.is_empty() || Path::new(file).is_absolute(), || {
            format!("{file:?} is not an absolute path; start it with a slash")
        });
    }
    let (millis, most) = (Duration::from_millis(100), Duration::from_secs(600));
    rules.duration("telemetry.interval", telemetry.interval, millis, most);
    let hour = Duration::from_secs(3600);
    rules.duration("telemetry.metrics_interval", telemetry.metrics_interval, millis, hour);
    rules.duration("telemetry.timeout", telemetry.timeout, millis, most);
}

// === impl Rules ===

impl Rules<'_> {
    fn require(&mut self, key: &str, holds: bool, reason: impl FnOnce() -> String) {
        if !holds {
            let origin = (self.origin_of)(key);
            self.problems.push(Problem { key: key.to_owned(), origin, reason: reason() });
        }
    }

    fn duration(&mut self, key: &str, value: Duration, least: Duration, most: Duration) {
        self.require(key, (least..=most).contains(&value), || {
            format!(
                "{} is out of bounds; use {} to {}",
                format_duration(value),
                format_duration(least),
                format_duration(most)
            )
        });
    }

    fn number(&mut self, key: &str, value: u64, least: u64, most: u64) {
        self.require(key, (least..=most).contains(&value), || {
            format!("{value} is out of bounds; use {least} to {most}")
        });
    }

    fn text(&mut self, key: &str, value: &str, least: usize, most: usize) {
        let length = value.len();
        self.require(key, (least..=most).contains(&length), || {
            format!("it is {length} bytes long; use {least} to {most}")
        });
        self.require(key, !value.chars().any(char::is_control), || {
            "it holds a control character; remove it".to_owned()
        });
    }

    /// The name or the number of a group, or nothing. Whether there is such a group is not looked at.
    fn group(&mut self, key: &str, name: &str) {
        self.text(key, name, 0, 32);
        // The characters that separate names in /etc/group and in lists.
        let is_one = !name.contains([':', ',', '/']) && name.trim() == name;
        self.require(key, is_one, || {
            format!(
                "{name:?} is not the name of a group; write one name or number, as `getent group` \
                 lists them"
            )
        });
    }

    fn absolute(&mut self, key: &str, path: &Path) {
        self.require(key, path.is_absolute(), || {
            format!("{path:?} is not an absolute path; start it with a slash")
        });
    }
}

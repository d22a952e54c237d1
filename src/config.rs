//! The configuration, and the source of each value.
//!
//! ```text
//! defaults → guest-agent.toml → conf.d/*.toml → GUEST_AGENT__SECTION__KEY → --set section.key=value
//!    └──────────── layers.rs: one layer each, unknown keys refused ────────────────────┘
//!    tables below [plugins] ───────────┼──► policy.rs
//!                         typed Config (this file) → validate.rs → Loaded
//! ```
//!
//! The command line calls [`load`] and passes [`Config`] to the wiring; no other module reads files
//! or environment variables for settings. `config/guest-agent.toml` repeats every key with its
//! default, and a test compares the two. This module opens no socket and creates no directory.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::net::endpoint::Endpoint;
use crate::net::host_pattern::HostPattern;

mod duration;
mod endpoint;
mod environment;
mod error;
pub mod http_tokens;
mod layers;
pub mod log_filter;
pub mod maintenance;
mod mode;
pub mod policy;
mod schema;
mod show;
#[cfg(test)]
mod tests;
pub mod trust_key;
mod validate;
mod value;

pub use duration::{DurationError, format_duration, parse_duration};
pub use environment::{DEFAULT_FILE, Environment, MapEnvironment, ProcessEnvironment};
pub use error::{ConfigError, Problem};
pub use layers::{Sources, load};
pub use maintenance::{MaintenanceConfig, MaintenanceWindows, WindowConfig};
pub use mode::SocketMode;
pub use policy::{Policies, Policy};
pub use schema::schema;
pub use show::{Entry, differences, entries, value};

/// The value of `instance.metadata_url` that means no metadata server.
pub const NO_METADATA: &str = "none";

/// The socket on which systemd's journal takes entries.
pub const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

/// All settings, checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Config {
    /// The identity and the directories of the agent.
    pub agent: AgentConfig,
    /// The identity of this machine.
    pub instance: InstanceConfig,
    /// What people know this machine by: at most 64 names and values.
    pub labels: BTreeMap<String, String>,
    /// The connection to the control plane.
    pub control_plane: ControlPlaneConfig,
    /// How plugins are started and watched.
    pub plugins: PluginsConfig,
    /// When changes of plugins may begin.
    pub maintenance: MaintenanceConfig,
    /// Limits of installations.
    pub install: InstallConfig,
    /// The keys that may sign archives.
    pub trust: TrustConfig,
    /// The admission plugin.
    pub admission: AdmissionConfig,
    /// The interfaces that the agent offers on this machine.
    pub api: ApiConfig,
    /// The agent's own log.
    pub log: LogConfig,
    /// `[telemetry]`.
    pub telemetry: TelemetryConfig,
    /// Policies of plugins: the tables below `[plugins]`, read separately because plugins name
    /// them.
    #[serde(skip)]
    pub policies: Policies,
}

/// The configuration, and the source of each value.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The checked values.
    pub config: Config,
    /// For each key that is not at its default: the file, variable or flag that set it.
    pub origins: BTreeMap<String, String>,
}

/// `[agent]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentConfig {
    /// Reported in `AgentInfo`.
    pub name: String,
    /// Parent directory of all state that survives a reboot. Absolute.
    pub state_dir: PathBuf,
    /// Parent directory of the sockets. Absolute, and short enough for the path of `agent.sock` to
    /// fit a socket address.
    pub runtime_dir: PathBuf,
    /// Parent directory of the output of plugins. Absolute.
    pub log_dir: PathBuf,
    /// Directory with the manifests of plugins that came with the image. Absolute.
    pub local_plugin_dir: PathBuf,
    /// Group whose members may look over the agent's socket, by name or number; empty for none.
    pub socket_group: String,
    /// Group whose members may look and act over the agent's socket, by name or number; empty for none.
    pub admin_group: String,
}

/// `[instance]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceConfig {
    /// Id of this machine; empty asks the metadata server, the firmware and `/etc/machine-id`.
    pub id: String,
    /// Base URL of the metadata server; empty means the well-known address, [`NO_METADATA`] none.
    pub metadata_url: String,
}

/// `[control_plane]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ControlPlaneConfig {
    /// False turns the connection to a control plane off.
    pub enabled: bool,
    /// The endpoint of the control plane.
    #[serde(with = "endpoint::control")]
    #[schemars(with = "String")]
    pub endpoint: Option<Endpoint>,
    /// Channel id of the stream.
    pub channel: String,
    /// Resource id of the stream; empty builds it from the metadata server.
    pub resource: String,
    /// How the agent authenticates.
    pub auth: Auth,
    /// PEM file with the authorities that may sign the server; empty means the system's.
    pub ca_file: String,
    /// PEM file with the client certificate, for `mtls`.
    pub client_cert: String,
    /// PEM file with the client key, for `mtls`.
    pub client_key: String,
    /// File with the bearer token, for `token-file`; read again for every connection.
    pub token_file: String,
}

/// How the agent authenticates to the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Auth {
    /// An identity token of the metadata server.
    Metadata,
    /// A bearer token from a file.
    TokenFile,
    /// A client certificate.
    Mtls,
    /// Without authentication.
    None,
}

/// `[plugins]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PluginsConfig {
    /// What plugins listen on.
    pub transport: Transport,
    /// Time between two health checks of one plugin.
    #[serde(with = "duration::text")]
    #[schemars(with = "schema::DurationText")]
    pub health_interval: Duration,
    /// How long a health check may take.
    #[serde(with = "duration::text")]
    #[schemars(with = "schema::DurationText")]
    pub health_timeout: Duration,
    /// Consecutive failures after which a live process counts as hung.
    pub health_failures: u32,
    /// How long a new revision must be healthy before the previous one is discarded.
    #[serde(with = "duration::text")]
    #[schemars(with = "schema::DurationText")]
    pub probation: Duration,
    /// How long a plugin that answered Stop may take to exit, where its policy has no other time.
    #[serde(with = "duration::text")]
    #[schemars(with = "schema::DurationText")]
    pub stop_grace: Duration,
    /// Wait before the second restart in a row of a plugin that crashes; the first comes within a
    /// tenth of it.
    #[serde(with = "duration::text")]
    #[schemars(with = "schema::DurationText")]
    pub restart_initial_backoff: Duration,
    /// Longest wait before a restart.
    #[serde(with = "duration::text")]
    #[schemars(with = "schema::DurationText")]
    pub restart_max_backoff: Duration,
    /// Most bytes of a plugin's log.
    pub log_max_bytes: u64,
    /// Where the lines of plugins' logs go besides their files.
    pub log_to: Vec<LogDestination>,
    /// The socket on which the journal takes entries. Absolute.
    pub log_journal_socket: PathBuf,
    /// Whether plugins have control groups.
    pub cgroups: CgroupUse,
    /// The control group below which plugins have theirs, as a path from the top of the hierarchy;
    /// empty means the agent's own.
    pub cgroup_parent: String,
    /// Most tasks of a plugin at once; 0 is no limit.
    pub max_tasks: u64,
    /// Bytes of memory that the agent and all plugins together may use; 0 is no limit.
    pub total_memory_bytes: u64,
    /// CPU time that the agent and all plugins together may use, in percent of one core; 0 is no
    /// limit.
    pub total_cpu_percent: u32,
}

/// Whether plugins have control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CgroupUse {
    /// Where this machine has groups that the agent may use.
    Auto,
    /// Never.
    Off,
}

/// Where the lines of plugins' logs go besides their files.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum LogDestination {
    /// The journal of this machine.
    Journald,
    /// The collector of `[telemetry]`.
    Otlp,
}

/// What plugins listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// A unix socket in the runtime directory.
    Unix,
    /// A TCP port on loopback.
    Tcp,
}

/// `[install]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InstallConfig {
    /// Most members an archive may have.
    pub max_entries: u64,
    /// Most bytes an archive may expand to.
    pub max_expanded_bytes: u64,
    /// Most bytes to which one byte of an archive may expand.
    pub max_expansion_ratio: u32,
    /// Most bytes of the path of one member.
    pub max_path_bytes: u32,
    /// How many installations run at once; others wait.
    pub max_parallel: u32,
    /// Percent of the time in which a process waits for memory, above which installations wait; 0
    /// turns this off.
    pub max_memory_pressure: u32,
    /// Longest time for which an installation waits for memory.
    #[serde(with = "duration::text")]
    #[schemars(with = "schema::DurationText")]
    pub pressure_patience: Duration,
    /// The kernel's file with the memory pressure; empty means the machine's.
    pub pressure_file: String,
    /// Most bytes of cached archives; 0 turns the cache off.
    pub cache_max_bytes: u64,
    /// Hosts that a download may be redirected to, besides the one that the order names.
    #[schemars(with = "Vec<String>")]
    pub redirect_hosts: Vec<HostPattern>,
}

/// `[trust]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrustConfig {
    /// Public keys of minisign, the line that begins with `RW`. With any key, here or in a file, an
    /// archive is installed only if one of them signed it.
    pub keys: Vec<String>,
    /// Files with such keys. Absolute.
    pub key_files: Vec<PathBuf>,
    /// What the trusted comment of a signature must state.
    pub binding: Binding,
}

/// What the trusted comment of a signature must state. A statement in it must be true with every
/// setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Binding {
    /// Nothing.
    None,
    /// The plugin, as `plugin:NAME`.
    #[default]
    Plugin,
    /// The plugin and the revision, as `revision:REVISION`.
    Revision,
}

/// `[admission]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AdmissionConfig {
    /// Program and arguments of the admission plugin; empty means no admission.
    pub command: Vec<String>,
    /// How long a deployment waits for the answer of the plugin before it is denied.
    #[serde(with = "duration::text")]
    #[schemars(with = "schema::DurationText")]
    pub timeout: Duration,
}

/// `[api]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ApiConfig {
    /// Whether the agent serves the JSON command socket.
    pub command_socket_enabled: bool,
    /// Permissions of the JSON command socket.
    #[schemars(with = "schema::ModeText")]
    pub command_socket_mode: SocketMode,
    /// Group of the JSON command socket; empty leaves it the agent's own.
    pub command_socket_group: String,
    /// How long a command may take.
    #[serde(with = "duration::text")]
    #[schemars(with = "schema::DurationText")]
    pub command_timeout: Duration,
    /// The address that serves metrics and health over HTTP; `None` (an empty text) turns it off.
    #[serde(with = "endpoint::listen")]
    #[schemars(with = "String")]
    pub http_listen: Option<SocketAddr>,
    /// Permits an `http_listen` that other machines can reach.
    pub http_allow_remote: bool,
    /// PEM file with the certificate for `http_listen`; empty means without TLS.
    pub http_tls_cert: String,
    /// PEM file with the key of that certificate.
    pub http_tls_key: String,
    /// Path of a unix socket on which HTTP is served too; empty for none. Absolute.
    pub http_socket: String,
    /// Permissions of the HTTP socket.
    #[schemars(with = "schema::ModeText")]
    pub http_socket_mode: SocketMode,
    /// Group of the HTTP socket; empty leaves it the agent's own.
    pub http_socket_group: String,
    /// File with the token for reading; empty where `http_listen` is on loopback and needs none.
    pub http_token_file: String,
    /// File with the token for actions; empty permits none.
    pub http_admin_token_file: String,
    /// File with further tokens: name, scopes and digest of each; empty for none.
    pub http_tokens_file: String,
}

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogConfig {
    /// The format of lines.
    pub format: LogFormat,
    /// What is logged: a level, or a filter such as `info,guest_agent::install=debug`.
    pub level: String,
}

/// `[telemetry]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TelemetryConfig {
    /// The endpoint of the OTLP collector (gRPC); `None` (an empty text) means that nothing is
    /// exported.
    #[serde(with = "endpoint::control")]
    #[schemars(with = "String")]
    pub otlp_endpoint: Option<Endpoint>,
    /// File with headers for the collector, a `name: value` per line; empty for none.
    pub otlp_headers_file: String,
    /// Certificate authorities (PEM) that may have signed the collector's certificate; empty means
    /// those of the system.
    pub otlp_ca_file: String,
    /// Whether traces are exported.
    pub traces: bool,
    /// Whether metrics are exported.
    pub metrics: bool,
    /// Longest time for which spans wait for others before they are sent.
    #[serde(with = "duration::text")]
    #[schemars(with = "schema::DurationText")]
    pub interval: Duration,
    /// The time between two messages with metrics.
    #[serde(with = "duration::text")]
    #[schemars(with = "schema::DurationText")]
    pub metrics_interval: Duration,
    /// How long the collector may take for one message.
    #[serde(with = "duration::text")]
    #[schemars(with = "schema::DurationText")]
    pub timeout: Duration,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// The journal where standard error is connected to it, text everywhere else.
    Auto,
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
    /// Fields and priorities, to the journal.
    Journald,
}

// === impl AgentConfig ===

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            name: "guest-agent".to_owned(),
            state_dir: "/var/lib/guest-agent".into(),
            runtime_dir: "/run/guest-agent".into(),
            log_dir: "/var/log/guest-agent".into(),
            local_plugin_dir: "/usr/lib/guest-agent/plugins".into(),
            socket_group: String::new(),
            admin_group: String::new(),
        }
    }
}

impl AgentConfig {
    /// The socket that the command line calls.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.runtime_dir.join("agent.sock")
    }

    /// The socket of JSON commands.
    #[must_use]
    pub fn command_socket(&self) -> PathBuf {
        self.runtime_dir.join("command.sock")
    }

    /// The socket that plugins call.
    #[must_use]
    pub fn host_socket(&self) -> PathBuf {
        self.runtime_dir.join("host.sock")
    }
}

// === impl ControlPlaneConfig ===

impl Default for ControlPlaneConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            endpoint: None,
            channel: "compute.googleapis.com/google-guest-agent".to_owned(),
            resource: String::new(),
            auth: Auth::Metadata,
            ca_file: String::new(),
            client_cert: String::new(),
            client_key: String::new(),
            token_file: String::new(),
        }
    }
}

// === impl PluginsConfig ===

impl Default for PluginsConfig {
    fn default() -> Self {
        Self {
            transport: Transport::Unix,
            health_interval: Duration::from_secs(10),
            health_timeout: Duration::from_secs(2),
            health_failures: 3,
            probation: Duration::from_secs(30),
            stop_grace: Duration::from_secs(2),
            restart_initial_backoff: Duration::from_millis(100),
            restart_max_backoff: Duration::from_secs(300),
            log_max_bytes: 10 << 20,
            log_to: Vec::new(),
            log_journal_socket: JOURNAL_SOCKET.into(),
            cgroups: CgroupUse::Auto,
            cgroup_parent: String::new(),
            max_tasks: 4096,
            total_memory_bytes: 0,
            total_cpu_percent: 0,
        }
    }
}

// === impl LogDestination ===

impl LogDestination {
    /// As the configuration and the labels of metrics name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Journald => "journald",
            Self::Otlp => "otlp",
        }
    }
}

impl fmt::Display for LogDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl InstallConfig ===

impl Default for InstallConfig {
    fn default() -> Self {
        Self {
            max_entries: 100_000,
            max_expanded_bytes: 4 << 30,
            max_expansion_ratio: 1000,
            max_path_bytes: 4096,
            max_parallel: 2,
            max_memory_pressure: 40,
            pressure_patience: Duration::from_secs(300),
            pressure_file: String::new(),
            cache_max_bytes: 256 << 20,
            redirect_hosts: Vec::new(),
        }
    }
}

// === impl AdmissionConfig ===

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self { command: Vec::new(), timeout: Duration::from_secs(60) }
    }
}

// === impl ApiConfig ===

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            command_socket_enabled: true,
            command_socket_mode: SocketMode::GROUP,
            command_socket_group: String::new(),
            command_timeout: Duration::from_secs(10),
            http_listen: None,
            http_allow_remote: false,
            http_tls_cert: String::new(),
            http_tls_key: String::new(),
            http_socket: String::new(),
            http_socket_mode: SocketMode::READ_WRITE,
            http_socket_group: String::new(),
            http_token_file: String::new(),
            http_admin_token_file: String::new(),
            http_tokens_file: String::new(),
        }
    }
}

// === impl TelemetryConfig ===

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            otlp_headers_file: String::new(),
            otlp_ca_file: String::new(),
            traces: true,
            metrics: true,
            interval: Duration::from_secs(5),
            metrics_interval: Duration::from_secs(60),
            timeout: Duration::from_secs(10),
        }
    }
}

// === impl LogConfig ===

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Auto, level: "info".to_owned() }
    }
}

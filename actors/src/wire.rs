//! The only place where control-plane messages and the core's own types meet.
//!
//! Decoding checks every field before it acts: what comes out of here is safe to join into paths
//! and to wait for. One bad order is refused by name; the others in its message stand.

use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::configure_plugin_states as cfg;
use prost::Message;

use crate::messages::Listed;
use crate::model::event::{NAME_MAX, PluginEventKind};
use crate::model::id::{PluginName, Sha256Digest};
use crate::model::origin::Origin;
use crate::model::spec::{
    Artifact, ArtifactUrl, Config, EntryPoint, Limits, MetricsPolicy, PluginSpec, Source, Tries,
};
use crate::model::view::Reported;
use crate::plugin::event::Order;
use crate::ports::{InboundMessage, OsFacts, OutboundMessage};
use crate::text::echoed;

mod event;
mod local;
mod model;
mod numbered;
mod report;
mod states;

pub use event::{encode_event, event_kind, event_name, event_number, event_type};
pub use local::decode_local;
use model::decode_execution;
pub use numbered::{FLEET_GENERATION, FleetOrder, fleet_order};
pub use report::{HostFacts, encode_report, fault_of};
pub use states::status_value;

/// The label that has the type of a message.
pub const MESSAGE_TYPE: &str = "message_type";

/// Most orders in one message.
pub const ORDERS_MAX: usize = 4096;

/// Shortest time between two measurements of a plugin: each reads the usage of all its processes.
const SECOND: Duration = Duration::from_secs(1);

const AGENT_INFO: &str = "agent_controlplane.AgentInfo";
const OS_INFO: &str = "agent_controlplane.OSInfo";
const STATES: &str = "agent_controlplane.CurrentPluginStates";

/// A message of the control plane.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// The identity of the agent.
    AgentInfo,
    /// The question for the operating system.
    OsInfo,
    /// The question for the plugins.
    ListStates,
    /// The body is an encoded `ConfigurePluginStates`; see [`decode_orders`].
    Configure(Vec<u8>),
}

/// Why a message or a list of orders cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// It has no type.
    #[error("the message has no label \"{MESSAGE_TYPE}\"")]
    NoType,
    /// Its type is unknown to this agent.
    #[error("the message type {0:?} is not known")]
    UnknownType(String),
    /// Its body is not of the type that its label names.
    #[error("the body is not a valid {what}")]
    Body {
        /// The expected type.
        what: &'static str,
        /// Why it is not.
        #[source]
        cause: prost::DecodeError,
    },
    /// It exceeds a limit.
    #[error("the message has {0} orders; the limit is {ORDERS_MAX}")]
    TooManyOrders(usize),
}

/// One order, or why it was refused.
pub type DecodedOrder = Result<NamedOrder, Refusal>;

/// An order, and the names in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedOrder {
    /// The plugin it is for.
    pub name: PluginName,
    /// The revision as it was named, escaped and bounded; empty where none was. REMOVE and APPLY
    /// match by the plugin's name alone: for them it is only repeated in the event of a refusal.
    pub revision: Arc<str>,
    /// The order.
    pub order: Order,
}

/// Why one order was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The plugin as it was named, escaped and bounded.
    pub name: String,
    /// The revision as it was named, escaped and bounded.
    pub revision: String,
    /// The kind of the event that reports the refusal.
    pub notice: PluginEventKind,
    /// The field, the reason, the fix.
    pub reason: String,
}

/// The agent's name and version for `AgentInfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentFacts {
    /// Its configured name.
    pub name: String,
    /// Its version.
    pub version: String,
}

// === Down: what arrives ===

/// Reads the type of a message.
///
/// # Errors
/// Says why it cannot be understood. Such a message is acknowledged and logged, no more.
pub fn decode_request(message: &InboundMessage) -> Result<Request, WireError> {
    let kind = message.labels.get(MESSAGE_TYPE).ok_or(WireError::NoType)?;
    match kind.as_str() {
        "agent_controlplane.GetAgentInfo" => Ok(Request::AgentInfo),
        "agent_controlplane.GetOSInfo" => Ok(Request::OsInfo),
        "agent_controlplane.ListPluginStates" => Ok(Request::ListStates),
        "agent_controlplane.ConfigurePluginStates" => Ok(Request::Configure(message.body.clone())),
        other => Err(WireError::UnknownType(other.chars().take(80).collect())),
    }
}

/// Reads an encoded `ConfigurePluginStates`.
///
/// # Errors
/// When the whole cannot be read. A bad order is an `Err` in the list instead.
pub fn decode_orders(bytes: &[u8], origin: Origin) -> Result<Vec<DecodedOrder>, WireError> {
    let what = "agent_controlplane.ConfigurePluginStates";
    let Items { items } = Items::decode(bytes).map_err(|cause| WireError::Body { what, cause })?;
    if items.len() > ORDERS_MAX {
        return Err(WireError::TooManyOrders(items.len()));
    }
    // With orders for other plugins in it, the message says nothing about one of them alone.
    let is_alone = origin == Origin::ControlPlane && items.len() == 1;
    let order_digest = is_alone.then(|| Sha256Digest::of(bytes));
    let source = OrderSource { origin, order_digest };
    Ok(items.iter().map(|item| decode_item(item, source)).collect())
}

/// Where an order comes from.
#[derive(Clone, Copy)]
struct OrderSource {
    origin: Origin,
    /// Of the message that a control plane sent for one plugin alone.
    order_digest: Option<Sha256Digest>,
}

/// The same orders, refused for a reason that is the agent's: what a person asks of a plugin that is
/// there is left, which needs nothing new on the disk.
#[must_use]
pub fn refuse_orders(decoded: Vec<DecodedOrder>, reason: &str) -> Vec<DecodedOrder> {
    let refuse = |NamedOrder { name, revision, order }: NamedOrder| {
        let notice = match order {
            Order::Restart | Order::Asked(_) => return Ok(NamedOrder { name, revision, order }),
            Order::Install(_) => PluginEventKind::InstallFailed,
            Order::Remove => PluginEventKind::RemoveFailed,
            Order::Apply(_) => PluginEventKind::ApplyFailed,
        };
        let (name, revision) = (name.to_string(), revision.to_string());
        Err(Refusal { name, revision, notice, reason: reason.to_owned() })
    };
    decoded.into_iter().map(|order| order.and_then(refuse)).collect()
}

/// `ConfigurePluginStates` with its items still encoded, so that a malformed one affects no other.
#[derive(Clone, PartialEq, prost::Message)]
struct Items {
    #[prost(bytes = "vec", repeated, tag = "1")]
    items: Vec<Vec<u8>>,
}

/// The part of a `ConfigurePlugin` that names the plugin.
#[derive(Clone, PartialEq, prost::Message)]
struct Skeleton {
    #[prost(message, optional, tag = "2")]
    plugin: Option<cfg::Plugin>,
}

fn decode_item(bytes: &[u8], source: OrderSource) -> DecodedOrder {
    let item = cfg::ConfigurePlugin::decode(bytes).map_err(|cause| {
        // The mistake may be deep in the manifest; the names can be read all the same.
        let plugin = Skeleton::decode(bytes).ok().and_then(|item| item.plugin).unwrap_or_default();
        Refusal {
            name: echoed(&plugin.name, NAME_MAX),
            revision: echoed(&plugin.revision_id, NAME_MAX),
            notice: PluginEventKind::InstallFailed,
            reason: format!("the order is not a valid ConfigurePlugin: {cause}"),
        }
    })?;
    decode_order(item, source)
}

fn decode_order(item: cfg::ConfigurePlugin, source: OrderSource) -> DecodedOrder {
    let plugin = item.plugin.unwrap_or_default();
    let action = pb::configure_plugin_states::Action::try_from(item.action);
    let notice = match action {
        Ok(cfg::Action::Remove) => PluginEventKind::RemoveFailed,
        Ok(cfg::Action::Apply) => PluginEventKind::ApplyFailed,
        Ok(cfg::Action::Install | cfg::Action::Unspecified) | Err(_) => {
            PluginEventKind::InstallFailed
        }
    };
    let refuse = |reason: String| Refusal {
        name: echoed(&plugin.name, NAME_MAX),
        revision: echoed(&plugin.revision_id, NAME_MAX),
        notice,
        reason,
    };
    let name: PluginName = plugin.name.parse().map_err(|e| refuse(format!("{e}")))?;
    let manifest = item.manifest.unwrap_or_default();
    let order = match action {
        Ok(cfg::Action::Install) => {
            let spec = decode_dynamic(&name, &plugin, manifest, source).map_err(refuse)?;
            Order::Install(Arc::new(spec))
        }
        Ok(cfg::Action::Remove) => Order::Remove,
        Ok(cfg::Action::Apply) => Order::Apply(decode_config(manifest.config).map_err(refuse)?),
        Ok(cfg::Action::Unspecified) => return Err(refuse("the order has no action".to_owned())),
        Err(_) => return Err(refuse(format!("the action {} is not known", item.action))),
    };
    let revision = echoed(&plugin.revision_id, NAME_MAX).into();
    Ok(NamedOrder { name, revision, order })
}

fn decode_dynamic(
    name: &PluginName,
    plugin: &cfg::Plugin,
    manifest: cfg::Manifest,
    OrderSource { origin, order_digest }: OrderSource,
) -> Result<PluginSpec, String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    if manifest.plugin_installation_type
        != i32::from(pb::PluginInstallationType::DynamicInstallation)
    {
        return Err("plugin_installation_type is not DYNAMIC_INSTALLATION; local plugins come \
                    from the machine itself"
            .to_owned());
    }
    let source = Source::Archive(Artifact {
        url: decode_url(&plugin.gcs_signed_url, origin)?,
        sha256: plugin.checksum.parse::<Sha256Digest>().map_err(|e| text(&e))?,
    });
    let entry_point = EntryPoint::parse(&plugin.entry_point).map_err(|e| text(&e))?;
    let spec = decode_spec(name, plugin, manifest, (source, entry_point))?;
    Ok(PluginSpec { order_digest, ..spec })
}

fn decode_spec(
    name: &PluginName,
    plugin: &cfg::Plugin,
    manifest: cfg::Manifest,
    (source, entry_point): (Source, EntryPoint),
) -> Result<PluginSpec, String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let execution = decode_execution(manifest.plugin_type, manifest.execution_model)?;
    let revision = plugin.revision_id.parse().map_err(|e| text(&e))?;
    let plain = PluginSpec::plain(name.clone(), revision, source, entry_point);
    Ok(PluginSpec {
        name: plain.name,
        revision: plain.revision,
        source: plain.source,
        entry_point: plain.entry_point,
        arguments: decode_arguments(&plugin.arguments)?,
        limits: Limits {
            memory_bytes: nothing_is_unlimited(
                manifest.max_memory_usage_bytes,
                "max_memory_usage_bytes",
            )?,
            cpu_percent: nothing_is_unlimited(
                manifest.max_cpu_usage_percentage,
                "max_cpu_usage_percentage",
            )?,
            tasks: None,
        },
        download: Tries {
            attempts: count(
                manifest.download_attempt_count,
                plain.download.attempts,
                100,
                "download_attempt_count",
            )?,
            timeout: duration(
                manifest.download_timeout,
                plain.download.timeout,
                "download_timeout",
            )?,
        },
        start: Tries {
            attempts: count(
                manifest.start_attempt_count,
                plain.start.attempts,
                100,
                "start_attempt_count",
            )?,
            timeout: duration(manifest.start_timeout, plain.start.timeout, "start_timeout")?,
        },
        stop_timeout: duration(manifest.stop_timeout, plain.stop_timeout, "stop_timeout")?,
        metrics: MetricsPolicy {
            interval: duration_from(
                SECOND,
                manifest.metrics_interval,
                plain.metrics.interval,
                "metrics_interval",
            )?,
            points: match manifest.max_metric_datapoints {
                0 => plain.metrics.points,
                n if n <= 10_000 => usize::try_from(n).unwrap_or(plain.metrics.points),
                n => return Err(format!("max_metric_datapoints is {n}; at most 10000 are kept")),
            },
        },
        backoff_factor: count(
            manifest.start_exp_backoff_factor,
            plain.backoff_factor,
            10,
            "start_exp_backoff_factor",
        )?,
        config: decode_config(manifest.config)?,
        execution,
        order_digest: None,
    })
}

/// Zero and absent are the same on the wire, and mean unlimited.
fn nothing_is_unlimited<N, U>(value: N, field: &str) -> Result<Option<U>, String>
where
    N: Copy + Default + PartialEq + std::fmt::Display + TryInto<U>,
{
    if value == N::default() {
        return Ok(None);
    }
    value.try_into().map(Some).map_err(|_| format!("{field} is {value}; it cannot be negative"))
}

fn count(value: i32, default: u32, max: u32, field: &str) -> Result<u32, String> {
    match u32::try_from(value) {
        Ok(0) => Ok(default),
        Ok(n) if n <= max => Ok(n),
        Ok(_) | Err(_) => {
            Err(format!("{field} is {value}; it has to be between 1 and {max}, or 0 for {default}"))
        }
    }
}

fn duration(
    value: Option<prost_types::Duration>,
    default: Duration,
    field: &str,
) -> Result<Duration, String> {
    duration_from(Duration::from_millis(100), value, default, field)
}

fn duration_from(
    min: Duration,
    value: Option<prost_types::Duration>,
    default: Duration,
    field: &str,
) -> Result<Duration, String> {
    const MAX: Duration = Duration::from_secs(3600);
    let Some(value) = value else { return Ok(default) };
    if value.seconds == 0 && value.nanos == 0 {
        return Ok(default);
    }
    let wrong = || {
        format!(
            "{field} is {}.{:09}s; it has to be between {}s and 3600s, or 0 for {}s",
            value.seconds,
            value.nanos,
            min.as_secs_f32(),
            default.as_secs()
        )
    };
    let nanos = u32::try_from(value.nanos).ok().filter(|n| *n < 1_000_000_000);
    let seconds = u64::try_from(value.seconds).map_err(|_| wrong())?;
    let duration = Duration::new(seconds, nanos.ok_or_else(wrong)?);
    if duration < min || duration > MAX { Err(wrong()) } else { Ok(duration) }
}

fn decode_arguments(arguments: &[String]) -> Result<Vec<String>, String> {
    const COUNT: usize = 1024;
    const BYTES: usize = 128 * 1024;
    if arguments.len() > COUNT {
        return Err(format!("arguments has {} entries; at most {COUNT}", arguments.len()));
    }
    let bytes: usize = arguments.iter().map(String::len).sum();
    if bytes > BYTES {
        return Err(format!("arguments are {bytes} bytes together; at most {BYTES}"));
    }
    match arguments.iter().position(|argument| argument.contains('\0')) {
        Some(index) => Err(format!("argument {index} contains a NUL byte")),
        None => Ok(arguments.to_vec()),
    }
}

/// Accepts `http:`, `https:`, `unix:<socket>:<path>`, and from this machine `file:<path>`.
fn decode_url(url: &str, origin: Origin) -> Result<ArtifactUrl, String> {
    const MAX: usize = 16 * 1024;
    if url.is_empty() {
        return Err("gcs_signed_url is empty".to_owned());
    }
    if url.len() > MAX {
        return Err(format!("gcs_signed_url is longer than {MAX} bytes"));
    }
    if url.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("gcs_signed_url contains white space or control characters".to_owned());
    }
    let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let rest = url.get(scheme.len() + 1..).unwrap_or_default();
    let known = match scheme.as_str() {
        "http" | "https" => rest
            .strip_prefix("//")
            .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['/', '?', '#'])),
        "unix" => rest.starts_with('/') && rest.contains(":/"),
        "file" => {
            if origin != Origin::Local {
                return Err("gcs_signed_url is a file: URL; only orders given on the machine \
                            itself may name local archives"
                    .to_owned());
            }
            rest.starts_with('/')
        }
        _ => {
            return Err("gcs_signed_url is neither http(s):// nor unix:<socket>:<path>".to_owned());
        }
    };
    if known {
        Ok(ArtifactUrl::new(url))
    } else {
        Err(format!("gcs_signed_url is not a complete {scheme} URL"))
    }
}

fn decode_config(config: Option<cfg::manifest::Config>) -> Result<Option<Config>, String> {
    const MAX: usize = 1024 * 1024;
    let config = match config {
        None => return Ok(None),
        Some(cfg::manifest::Config::StringConfig(text)) => Config::Text(text.into()),
        // Maps are sorted in memory, so equal structs have equal bytes.
        Some(cfg::manifest::Config::StructConfig(value)) => {
            Config::Struct(value.encode_to_vec().into())
        }
    };
    let len = match &config {
        Config::Text(text) => text.len(),
        Config::Struct(bytes) => bytes.len(),
    };
    if len > MAX {
        return Err(format!("the configuration is {len} bytes long; at most {MAX} are taken"));
    }
    Ok(Some(config))
}

// === Up: what is sent ===

/// Answers a request: the request's labels come back, only the type is replaced.
#[must_use]
pub fn encode_agent_info(to: &InboundMessage, agent: &AgentFacts) -> OutboundMessage {
    use pb::agent_info::AgentCapability as Can;
    let body = pb::AgentInfo {
        name: agent.name.clone(),
        version: agent.version.clone(),
        architecture: go_architecture().to_owned(),
        agent_capabilities: [
            Can::GetAgentInfo,
            Can::GetOsInfo,
            Can::ListPluginStates,
            Can::ConfigurePluginStates,
            Can::ApplyPluginConfig,
        ]
        .map(Into::into)
        .into(),
    };
    reply(to, AGENT_INFO, body.encode_to_vec())
}

/// The architecture that the agent was built for, in Go style.
fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "loongarch64" => "loong64",
        other => other,
    }
}

/// Answers a request for the operating system.
#[must_use]
pub fn encode_os_info(to: &InboundMessage, os: OsFacts) -> OutboundMessage {
    let body = pb::OsInfo {
        r#type: os.kind,
        short_name: os.short_name,
        long_name: os.long_name,
        version: os.version,
        architecture: os.architecture,
        kernel_release: os.kernel_release,
        kernel_version: os.kernel_version,
    };
    reply(to, OS_INFO, body.encode_to_vec())
}

/// Answers a request for what runs.
#[must_use]
pub fn encode_states(to: &InboundMessage, plugins: &[Listed]) -> OutboundMessage {
    reply(to, STATES, guest_agent_proto::encode_plugin_states(&states::current(plugins)))
}

fn reply(to: &InboundMessage, kind: &str, body: Vec<u8>) -> OutboundMessage {
    let mut labels = to.labels.clone();
    labels.insert(MESSAGE_TYPE.to_owned(), kind.to_owned());
    // The control plane actor sets the id when it sends the reply.
    OutboundMessage { id: String::new(), labels, type_url: type_url(kind), body }
}

fn type_url(message: &str) -> String {
    format!("type.googleapis.com/{message}")
}

/// The wire name of a state, such as `RUNNING`.
#[must_use]
pub fn state_name(state: Reported) -> &'static str {
    status_value(state).as_str_name()
}

#[cfg(test)]
mod tests;

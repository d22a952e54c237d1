//! The status as scripts see it. Field names never change, and a field without a value is null, not
//! missing.

use guest_agent_proto::local;
use serde::Serialize;

use super::super::format::rfc3339;

/// All plugins as JSON.
pub(crate) fn plugins(plugins: &[local::PluginStatus]) -> Vec<Plugin<'_>> {
    plugins.iter().map(Plugin::from).collect()
}

/// One plugin.
#[derive(Debug, Serialize)]
pub(crate) struct Plugin<'a> {
    name: &'a str,
    revision: Option<&'a str>,
    state: &'a str,
    kind: &'a str,
    installation: &'a str,
    pid: Option<u32>,
    started_at: Option<String>,
    restarts: u32,
    last_exit: Option<LastExit<'a>>,
    health: Option<Health<'a>>,
    pending: Option<Pending<'a>>,
    config_hash: Option<&'a str>,
    cpu_percent: Option<f64>,
    memory_bytes: Option<u64>,
    address: Option<&'a str>,
    install_path: Option<&'a str>,
    not_enforced: Vec<NotEnforced<'a>>,
}

#[derive(Debug, Serialize)]
struct LastExit<'a> {
    kind: &'a str,
    code: Option<i32>,
    signal: Option<i32>,
    at: Option<String>,
    detail: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Health<'a> {
    code: i32,
    results: &'a [String],
    at: Option<String>,
}

#[derive(Debug, Serialize)]
struct Pending<'a> {
    revision: &'a str,
    state: &'a str,
    error: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct NotEnforced<'a> {
    what: &'a str,
    why: &'a str,
    fix: &'a str,
}

// === impl Plugin ===

impl<'a> From<&'a local::PluginStatus> for Plugin<'a> {
    fn from(plugin: &'a local::PluginStatus) -> Self {
        Self {
            name: &plugin.name,
            revision: present(&plugin.revision),
            state: &plugin.state,
            kind: &plugin.kind,
            installation: &plugin.installation,
            pid: plugin.pid,
            started_at: rfc3339(plugin.started_at.as_ref()),
            restarts: plugin.restarts,
            last_exit: plugin.last_exit.as_ref().map(|exit| LastExit {
                kind: &exit.kind,
                code: exit.code,
                signal: exit.signal,
                at: rfc3339(exit.at.as_ref()),
                detail: present(&exit.detail),
            }),
            health: plugin.health.as_ref().map(|health| Health {
                code: health.code,
                results: &health.results,
                at: rfc3339(health.at.as_ref()),
            }),
            pending: plugin.pending.as_ref().map(|pending| Pending {
                revision: &pending.revision,
                state: &pending.state,
                error: present(&pending.error),
            }),
            config_hash: present(&plugin.config_hash),
            cpu_percent: plugin.cpu_percent,
            memory_bytes: plugin.memory_bytes,
            address: present(&plugin.address),
            install_path: present(&plugin.install_path),
            not_enforced: plugin
                .not_enforced
                .iter()
                .map(|it| NotEnforced { what: &it.what, why: &it.why, fix: &it.fix })
                .collect(),
        }
    }
}

fn present(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

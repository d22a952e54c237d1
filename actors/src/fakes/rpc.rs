//! What running plugins answer.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::fakes::Shared;
use crate::fakes::answers::Reply;
use crate::fakes::fate::{Decider, Fact};
use crate::model::id::Endpoint;
use crate::model::spec::Config;
use crate::ports::{Health, PluginRpc, RpcError};

/// Plugins that answer as scripted.
pub struct FakeRpc(RpcHandle);

/// Scripts a [`FakeRpc`] and reads the calls that it received.
#[derive(Clone)]
pub struct RpcHandle(Shared<Calls>);

#[derive(Default)]
struct Calls {
    health: BTreeMap<String, VecDeque<Reply>>,
    always: BTreeMap<String, Reply>,
    apply: BTreeMap<String, VecDeque<Reply>>,
    checks: Vec<(Instant, String)>,
    applied: Vec<(String, Option<Config>)>,
    fate: Decider,
}

/// Plugins that are well and take every configuration.
#[must_use]
pub fn rpc() -> (FakeRpc, RpcHandle) {
    let handle = RpcHandle(Shared::new(Calls::default()));
    (FakeRpc(handle.clone()), handle)
}

// === impl RpcHandle ===

impl RpcHandle {
    /// What a plugin answers to its next health checks.
    pub fn health(&self, name: &str, replies: &[Reply]) {
        self.0.with(|calls| {
            calls.health.entry(name.to_owned()).or_default().extend(replies.iter().cloned());
        });
    }

    /// What a plugin answers to every health check that nothing else is scripted for.
    pub fn always(&self, name: &str, reply: Reply) {
        self.0.with(|calls| calls.always.insert(name.to_owned(), reply));
    }

    /// What a plugin answers to the next configurations it is handed.
    pub fn applies(&self, name: &str, replies: &[Reply]) {
        self.0.with(|calls| {
            calls.apply.entry(name.to_owned()).or_default().extend(replies.iter().cloned());
        });
    }

    pub(super) fn fate(&self) -> Decider {
        self.0.with(|calls| calls.fate.clone())
    }

    /// When a plugin's health was checked.
    #[must_use]
    pub fn checks(&self, name: &str) -> Vec<Instant> {
        self.0.with(|calls| {
            calls.checks.iter().filter(|(_, plugin)| plugin == name).map(|(at, _)| *at).collect()
        })
    }

    /// Configurations that a plugin was handed.
    #[must_use]
    pub fn applied(&self, name: &str) -> Vec<Option<Config>> {
        self.0.with(|calls| {
            let of_it = calls.applied.iter().filter(|(plugin, _)| plugin == name);
            of_it.map(|(_, config)| config.clone()).collect()
        })
    }
}

/// The plugin behind an endpoint of the fake launcher.
fn plugin_at(endpoint: &Endpoint) -> String {
    endpoint.as_str().split('/').nth(2).unwrap_or_default().to_owned()
}

async fn carry_out(reply: Reply, timeout: Duration) -> Result<Health, RpcError> {
    match reply {
        Reply::Good => Ok(Health::default()),
        Reply::Late(delay) => {
            tokio::time::sleep(delay).await;
            Ok(Health::default())
        }
        Reply::Bad(code, line) => Ok(Health { code, results: vec![line] }),
        Reply::Silence => {
            tokio::time::sleep(timeout).await;
            Err(RpcError::TimedOut(timeout))
        }
        Reply::Forever => std::future::pending().await,
        Reply::Unreachable => Err(RpcError::Unreachable("nobody listens".to_owned())),
        Reply::Unimplemented => Err(RpcError::Unimplemented),
        Reply::Panic => panic!("the script made the fake panic"),
    }
}

// === impl FakeRpc ===

#[async_trait]
impl PluginRpc for FakeRpc {
    async fn health(&self, endpoint: &Endpoint, timeout: Duration) -> Result<Health, RpcError> {
        let name = plugin_at(endpoint);
        let (reply, fate) = self.0.0.with(|calls| {
            calls.checks.push((Instant::now(), name.clone()));
            let once = calls.health.get_mut(&name).and_then(VecDeque::pop_front);
            (once.or_else(|| calls.always.get(&name).cloned()), calls.fate.get())
        });
        let reply = reply.or_else(|| Some(fate?.reply("health", endpoint, None)));
        carry_out(reply.unwrap_or(Reply::Good), timeout).await
    }

    async fn ask(&self, _: &Endpoint, data: String) -> Result<Health, RpcError> {
        Ok(Health { code: 0, results: vec![data] })
    }

    async fn apply(&self, endpoint: &Endpoint, config: Option<Config>) -> Result<(), RpcError> {
        let name = plugin_at(endpoint);
        let (reply, decider) = self.0.0.with(|calls| {
            calls.applied.push((name.clone(), config.clone()));
            let once = calls.apply.get_mut(&name).and_then(VecDeque::pop_front);
            (once, calls.fate.clone())
        });
        let fated = || Some(decider.get()?.reply("apply", endpoint, config.as_ref()));
        let reply = reply.or_else(fated).unwrap_or(Reply::Good);
        let health = carry_out(reply, Duration::from_secs(5)).await?;
        if health.code == 0 {
            decider.happened(Fact::Applied(endpoint, config.as_ref()));
            return Ok(());
        }
        let message = health.results.join("; ");
        Err(RpcError::Refused { code: "INVALID_ARGUMENT".to_owned(), message })
    }
}

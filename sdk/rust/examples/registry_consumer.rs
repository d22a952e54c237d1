//! A plugin that uses an offer of another plugin, through restarts and upgrades of that plugin.
//!
//! `registry_provider.rs` is the other half. Questions: `greet NAME` asks the current provider for
//! its greeting (waiting for one), `now NAME` does not wait, `wait NAME` waits and answers with the
//! entry, `heard` lists the changes of the type since the start.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use guest_agent_plugin::registry::{Connection, Gone, Kind, Registry, Update};
use guest_agent_plugin::{
    Plugin, PluginError, PluginStatus, StartContext, StatusQuery, async_trait,
};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

/// How long to wait for a provider: shorter than the agent waits for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The type of the consumed offer.
struct Greeter;

/// A client of the type. A gRPC client would be made of `connection.channel()`.
#[derive(Clone)]
struct GreeterClient(Connection);

impl Kind for Greeter {
    const TYPE: &'static str = "greeter";
    type Client = GreeterClient;

    fn client(connection: Connection) -> GreeterClient {
        GreeterClient(connection)
    }
}

impl GreeterClient {
    async fn greet(&self) -> std::io::Result<String> {
        let mut greeting = String::new();
        let mut stream = UnixStream::connect(&self.0.entry.socket_path).await?;
        stream.read_to_string(&mut greeting).await?;
        Ok(greeting)
    }
}

#[derive(Default)]
struct Consumer {
    registry: OnceLock<Registry>,
    heard: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Plugin for Consumer {
    async fn start(&self, _: StartContext) -> Result<(), PluginError> {
        let registry = Registry::from_env()
            .map_err(|error| PluginError::because("there is no registry", error))?;
        let mut watch = registry.watch(Some(Greeter::TYPE), None);
        let _first = self.registry.set(registry);
        let heard = self.heard.clone();
        tokio::spawn(async move {
            loop {
                let line = match watch.next().await {
                    Ok(update) => in_words(&update),
                    Err(error) => format!("error: {error}"),
                };
                let is_last = line.starts_with("error");
                heard.lock().expect("no holder panics").push(line);
                if is_last {
                    return;
                }
            }
        });
        Ok(())
    }

    async fn status(&self, query: StatusQuery) -> PluginStatus {
        let StatusQuery::Question(question) = query else {
            return PluginStatus::healthy();
        };
        let Some(registry) = self.registry.get() else {
            return PluginStatus::unhealthy(1, "it is not started yet");
        };
        match question.split_once(' ').unwrap_or((&question, "")) {
            ("heard", _) => {
                let results = self.heard.lock().expect("no holder panics").clone();
                PluginStatus { code: 0, results }
            }
            ("greet", name) => {
                let following = registry.follow::<Greeter>(name);
                match following.client(PATIENCE).await {
                    Ok(client) => greeting(&client).await,
                    Err(error) => PluginStatus::unhealthy(1, error.to_string()),
                }
            }
            ("now", name) => match registry.dispense::<Greeter>(name).await {
                Ok(client) => greeting(&client).await,
                Err(error) => PluginStatus::unhealthy(1, error.to_string()),
            },
            ("wait", name) => match registry.wait(Greeter::TYPE, name, PATIENCE).await {
                Ok(entry) => PluginStatus::answer(format!("{} {}", entry.plugin, entry.version)),
                Err(error) => PluginStatus::unhealthy(1, error.to_string()),
            },
            _ => PluginStatus::unhealthy(1, format!("unknown question {question:?}")),
        }
    }
}

async fn greeting(client: &GreeterClient) -> PluginStatus {
    match client.greet().await {
        Ok(greeting) => PluginStatus::answer(greeting),
        Err(error) => PluginStatus::unhealthy(2, error.to_string()),
    }
}

fn in_words(update: &Update) -> String {
    match update {
        Update::Snapshot(entries) => format!("snapshot of {}", entries.len()),
        Update::Registered(entry) => format!("registered {} {}", entry.name, entry.version),
        Update::Updated(entry) => format!("updated {} {}", entry.name, entry.version),
        Update::Deregistered(entry, Gone::Withdrawn) => format!("withdrawn {}", entry.name),
        Update::Deregistered(entry, Gone::PluginEnded) => format!("ended {}", entry.name),
    }
}

fn main() -> ExitCode {
    guest_agent_plugin::main(Consumer::default())
}

//! A plugin that offers greetings to other plugins, on a unix socket of its own.
//!
//! `registry_consumer.rs` is the other half. The registry is the agent's, so this runs only under
//! it; arguments: `--greeting=TEXT` (its answer), `--name=NAME` (the name in the registry).
//!
//! Questions: `offer NAME [VERSION]` registers another name, `withdraw NAME` takes one back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, OnceLock};

use guest_agent_plugin::registry::{Offer, Registration, Registry};
use guest_agent_plugin::{
    Arguments, Environment, Plugin, PluginError, PluginStatus, StartContext, StatusQuery,
    async_trait,
};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

struct Provider {
    greeting: String,
    name: String,
    socket: OnceLock<PathBuf>,
    /// A name stays registered as long as its registration is kept here.
    registrations: Mutex<BTreeMap<String, Registration>>,
}

#[async_trait]
impl Plugin for Provider {
    async fn start(&self, context: StartContext) -> Result<(), PluginError> {
        let socket = context.state_directory.join("greet.sock");
        listen(&socket, self.greeting.clone())?;
        let _first = self.socket.set(socket);
        // It listens before it registers, because the agent tests whether the socket answers.
        self.offer(&self.name, &self.greeting).await
    }

    async fn status(&self, query: StatusQuery) -> PluginStatus {
        let StatusQuery::Question(question) = query else {
            return PluginStatus::healthy();
        };
        let words: Vec<&str> = question.split(' ').collect();
        let done = match words[..] {
            ["offer", name] => self.offer(name, "").await,
            ["offer", name, version] => self.offer(name, version).await,
            ["withdraw", name] => self.withdraw(name).await,
            _ => Err(format!("unknown question {question:?}").into()),
        };
        match done {
            Ok(()) => PluginStatus::answer("done"),
            Err(error) => PluginStatus::unhealthy(1, because(&error)),
        }
    }
}

impl Provider {
    async fn offer(&self, name: &str, version: &str) -> Result<(), PluginError> {
        let socket = self.socket.get().ok_or("it is not started yet")?;
        let revision = Environment::from_env().revision.unwrap_or_default();
        let offer = Offer::new("greeter", name, socket).version(version);
        let offer = offer.option("revision", revision);
        let registration = Registry::from_env()
            .map_err(|error| PluginError::because("there is no registry", error))?
            .offer(offer)
            .await
            .map_err(|error| PluginError::because("it is not registered", error))?;
        let mut registrations = self.registrations.lock().expect("no holder panics");
        registrations.insert(name.to_owned(), registration);
        Ok(())
    }

    async fn withdraw(&self, name: &str) -> Result<(), PluginError> {
        let registration = self.registrations.lock().expect("no holder panics").remove(name);
        let registration = registration.ok_or("it is not offered")?;
        registration
            .withdraw()
            .await
            .map_err(|error| PluginError::because("it is not taken back", error))
    }
}

/// Greets every client that connects.
fn listen(socket: &Path, greeting: String) -> Result<(), PluginError> {
    if socket.exists() {
        // The socket of a former process.
        std::fs::remove_file(socket)?;
    }
    let listener = UnixListener::bind(socket)?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let greeting = greeting.clone();
            tokio::spawn(async move {
                let _whoever_left = stream.write_all(greeting.as_bytes()).await;
            });
        }
    });
    Ok(())
}

fn because(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn main() -> ExitCode {
    let arguments = Arguments::from_env().ok();
    let own = |name: &str| arguments.as_ref().and_then(|own| own.value(name)).map(str::to_owned);
    guest_agent_plugin::main(Provider {
        greeting: own("--greeting").unwrap_or_else(|| "hello".to_owned()),
        name: own("--name").unwrap_or_else(|| "hello".to_owned()),
        socket: OnceLock::new(),
        registrations: Mutex::default(),
    })
}

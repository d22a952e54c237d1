//! One round of the work on a plugin: its manifest is read, it is built, packed and ordered, and the order is followed
//! to its end.

use std::path::PathBuf;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::local::ConfigureRequest;
use tokio::sync::mpsc;

use super::build::build;
use super::model::Update;
use crate::cli::client;
use crate::cli::failure::Failure;
use crate::cli::follow::{Awaited, FollowedOrder, Goal, follow};
use crate::cli::order;
use crate::cli::progress::Progress;
use crate::manifest::package::{Packing, Wanted, file_url};
use crate::manifest::{ANY_ARCHITECTURE, PluginManifest};

/// Longest that an installation may take, beyond which the plugin is left to the agent.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a round needs.
#[derive(Clone)]
pub(super) struct Round<'a> {
    /// The folder of the plugin.
    pub(super) folder: PathBuf,
    /// The archive that is written.
    pub(super) archive: PathBuf,
    /// The agent's socket.
    pub(super) socket: PathBuf,
    pub(super) packing: &'a Packing<'a>,
    pub(super) build_timeout: Duration,
    /// The name that the plugin had at first.
    pub(super) name: String,
    /// The order before.
    pub(super) before: Option<ConfigurePlugin>,
}

/// What became of a round.
pub(super) struct Done {
    /// The order that was given; `None` where nothing was ordered.
    pub(super) ordered: Option<ConfigurePlugin>,
    /// How it ended, in words.
    pub(super) result: Result<String, Failure>,
}

// === impl Round ===

impl Round<'_> {
    /// Runs it. It is given up when this is dropped.
    pub(super) async fn run(self, tell: mpsc::Sender<Update>) -> Done {
        let mut ordered = None;
        let result = self.steps(&tell, &mut ordered).await;
        Done { ordered, result }
    }

    async fn steps(
        &self,
        tell: &mpsc::Sender<Update>,
        ordered: &mut Option<ConfigurePlugin>,
    ) -> Result<String, Failure> {
        let wanted = self.built(tell).await?;
        let order = self.packed(wanted, tell).await?;
        if self.before.as_ref() == Some(&order) {
            return Ok("nothing changed in what is packed".to_owned());
        }
        let revision = order.plugin.as_ref().map(|it| it.revision_id.clone()).unwrap_or_default();
        stage(tell, format!("installing revision {revision}")).await;
        let mut client = client::connect(&self.socket).await?;
        let orders = Some(ConfigurePluginStates { configure_plugins: vec![order.clone()] });
        let answer = client.configure(ConfigureRequest { orders }).await?.into_inner();
        let Some(result) = answer.results.into_iter().next() else {
            return Err(Failure::failed("the agent did not answer the order"));
        };
        if !result.error.is_empty() {
            return Err(Failure::failed("the agent refused the order").cause(result.error));
        }
        *ordered = Some(order);
        let goal = Goal::Installed { revision: revision.clone() };
        let awaited = Awaited { name: self.name.clone(), goal, generation: result.generation };
        let verdicts = follow(&mut client, &[awaited], PATIENCE, &mut Progress::hidden()).await?;
        match verdicts.into_iter().next() {
            Some(FollowedOrder::Done(state)) => Ok(format!("revision {revision} is {state}")),
            Some(FollowedOrder::Failed(why)) => {
                Err(Failure::failed(format_args!("revision {revision} does not run: {why}")))
            }
            Some(FollowedOrder::Late(state)) => Err(Failure::failed(format_args!(
                "revision {revision} is not there after {} s: {state}",
                PATIENCE.as_secs()
            ))),
            Some(
                FollowedOrder::Waiting | FollowedOrder::Held(_) | FollowedOrder::Returned { .. },
            )
            | None => Err(Failure::failed("the agent did not say what became of the order")),
        }
    }

    /// Reads the manifest and builds.
    async fn built(&self, tell: &mpsc::Sender<Update>) -> Result<(Wanted, String), Failure> {
        let mut manifest = PluginManifest::find(&self.folder)?;
        let mut architecture = ANY_ARCHITECTURE.to_owned();
        if let Some(manifest) = &mut manifest {
            // A revision never changes what it is made of, and here it is made of something else each time.
            manifest.says.revision = None;
            architecture = manifest.architecture_here().ok_or_else(|| {
                Failure::failed("plugin.toml does not name the architecture of this machine")
                    .hint("add it to architectures")
            })?;
            if manifest.says.build.command.is_some() {
                stage(tell, "building".to_owned()).await;
            }
            let built = build(manifest, &architecture, self.build_timeout, tell).await;
            built.map_err(|error| Failure::of(&error))?;
        }
        let wanted = Wanted::of(&self.folder, manifest);
        let name = wanted.name()?;
        if name.as_str() != self.name {
            return Err(Failure::failed(format_args!(
                "the plugin was called {} and is called {name} now",
                self.name
            ))
            .hint("end this and begin again"));
        }
        Ok((wanted, architecture))
    }

    /// Packs, and makes the order.
    async fn packed(
        &self,
        (wanted, architecture): (Wanted, String),
        tell: &mpsc::Sender<Update>,
    ) -> Result<ConfigurePlugin, Failure> {
        stage(tell, "packing".to_owned()).await;
        let package = wanted.pack(&architecture, &self.archive, self.packing)?;
        let revision = wanted.revision(std::slice::from_ref(&package));
        let order = wanted.order(&package, &revision, &file_url(&self.archive)?)?;
        order::decode(&order).map_err(|error| Failure::failed("it makes no order").because(&error))
    }
}

async fn stage(tell: &mpsc::Sender<Update>, text: String) {
    // The receiver may be gone: then the round is dropped.
    let _told = tell.send(Update::Stage(text)).await;
}

//! What the walk asks of the fleet and of its agents, with the commands that people type.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::machines::{BAD_KERNEL, MACHINES, Machine};
use super::programs::ask;
use super::world::World;

/// The plugin.
pub(super) const PLUGIN: &str = "sample";

/// The assignment.
pub(super) const ASSIGNMENT: &str = "web";

/// How its changes go: a wave for each ring. Each is watched for a short time, because the bad release crashes a
/// moment after its installation.
const STRATEGY: &str = "[assignment.rollout]\n\
    waves = [\"ring=canary\", \"ring=early\", \"100%\"]\n\
    soak = \"3s\"\n";

/// A rollout.
#[derive(Debug, Deserialize)]
pub(super) struct Rollout {
    pub(super) state: String,
    pub(super) cause: Option<String>,
    /// From 1.
    pub(super) wave: usize,
    pub(super) progress: Option<Progress>,
}

/// How far it is.
#[derive(Debug, Deserialize)]
pub(super) struct Progress {
    pub(super) given: u32,
    pub(super) in_flight: u32,
    pub(super) failed: Vec<Failed>,
    pub(super) fingerprints: Vec<Fingerprint>,
    pub(super) facets: Vec<Facet>,
}

/// An agent on which it failed.
#[derive(Debug, Deserialize)]
pub(super) struct Failed {
    pub(super) agent: String,
    pub(super) reason: String,
}

/// The fingerprint of failures of one cause.
#[derive(Debug, Deserialize)]
pub(super) struct Fingerprint {
    pub(super) agents: u32,
    pub(super) fingerprint: String,
}

/// A property of agents.
#[derive(Debug, Deserialize)]
pub(super) struct Facet {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) failed: u32,
    pub(super) passed: u32,
}

/// The newest order of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Order {
    pub(super) revision: Option<String>,
    pub(super) generation: u64,
    pub(super) state: String,
}

#[derive(Deserialize)]
struct Explained {
    order: Option<Order>,
}

/// The plugin, as its agent says.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Plugin {
    name: String,
    pub(super) revision: Option<String>,
    pub(super) state: String,
    pub(super) pid: Option<u32>,
    pub(super) started_at: Option<String>,
    pub(super) pending: Option<Pending>,
}

/// A revision that is being installed, or could not be.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Pending {
    pub(super) revision: String,
    pub(super) state: String,
}

#[derive(Deserialize)]
struct Status {
    plugins: Vec<Plugin>,
}

#[derive(Deserialize)]
struct Agents {
    agents: Vec<Agent>,
}

#[derive(Deserialize)]
struct Agent {
    id: String,
    agent_version: Option<String>,
}

#[derive(Deserialize)]
struct Pushed {
    archives: BTreeMap<String, Archive>,
}

#[derive(Deserialize)]
struct Archive {
    sha256: String,
}

// === impl World ===

impl World {
    /// Packs the agent's program, which is a plugin as well, and gives the archive to the fleet. Returns its
    /// digest.
    pub(super) async fn upload(&self, artifacts: &str) -> anyhow::Result<String> {
        let (folder, archive) = (self.path("plugin"), self.path("sample.tar.zst"));
        std::fs::create_dir_all(&folder)?;
        std::fs::create_dir_all(self.dir().join("declared"))?;
        tokio::fs::copy(&self.programs().agent, self.dir().join("plugin/guest-agent")).await?;
        ask(self.agent(&[
            "pack",
            &folder,
            "--zstd",
            "-o",
            &archive,
            "--name",
            PLUGIN,
            "--revision",
            "1",
        ]))
        .await?;
        let token = self.path("upload-token");
        let pushed: Pushed = self
            .ask(&[
                "artifact",
                "push",
                &archive,
                "--plugin",
                PLUGIN,
                "--revision",
                "1",
                "--server",
                artifacts,
                "--token-file",
                &token,
            ])
            .await?;
        let found = pushed.archives.into_values().next();
        found.map(|archive| archive.sha256).ok_or_else(|| anyhow::anyhow!("nothing was pushed"))
    }

    /// Says in the file of the assignment which revision it wants, and how changes of that go.
    pub(super) fn assign(&self, revision: &str) -> anyhow::Result<()> {
        let declared = format!(
            "[[assignment]]\nname = \"{ASSIGNMENT}\"\nplugin = \"{PLUGIN}\"\nrevision = \"{revision}\"\n\
             select = \"ring exists\"\n\n{STRATEGY}"
        );
        Ok(std::fs::write(self.dir().join("declared/assignment.toml"), declared)?)
    }

    /// Writes a release of the archive. The third one crashes where the kernel is old.
    pub(super) fn release(&self, revision: &str) -> anyhow::Result<()> {
        let digest = std::fs::read_to_string(self.dir().join("digest"))?;
        let bad = format!(", \"--crash-on-kernel\", \"{BAD_KERNEL}\"");
        let bad = if revision == "3" { bad.as_str() } else { "" };
        let declared = format!(
            "[[release]]\nplugin = \"{PLUGIN}\"\nrevision = \"{revision}\"\nentry_point = \"guest-agent\"\n\
             arguments = [\"sample-plugin\"{bad}]\narchives.any = {{ sha256 = \"{digest}\" }}\n"
        );
        let file = self.dir().join(format!("declared/release-{revision}.toml"));
        Ok(std::fs::write(file, declared)?)
    }

    /// Applies the files.
    pub(super) async fn apply(&self, options: &[&str]) -> anyhow::Result<()> {
        let declared = self.path("declared");
        let arguments = [&["apply", "-f", &declared], options].concat();
        let _changed: IgnoredAny = World::ask(self, &arguments).await?;
        Ok(())
    }

    /// The ids of the agents that have connected and said what they are.
    pub(super) async fn reported(&self) -> anyhow::Result<Vec<String>> {
        let Agents { agents } = World::ask(self, &["agents", "--scan"]).await?;
        let reported = agents.into_iter().filter(|agent| agent.agent_version.is_some());
        Ok(reported.map(|agent| agent.id).collect())
    }

    /// Changes the file of the assignment, which begins a rollout to the revision, ring by ring.
    pub(super) async fn roll_out(&self, revision: &str) -> anyhow::Result<()> {
        self.release(revision)?;
        self.assign(revision)?;
        self.apply(&[]).await
    }

    /// Has the rollout go back.
    pub(super) async fn roll_back(&self) -> anyhow::Result<()> {
        let _changed: IgnoredAny = World::ask(self, &["rollout", "rollback", ASSIGNMENT]).await?;
        Ok(())
    }

    /// How far the rollout of the assignment is.
    pub(super) async fn rollout(&self) -> anyhow::Result<Rollout> {
        World::ask(self, &["rollout", "show", ASSIGNMENT]).await
    }

    /// The newest order of each agent, by id.
    pub(super) async fn orders(&self) -> anyhow::Result<BTreeMap<&'static str, Order>> {
        let asked = MACHINES.iter().map(async |machine| {
            let Explained { order } = World::ask(self, &["explain", machine.id, PLUGIN]).await?;
            anyhow::Ok(order.map(|order| (machine.id, order)))
        });
        Ok(try_join_all(asked).await?.into_iter().flatten().collect())
    }

    /// What each agent itself says that it runs, by id.
    pub(super) async fn plugins(&self) -> anyhow::Result<BTreeMap<&'static str, Plugin>> {
        let asked = MACHINES.iter().map(async |machine| {
            let Status { plugins } = self.ask_agent(machine, &["status", "--json"]).await?;
            let plugin = plugins.into_iter().find(|plugin| plugin.name == PLUGIN);
            anyhow::Ok(plugin.map(|plugin| (machine.id, plugin)))
        });
        Ok(try_join_all(asked).await?.into_iter().flatten().collect())
    }
}

// === impl Plugin ===

impl Plugin {
    /// Whether it runs this revision and nothing is being done to it.
    pub(super) fn runs(&self, revision: &str) -> bool {
        self.revision.as_deref() == Some(revision) && self.state == "RUNNING"
    }

    /// Its process, which another one with the same number is not.
    pub(super) fn process(&self) -> (Option<u32>, Option<&str>) {
        (self.pid, self.started_at.as_deref())
    }
}

// === impl Rollout ===

impl Rollout {
    /// In a few words, for what was seen in the place of something else.
    pub(super) fn words(&self) -> String {
        let Self { state, wave, .. } = self;
        let cause = self.cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
        let given = self.progress.as_ref().map_or(0, |progress| progress.given);
        format!(
            "the rollout is {state}{cause}, in wave {wave}, {given} agents were given the release"
        )
    }
}

/// What was ordered, for what was seen in the place of something else.
pub(super) fn ordered(orders: &BTreeMap<&'static str, Order>) -> String {
    let all = orders.iter().map(|(id, order)| {
        format!("{id} {} {}", order.revision.as_deref().unwrap_or("nothing"), order.state)
    });
    all.collect::<Vec<_>>().join("; ")
}

/// What runs, for what was seen in the place of something else.
pub(super) fn running(plugins: &BTreeMap<&'static str, Plugin>) -> String {
    let missing = MACHINES.iter().filter(|machine| !plugins.contains_key(machine.id));
    let missing = missing.map(|Machine { id, .. }| format!("{id} nothing"));
    let all = plugins.iter().map(|(id, plugin)| {
        let pending = plugin.pending.as_ref();
        let pending = pending.map(|it| format!(" ({} {})", it.revision, it.state));
        let revision = plugin.revision.as_deref().unwrap_or("nothing");
        format!("{id} {revision} {}{}", plugin.state, pending.unwrap_or_default())
    });
    all.chain(missing).collect::<Vec<_>>().join("; ")
}

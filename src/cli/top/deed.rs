//! What a person does with the selected plugin: the question before it, and the request.

use std::path::PathBuf;
use std::time::Duration;

use guest_agent_proto::local::{Act, ActRequest, PluginStatus, RestartRequest};
use tokio::sync::mpsc;

use super::super::client;
use super::super::failure::Failure;
use super::super::format::one_line;
use super::feed::Update;
use crate::display::{is_releasable, is_stopped};

/// Longest wait for the agent's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The reason that the agent records: nobody is asked for one here.
const REASON: &str = "asked for in top";

/// What is done with a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Restart,
    Stop,
    Start,
    Rollback,
    Hold,
    Release,
}

/// A deed that a person has confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) name: String,
    pub(super) deed: Deed,
}

// === impl Deed ===

impl Deed {
    /// What a key does with this plugin; `None` for another key.
    pub(super) fn of(key: char, plugin: &PluginStatus) -> Option<Self> {
        Some(match key {
            'R' => Self::Restart,
            'S' if is_stopped(plugin) => Self::Start,
            'S' => Self::Stop,
            'B' => Self::Rollback,
            'H' if is_releasable(plugin) => Self::Release,
            'H' => Self::Hold,
            _ => return None,
        })
    }

    /// Asks whether it is meant, and says what it leads to.
    pub(super) fn question(self, name: &str) -> String {
        let (verb, consequence) = match self {
            Self::Restart => ("restart", "it is stopped and started again"),
            Self::Stop => ("stop", "it stays stopped until it is started"),
            Self::Start => ("start", "it may run again"),
            Self::Rollback => ("roll back", "the revision before runs again"),
            Self::Hold => ("hold", "orders for it wait until it is released"),
            Self::Release => ("release", "the order that waits is carried out"),
        };
        format!("{verb} {}? {consequence}  y/n", one_line(name))
    }

    const fn done(self) -> &'static str {
        match self {
            Self::Restart => "restart requested",
            Self::Stop => "stop requested",
            Self::Start => "start requested",
            Self::Rollback => "rollback requested",
            Self::Hold => "hold requested",
            Self::Release => "release requested",
        }
    }

    const fn act(self) -> Option<Act> {
        match self {
            Self::Restart => None,
            Self::Stop => Some(Act::Stop),
            Self::Start => Some(Act::Start),
            Self::Rollback => Some(Act::Rollback),
            Self::Hold => Some(Act::Hold),
            Self::Release => Some(Act::Release),
        }
    }
}

/// Asks the agent, and tells the screen what it answered.
pub(super) async fn carry_out(socket: PathBuf, wish: Wish, tell: mpsc::Sender<Update>) {
    let Wish { name, deed } = wish;
    let answer = tokio::time::timeout(PATIENCE, ask(socket, &name, deed)).await;
    let said = match answer {
        Ok(Ok(())) => deed.done().to_owned(),
        Ok(Err(failure)) => one_line(&failure.reason),
        Err(_elapsed) => "the agent does not answer".to_owned(),
    };
    // The screen may be gone.
    let _told = tell.send(Update::Answered(format!("{}: {said}", one_line(&name)))).await;
}

async fn ask(socket: PathBuf, name: &str, deed: Deed) -> Result<(), Failure> {
    let mut client = client::connect(&socket).await?;
    let name = name.to_owned();
    match deed.act() {
        None => drop(client.restart(RestartRequest { name }).await?),
        Some(act) => {
            let reason = REASON.to_owned();
            let request = ActRequest { name, act: act.into(), reason, ..ActRequest::default() };
            client.act(request).await?;
        }
    }
    Ok(())
}

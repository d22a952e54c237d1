//! The port that runs admission plugins and brings their calls to the core.

use std::fmt;
use std::sync::Arc;

use actix::{Message, Recipient};
use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::admission::{AdmissionVerdict, Metadatum, Offer, ProcessRun};
use crate::model::id::Sha256Digest;

/// Runs admission plugins, one process at a time, and serves their calls.
#[async_trait]
pub trait AdmissionHost: Send + Sync {
    /// Starts the plugin process of a run, gives it its ticket, and sends its calls to `queue`.
    /// Resolves with a description of its end when the process has ended or could not be made.
    ///
    /// The process is ended as by [`AdmissionHost::end`] when this future is dropped.
    async fn run(
        &self,
        life: ProcessRun,
        command: AdmissionCommand,
        queue: QueueRecipients,
    ) -> String;

    /// Asks the plugin process of a run to exit, and kills it soon after. `run` resolves then.
    fn end(&self, life: ProcessRun);

    /// Random bytes, others with every start of the agent.
    fn salt(&self) -> [u8; 32];
}

/// Program and arguments of an admission plugin. Arguments may be secrets; `Debug` shows the
/// program.
#[derive(Clone, PartialEq, Eq)]
pub struct AdmissionCommand(Arc<[String]>);

impl AdmissionCommand {
    /// The command; `None` when there is no program in it.
    #[must_use]
    pub fn new(command: &[String]) -> Option<Self> {
        (!command.is_empty()).then(|| Self(command.into()))
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// Its arguments.
    #[must_use]
    pub fn arguments(&self) -> &[String] {
        self.0.get(1..).unwrap_or_default()
    }
}

impl fmt::Debug for AdmissionCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {} arguments", self.program(), self.arguments().len())
    }
}

/// The recipients to which a host sends the calls of an admission plugin.
#[derive(Clone)]
pub struct QueueRecipients {
    /// Gets the ListAdmissions calls.
    pub list: Recipient<ListCalled>,
    /// Gets the ResolveAdmission calls.
    pub resolve: Recipient<ResolveCalled>,
    /// Gets a message when the plugin ends the stream of ListAdmissions.
    pub hung_up: Recipient<HungUp>,
    /// Gets the questions about a package.
    pub describe: Recipient<Describe>,
}

/// From a host: the plugin called ListAdmissions.
#[derive(Message, Debug)]
#[rtype(result = "Result<(), ListRefused>")]
pub struct ListCalled {
    /// Whose plugin.
    pub life: ProcessRun,
    /// The protocol it speaks.
    pub protocol_version: i32,
    /// Takes the checks, if the call is accepted. The core drops it when there will be no more.
    pub stream: mpsc::Sender<Arc<Offer>>,
}

/// Why a ListAdmissions is refused (FAILED_PRECONDITION).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ListRefused(pub Arc<str>);

/// From a host: the plugin called ResolveAdmission.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct ResolveCalled {
    /// Whose plugin.
    pub life: ProcessRun,
    /// The check, as the plugin names it.
    pub id: String,
    /// What it says.
    pub verdict: AdmissionVerdict,
}

/// From a host: the plugin does not read the stream of ListAdmissions any more.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct HungUp(pub ProcessRun);

/// From a host: what is known of this content of a package? Answered with the newest first; with
/// nothing for what was never asked about.
#[derive(Message, Debug)]
#[rtype(result = "Vec<Metadatum>")]
pub struct Describe {
    /// The package.
    pub package: String,
    /// Its content.
    pub sha256: Sha256Digest,
}

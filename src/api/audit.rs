//! The record of what people asked of this agent: who, what, and whether it was accepted.
//!
//! ```text
//!   local, http ─ orders ─► ControlPlaneActor ─┐ with the orders, in one commit
//!   local, http, commands ─ all else ──────────┴─► StoreActor ─► the newest 1,000
//!                                                                    └─► [`AuditLog::page`]
//! ```
//!
//! What those ask who may not act is in the log and not here: they could push everything else out.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix::Recipient;
use guest_agent_actors::error::Chain;
use guest_agent_actors::keys::{key_number, number_key};
use guest_agent_actors::messages::Save;
use guest_agent_actors::model::audit::{
    AUDIT_MAX, Asker, AuditAct, AuditEntry, AuditVerdict, Target, Via,
};
use guest_agent_actors::ports::{Storage, StorageError, Table};
use guest_agent_proto::local;
use tonic::Status;
use tracing::warn;

/// Most entries of a page.
const PAGE_MAX: usize = 250;

/// Longest wait until an entry is durable. The store writes it in any case.
const RECORD_WAIT: Duration = Duration::from_secs(2);

/// Writes and reads the record.
#[derive(Clone)]
pub struct AuditLog {
    /// Makes entries durable.
    pub store: Recipient<Save>,
    /// Has the entries.
    pub storage: Arc<dyn Storage>,
}

/// Which entries are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted<'a> {
    /// Of this plugin, and of all plugins; empty for everything.
    pub(crate) name: &'a str,
    /// At most so many, the newest; 0 for a page.
    pub(crate) limit: usize,
    /// At or after this time.
    pub(crate) since: Option<SystemTime>,
    /// Before this number; 0 for no bound.
    pub(crate) before: u64,
}

// === impl AuditLog ===

impl AuditLog {
    /// Records what became no order. Answers when it is durable, or could not be
    /// written at once: the store logs and counts that, and tries again.
    pub(crate) async fn record(
        &self,
        asker: &Asker,
        what: AuditAct,
        target: Target,
        verdict: AuditVerdict,
    ) {
        let entry = AuditEntry::new(SystemTime::now(), asker, what, target, verdict);
        let saving = self.store.send(Save { audit: vec![entry], ..Save::default() });
        if tokio::time::timeout(RECORD_WAIT, saving).await.is_err() {
            warn!("the store is slow; what a person asked is answered before it is recorded");
        }
    }

    /// The same for what may still become an order: only a refusal is recorded.
    pub(crate) async fn or_refused<T>(
        &self,
        asker: &Asker,
        what: AuditAct,
        target: Target,
        result: Result<T, Status>,
    ) -> Result<T, Status> {
        if let Err(status) = &result {
            let verdict = AuditVerdict::Refused(status.message().into());
            self.record(asker, what, target, verdict).await;
        }
        result
    }

    /// The newest entries that are wanted, oldest first, and whether there are older ones.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn page(
        &self,
        wanted: Wanted<'_>,
    ) -> Result<local::ListAuditResponse, StorageError> {
        let limit = if wanted.limit == 0 { PAGE_MAX } else { wanted.limit.min(PAGE_MAX) };
        let below = (wanted.before > 0).then(|| number_key(wanted.before));
        let records = self.storage.newest(Table::Audit, below, AUDIT_MAX).await?;
        // A record that cannot be read is set aside at the next start.
        let entries = records
            .iter()
            .filter_map(|(key, bytes)| Some((key_number(key)?, AuditEntry::decode(bytes).ok()?)));
        let fits = |(_, entry): &(u64, AuditEntry)| {
            (wanted.name.is_empty() || entry.concerns(wanted.name))
                && wanted.since.is_none_or(|since| entry.at >= since)
        };
        let mut found: Vec<_> = entries.filter(fits).take(limit + 1).collect();
        let more = found.len() > limit;
        found.truncate(limit);
        let entries = found.into_iter().rev().map(|(number, entry)| shown(number, entry));
        Ok(local::ListAuditResponse { entries: entries.collect(), more })
    }
}

/// The verdict about what became no order.
pub(crate) fn verdict<T>(result: &Result<T, Status>) -> AuditVerdict {
    match result {
        Ok(_) => AuditVerdict::Accepted(None),
        Err(status) => AuditVerdict::Refused(status.message().into()),
    }
}

/// The answer about entries that cannot be read.
pub(crate) fn unreadable(error: &StorageError) -> Status {
    Status::internal(Chain(error).to_string())
}

fn shown(number: u64, entry: AuditEntry) -> local::AuditEntry {
    let AuditEntry { at, who, via, what, target, detail, verdict } = entry;
    let all = target == Target::AllPlugins;
    let plugin = match target {
        Target::Plugin(name) => name.to_string(),
        Target::AllPlugins | Target::Agent => String::new(),
    };
    let (refused, generation) = match verdict {
        AuditVerdict::Accepted(order) => (String::new(), order.map(|it| it.0).unwrap_or_default()),
        AuditVerdict::Refused(why) => (why.to_string(), 0),
    };
    local::AuditEntry {
        number,
        at: Some(at.into()),
        who: who.to_string(),
        via: via_shown(via).into(),
        what: what_shown(what).into(),
        plugin,
        all,
        detail: detail.to_string(),
        refused,
        generation,
    }
}

const fn via_shown(via: Via) -> local::AuditVia {
    match via {
        Via::AgentSocket => local::AuditVia::AgentSocket,
        Via::Http => local::AuditVia::Http,
        Via::CommandSocket => local::AuditVia::CommandSocket,
        Via::ControlPlane => local::AuditVia::ControlPlane,
    }
}

const fn what_shown(what: AuditAct) -> local::AuditAct {
    match what {
        AuditAct::Install => local::AuditAct::Install,
        AuditAct::Remove => local::AuditAct::Remove,
        AuditAct::Apply => local::AuditAct::Apply,
        AuditAct::Restart => local::AuditAct::Restart,
        AuditAct::Stop => local::AuditAct::Stop,
        AuditAct::Start => local::AuditAct::Start,
        AuditAct::Rollback => local::AuditAct::Rollback,
        AuditAct::Hold => local::AuditAct::Hold,
        AuditAct::Release => local::AuditAct::Release,
        AuditAct::Dismiss => local::AuditAct::Dismiss,
        AuditAct::Limit => local::AuditAct::Limit,
        AuditAct::Run => local::AuditAct::Run,
        AuditAct::VmEvent => local::AuditAct::VmEvent,
        AuditAct::Orders => local::AuditAct::Orders,
        AuditAct::Sweep => local::AuditAct::Sweep,
        AuditAct::Forget => local::AuditAct::Forget,
        AuditAct::ClearQuarantine => local::AuditAct::ClearQuarantine,
    }
}

#[cfg(test)]
mod tests {
    use guest_agent_actors::fakes::Harness;

    use super::*;

    fn asker() -> Asker {
        Asker { who: "alice (uid 7)".into(), via: Via::AgentSocket, detail: "".into() }
    }

    async fn log(agent: &Harness) -> AuditLog {
        let storage = agent.world.storage.port();
        let store = agent.run(|system| std::future::ready(system.store.clone())).await;
        AuditLog { store: store.recipient(), storage }
    }

    #[tokio::test]
    async fn pages_have_the_newest_that_fit_oldest_first_and_say_whether_there_are_more() {
        let agent = Harness::awake().await;
        let log = log(&agent).await;
        let filling = log.clone();
        let fill = async move {
            for n in 0..5 {
                let name = if n % 2 == 0 { "a" } else { "b" };
                let target = Target::Plugin(name.into());
                let verdict = AuditVerdict::Accepted(None);
                filling.record(&asker(), AuditAct::Stop, target, verdict).await;
            }
            let refused: Result<(), _> = Err(Status::invalid_argument("in the past"));
            let target = Target::AllPlugins;
            drop(filling.or_refused(&asker(), AuditAct::Hold, target, refused).await);
            drop(filling.or_refused(&asker(), AuditAct::Hold, Target::AllPlugins, Ok(())).await);
        };
        agent.run(|_| fill).await;
        let page = async |wanted: Wanted<'_>| {
            let page = log.page(wanted).await.expect("the store can be read");
            let numbers: Vec<u64> = page.entries.iter().map(|entry| entry.number).collect();
            (numbers, page.more)
        };
        assert_eq!(page(Wanted::default()).await, (vec![1, 2, 3, 4, 5, 6], false));
        let of_a = Wanted { name: "a", limit: 2, ..Wanted::default() };
        assert_eq!(page(of_a).await, (vec![5, 6], true), "what was asked of all concerns it");
        assert_eq!(page(Wanted { before: 5, ..of_a }).await, (vec![1, 3], false));
        let later = SystemTime::now() + Duration::from_secs(60);
        let since = Wanted { since: Some(later), ..Wanted::default() };
        assert_eq!(page(since).await, (vec![], false));
        let whole = log.page(Wanted { limit: 1, ..Wanted::default() }).await.expect("readable");
        assert_eq!(whole.entries[0].refused, "in the past");
        assert!(whole.entries[0].all && whole.entries[0].what() == local::AuditAct::Hold);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_cannot_be_written_keeps_nobody_waiting_and_gets_the_entry_later() {
        let agent = Harness::awake().await;
        let log = log(&agent).await;
        agent.world.storage.set_failing(true);
        let recording = log.clone();
        let target = Target::Agent;
        agent
            .run(|_| async move {
                let verdict = AuditVerdict::Accepted(None);
                recording.record(&asker(), AuditAct::Sweep, target, verdict).await;
            })
            .await;
        agent.world.storage.set_failing(false);
        agent.pass(Duration::from_secs(60)).await;
        assert_eq!(log.page(Wanted::default()).await.expect("readable").entries.len(), 1);
    }
}

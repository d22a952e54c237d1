//! Reports what the store has lost, as events.
//!
//! ```text
//!   store's health changed ─► LossReporter ─► losses that were not reported yet ─► events,
//!                                             in one commit with the note that they were reported
//! ```
//!
//! Many places move a record into quarantine, some of them before the actors run that take events.
//! So the reporter reads the quarantine itself: it reports each record whose number is higher than
//! the last reported one, once, also if the agent crashes in between. The agent's wiring runs it
//! beside the actors.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix::Recipient;
use guest_agent_actors::error::Chain;
use guest_agent_actors::messages::Save;
use guest_agent_actors::model::event::NewEvent;
use guest_agent_actors::model::event::PluginEventKind;
use guest_agent_actors::ports::{Losses, QuarantinedRecord, Storage, Table, Write};
use tracing::{error, warn};

use super::adoption::Adoption;
use super::damage::{DAMAGED, lost_because, numbered};

/// The key, in the table of facts, of the note about which losses were reported.
const TOLD: &[u8] = b"losses_told";

/// Most records that one look reports each as its own event; one more event reports how many others
/// there are.
const EVENTS_MAX: usize = 20;

/// Most plugins that an event names.
const NAMED: usize = 20;

/// Shortest time between two looks, so that losses that happen together are reported together.
const CALM: Duration = Duration::from_secs(1);

/// Reports losses of records and stores, each once.
pub(crate) struct LossReporter {
    /// Lists the losses.
    pub(crate) storage: Arc<dyn Storage>,
    /// Makes events durable.
    pub(crate) store: Recipient<Save>,
    /// The agent's name, under which the losses are reported that do not belong to a single plugin.
    pub(crate) agent: String,
}

/// The losses that were reported: all with lower numbers than these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReportedLosses {
    /// One more than the number of the last reported record.
    records: u64,
    /// The number of the last reported store.
    store: u64,
}

// === impl LossReporter ===

impl LossReporter {
    /// Reports the losses so far, and each later loss, until the store is closed.
    pub(crate) async fn run(self) {
        let mut health = self.storage.health();
        let mut told = None;
        loop {
            health.mark_unchanged();
            if let Err(error) = self.look(&mut told).await {
                warn!(
                    error,
                    "cannot report what the store has lost; tries again at the next change"
                );
            }
            tokio::time::sleep(CALM).await;
            if health.changed().await.is_err() {
                return;
            }
        }
    }

    /// `told` has what was reported before, and what became of the plugins of a lost store, which was
    /// written before this agent began. Both are read once.
    async fn look(&self, told: &mut Option<(ReportedLosses, Adoption)>) -> Result<(), String> {
        let losses = self.storage.losses().await.map_err(|error| Chain(&error).to_string())?;
        let (told, adoption) = match told {
            Some(told) => told,
            None => {
                let facts = self.storage.load(Table::Facts).await;
                let facts = facts.map_err(|error| Chain(&error).to_string())?;
                let fact = facts.iter().find(|(key, _)| key == TOLD);
                let before = fact.and_then(|(_, value)| ReportedLosses::from_bytes(value));
                told.insert((before.unwrap_or_default(), Adoption::among(&facts)))
            }
        };
        let (events, now) = news((&losses, adoption), *told, &self.agent, SystemTime::now());
        *told = now;
        if events.is_empty() {
            return Ok(());
        }
        for event in &events {
            error!(details = %event.details, "the store has lost data");
        }
        let (table, key) = (Table::Facts, TOLD.to_vec());
        let writes = vec![Write::Put { table, key, value: now.to_bytes().to_vec() }];
        // If the store's actor cannot write this now, it keeps it and writes it later.
        let saved = self.store.send(Save { writes, events, ..Save::default() }).await;
        saved.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

/// Returns events for the losses that were not reported yet, and the note to save with them.
fn news(
    (losses, adoption): (&Losses, &Adoption),
    told: ReportedLosses,
    agent: &str,
    at: SystemTime,
) -> (Vec<NewEvent>, ReportedLosses) {
    let mut now = told;
    let mut events = Vec::new();
    // Of the event kinds on the wire, `InstallFailed` fits best: an ordered plugin is not in place.
    let mut tell = |plugin: &str, details: String| {
        events.push(NewEvent::new(PluginEventKind::InstallFailed, plugin, "", at, &details));
    };
    if let Some((path, number)) = losses.stores.last().and_then(|path| {
        let number = numbered(Path::new(path))?;
        Some((path, number))
    }) && number > told.store
    {
        now.store = number;
        let what = match lost_because(Path::new(path)) {
            None => format!(
                "the agent's store was damaged and an empty one took its place; the damaged one is \
                 kept in {path}"
            ),
            Some(traces) => format!(
                "the agent's store was gone and an empty one took its place, although there {traces}; \
                 {path} stands for the lost one"
            ),
        };
        let details = format!(
            "{what}: the agent knows of no order or event from before; {}",
            outcome(adoption, number)
        );
        tell(agent, details);
    }
    let fresh: Vec<&QuarantinedRecord> =
        losses.records.iter().filter(|record| record.number >= told.records).collect();
    now.records = fresh.iter().map(|r| r.number.saturating_add(1)).fold(now.records, u64::max);
    for record in fresh.iter().take(EVENTS_MAX) {
        let (table, key, reason) = (table_name(record.table), shown_key(record), &record.reason);
        let details = format!(
            "the record {key} of the table {table} could not be used and was set aside ({reason}); \
             it is kept in the store's quarantine; see `guest-agent doctor`"
        );
        tell(agent, details);
        // The manager reports a record that could be read but not decoded.
        if record.table == Table::Plugins && reason.starts_with(DAMAGED) {
            let details = format!(
                "the record of this plugin is {reason}, and was set aside; its processes are ended; \
                 install it again"
            );
            tell(&key, details);
        }
    }
    let more = fresh.len().saturating_sub(EVENTS_MAX);
    if more > 0 {
        tell(agent, format!("{more} more records were set aside; see `guest-agent doctor`"));
    }
    (events, now)
}

/// What became of the plugins of a lost store, for its event.
fn outcome(adoption: &Adoption, store: u64) -> String {
    let named = |names: &mut dyn Iterator<Item = &str>| {
        let mut text = names.take(NAMED).collect::<Vec<_>>().join(", ");
        if names.next().is_some() {
            text.push_str(" and more");
        }
        text
    };
    let (adopted, left) = match adoption {
        Adoption { store: of, adopted, left } if *of == store => (&adopted[..], &left[..]),
        _ => Default::default(),
    };
    let mut parts = Vec::new();
    if !adopted.is_empty() {
        let names = named(&mut adopted.iter().map(String::as_str));
        parts.push(format!(
            "{} of its plugins are adopted as they last ran ({names}), so order what has changed since",
            adopted.len()
        ));
    }
    if !left.is_empty() {
        let names = named(&mut left.iter().map(|(name, _)| name.as_str()));
        parts.push(format!(
            "{} are not adopted ({names}): their processes run on and their files are kept",
            left.len()
        ));
    }
    if parts.is_empty() {
        parts.push("no plugin of it was found".to_owned());
    }
    format!("{}; see `guest-agent doctor`", parts.join("; "))
}

/// The name of a table in events and in answers of the local API.
pub(crate) fn table_name(table: Table) -> &'static str {
    match table {
        Table::Plugins => "plugins",
        Table::Inbox => "inbox",
        Table::Outbox => "outbox",
        Table::History => "history",
        Table::Facts => "facts",
        Table::Registry => "registry",
        Table::Audit => "audit",
    }
}

/// The key of a record in events and in answers of the local API.
pub(crate) fn shown_key(record: &QuarantinedRecord) -> String {
    let key = &record.key[..record.key.len().min(80)];
    match (record.table, <[u8; 8]>::try_from(record.key.as_slice())) {
        (Table::Inbox | Table::Outbox | Table::History | Table::Audit, Ok(number)) => {
            u64::from_be_bytes(number).to_string()
        }
        _ => key.escape_ascii().to_string(),
    }
}

// === impl ReportedLosses ===

impl ReportedLosses {
    fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.records.to_be_bytes());
        bytes[8..].copy_from_slice(&self.store.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (records, store) = bytes.split_first_chunk()?;
        let store = store.try_into().ok()?;
        Some(Self { records: u64::from_be_bytes(*records), store: u64::from_be_bytes(store) })
    }
}

#[cfg(test)]
mod tests {
    use actix::{Actor, Context, Handler};
    use guest_agent_actors::fakes;
    use guest_agent_actors::messages::SaveFailed;
    use tokio::sync::mpsc;

    use super::*;

    /// Shows the events that are made durable.
    struct Saves(mpsc::UnboundedSender<Save>);

    impl Actor for Saves {
        type Context = Context<Self>;
    }

    impl Handler<Save> for Saves {
        type Result = Result<(), SaveFailed>;

        fn handle(&mut self, save: Save, _: &mut Self::Context) -> Self::Result {
            self.0.send(save).expect("the test waits");
            Ok(())
        }
    }

    #[actix_rt::test]
    async fn whatever_keeps_the_records_a_loss_is_told_when_its_health_moves() {
        let (storage, handle) = fakes::storage();
        let storage: Arc<dyn Storage> = Arc::new(storage);
        let (saves, mut saved) = mpsc::unbounded_channel();
        let teller = LossReporter {
            storage: storage.clone(),
            store: Saves(saves).start().recipient(),
            agent: "guest-agent".to_owned(),
        };
        let telling = actix_rt::spawn(teller.run());
        storage.set_aside(Table::Inbox, b"1".to_vec(), "odd".to_owned()).await.expect("set aside");
        let first = saved.recv().await.expect("the loss is reported");
        assert!(first.events[0].details.contains("odd"), "{:?}", first.events);
        assert_eq!(storage.health().borrow().records, 1);
        assert_eq!(storage.clear_quarantine().await.expect("cleared"), 1);
        assert_eq!(storage.health().borrow().records, 0);
        handle.lose_store("/s/store.damaged-1");
        let second = saved.recv().await.expect("the loss is reported");
        assert_eq!(second.events.len(), 1, "the record was reported before: {:?}", second.events);
        assert!(second.events[0].details.contains("/s/store.damaged-1"));
        handle.set_failing(true);
        assert!(storage.health().borrow().trouble.is_some());
        telling.abort();
    }

    fn record(number: u64, table: Table, key: &[u8], reason: &str) -> QuarantinedRecord {
        let (key, reason) = (key.to_vec(), reason.to_owned());
        QuarantinedRecord { number, table, key, reason, at: SystemTime::UNIX_EPOCH }
    }

    fn told_of(losses: &Losses, told: ReportedLosses) -> (Vec<(String, String)>, ReportedLosses) {
        let adoption = Adoption {
            store: 3,
            adopted: vec!["web".to_owned()],
            left: vec![("db".to_owned(), "its digest does not match".to_owned())],
        };
        let at = SystemTime::UNIX_EPOCH;
        let (events, now) = news((losses, &adoption), told, "guest-agent", at);
        let short = |event: NewEvent| (event.plugin.to_string(), event.details.to_string());
        (events.into_iter().map(short).collect(), now)
    }

    #[test]
    fn every_loss_is_told_once_with_table_key_and_reason() {
        let mut losses = Losses::default();
        let tables = [Table::Inbox, Table::Outbox, Table::History, Table::Facts];
        for (table, number) in tables.into_iter().zip(5..) {
            losses.records.push(record(number, table, &7u64.to_be_bytes(), "no such field"));
        }
        let (events, now) = told_of(&losses, ReportedLosses::default());
        assert_eq!(events.len(), 4);
        for (table, (plugin, details)) in
            ["inbox", "outbox", "history", "facts"].iter().zip(&events)
        {
            assert_eq!(plugin, "guest-agent");
            assert!(details.contains(table) && details.contains("no such field"), "{details}");
        }
        assert!(events[0].1.contains("the record 7 of the table inbox"), "{}", events[0].1);
        assert_eq!(now, ReportedLosses { records: 9, store: 0 });
        assert_eq!(ReportedLosses::from_bytes(&now.to_bytes()), Some(now));
        assert_eq!(told_of(&losses, now).0, []);
        losses.records.push(record(20, Table::Inbox, b"x", "odd"));
        assert_eq!(told_of(&losses, now).0.len(), 1);
    }

    #[test]
    fn a_plugin_whose_record_is_damaged_on_disk_is_told_of_as_well() {
        let reason = format!("{DAMAGED}the record's checksum does not match");
        let lost = record(0, Table::Plugins, b"web", &reason);
        let misread = record(1, Table::Plugins, b"other", "the record cannot be decoded");
        let losses = Losses { records: vec![lost, misread], stores: Vec::new() };
        let (events, _) = told_of(&losses, ReportedLosses::default());
        let plugins: Vec<&str> = events.iter().map(|(plugin, _)| plugin.as_str()).collect();
        assert_eq!(plugins, ["guest-agent", "web", "guest-agent"]);
        assert!(events[1].1.contains("install it again"), "{}", events[1].1);
    }

    #[test]
    fn a_store_that_was_replaced_is_told_once() {
        let stores = vec!["/s/store.damaged-2".to_owned(), "/s/store.damaged-3".to_owned()];
        let losses = Losses { records: Vec::new(), stores };
        let (events, now) = told_of(&losses, ReportedLosses::default());
        assert_eq!(events.len(), 1);
        for said in ["/s/store.damaged-3", "adopted as they last ran (web)", "not adopted (db)"] {
            assert!(events[0].1.contains(said), "{}", events[0].1);
        }
        assert_eq!(told_of(&losses, now).0, []);
    }

    #[test]
    fn a_flood_of_losses_is_a_few_events() {
        let records = (0..1000u64).map(|n| record(n, Table::History, &n.to_be_bytes(), "odd"));
        let losses = Losses { records: records.collect(), stores: Vec::new() };
        let (events, now) = told_of(&losses, ReportedLosses::default());
        assert_eq!(events.len(), EVENTS_MAX + 1);
        assert!(events[EVENTS_MAX].1.contains("980 more"), "{}", events[EVENTS_MAX].1);
        assert_eq!(now.records, 1000);
    }
}

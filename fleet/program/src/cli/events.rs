//! `events`: the events that agents reported of their plugins, and the notices of the fleet, oldest first.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, SystemTime};

use clap::Args;
use guest_agent_serve_kit::backoff::{Jitter, Schedule};
use guest_fleet_core::duration;
use guest_fleet_ledger::gaps::{Before, Gap, Seen};
use guest_fleet_ledger::records::event::{self, Content, Told, kinds};
use guest_fleet_ledger::records::{shown, time};
use guest_fleet_ledger::{Bucket, Entry, Log, ReadError, bounds};
use guest_fleet_server::fold::by_chance;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::document::Time;
use super::facts::unknown;
use super::failure::{Exit, Failure};
use super::text::{counted, one_line};

/// How often it is looked for new events.
const LOOK: Duration = Duration::from_secs(1);

/// The pauses while the ledger does not answer.
const PAUSES: Schedule = Schedule::doubling(LOOK, Duration::from_secs(30), Jitter::None);

/// The options of `events`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Only events of this agent.
    pub agent: Option<String>,
    /// Only events of this plugin, and of rollouts of it.
    #[arg(long, value_name = "NAME")]
    pub plugin: Option<String>,
    /// Only events of this kind, such as `PLUGIN_CRASHED` or `ROLLOUT_HALTED`; may be given several times. Gaps, and
    /// entries that cannot be read, are shown whatever the kind: an event of it may be among them.
    #[arg(long = "kind", value_name = "KIND", value_parser = clap::builder::PossibleValuesParser::new(kinds()), ignore_case = true)]
    pub kinds: Vec<String>,
    /// Only events since then: how long ago (`10m`), or a time (`2030-01-31T12:00:00Z`).
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    pub since: Option<Moment>,
    /// At most so many, the newest ones.
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: Option<u32>,
    /// Go on with new events as they come.
    #[arg(short, long)]
    pub follow: bool,
}

/// A moment as people give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// So long ago.
    Ago(Duration),
    /// This time.
    At(Timestamp),
}

/// The type of an entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryType {
    /// An agent reported it of a plugin.
    Event,
    /// The fleet noticed it.
    Notice,
    /// Entries that the ledger does not keep any more.
    Gap,
    /// An entry that cannot be read.
    Unreadable,
}

/// Something that happened in the fleet.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FleetEventJson {
    /// The assignment or the certificate that a notice is about; null elsewhere.
    pub about: Option<String>,
    /// Id of the agent; null in a notice that is about no single agent.
    pub agent: Option<String>,
    /// The agents that a notice is about, where they are several: the first ones.
    pub agents: Vec<String>,
    /// When it happened, by the clock of the agent; null where that is not known.
    #[schemars(with = "Option<Time>")]
    pub at: Option<String>,
    /// The happening in words.
    pub details: String,
    /// The command or the deed that helps; empty where nothing has to be done.
    pub fix: String,
    /// In a gap, the number of the first event that is gone; null elsewhere and where that is not known.
    pub from: Option<u64>,
    /// Its id; empty in a gap.
    pub id: String,
    /// Its kind, such as `PLUGIN_CRASHED`; empty where it has none.
    pub kind: String,
    /// Its number among the events of the plugin on the agent, or among such notices. They have no holes but gaps.
    pub number: u64,
    /// Name of the plugin; empty where it is about none.
    pub plugin: String,
    /// When a gateway took it, or the fleet noticed it.
    #[schemars(with = "Option<Time>")]
    pub received: Option<String>,
    /// The revision of the plugin; empty where it concerns none.
    pub revision: String,
    /// In a gap, the number of the first event that is there again; null elsewhere.
    pub to: Option<u64>,
    /// The type of the entry.
    #[serde(rename = "type")]
    pub entry_type: EntryType,
}

/// The entries of the log that are shown.
struct Filter<'a> {
    options: &'a Options,
    kinds: BTreeSet<String>,
    since: Option<SystemTime>,
    prefix: String,
}

/// A reader of the log.
struct Reader<'a> {
    filter: Filter<'a>,
    position: u64,
    seen: Seen,
    /// Subjects whose first events the ledger does not keep any more.
    shortened: usize,
    shown: usize,
}

/// Shows the events.
///
/// # Errors
/// There is no such agent, or the ledger cannot be read.
pub async fn run(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let mut reader = Reader::new(options, context.now);
    let mut newest: VecDeque<FleetEventJson> = VecDeque::new();
    let limit = options.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    loop {
        let page = reader.page(context).await?;
        let Some(events) = page else { break };
        match limit {
            None => events.iter().try_for_each(|event| reader.show(event, context))?,
            Some(limit) => {
                newest.extend(events);
                newest.drain(..newest.len().saturating_sub(limit));
            }
        }
    }
    for event in newest {
        reader.show(&event, context)?;
    }
    if reader.shortened > 0 && options.limit.is_none() {
        let of = match reader.seen.is_partial() {
            true => "many plugins".to_owned(),
            false => counted(reader.shortened, "plugin"),
        };
        let (kept, days) = (bounds::ENTRIES, bounds::ENTRY_AGE.as_secs() / 86_400);
        context.remark(format_args!(
            "older events of {of} are gone: the ledger keeps {kept} of each, for {days} days"
        ))?;
    }
    if reader.shown == 0 {
        if let Some(agent) = &options.agent {
            let found = context.ledger.get(Bucket::Agents, agent).await?;
            found.ok_or_else(|| unknown(agent))?;
        }
        if !options.follow {
            context.remark(format_args!("no events"))?;
        }
    }
    if options.follow {
        return reader.follow(context).await;
    }
    Ok(Exit::Done)
}

// === impl Reader ===

impl<'a> Reader<'a> {
    fn new(options: &'a Options, now: Timestamp) -> Self {
        let since = options.since.map(|since| match since {
            Moment::At(at) => at,
            Moment::Ago(ago) => now.checked_sub(ago).unwrap_or(Timestamp::MIN),
        });
        let prefix = options.agent.as_ref().map(|agent| event::subject(agent, ""));
        let filter = Filter {
            options,
            kinds: options.kinds.iter().map(|kind| kind.to_ascii_uppercase()).collect(),
            since: since.map(SystemTime::from),
            prefix: prefix.unwrap_or_default(),
        };
        Self { filter, position: 0, seen: Seen::default(), shortened: 0, shown: 0 }
    }

    /// The events of the next page; `None` at the end of the log.
    async fn page(
        &mut self,
        context: &Context<'_>,
    ) -> Result<Option<Vec<FleetEventJson>>, ReadError> {
        let prefix = &self.filter.prefix;
        let page = context.ledger.read(Log::Events, prefix, self.position, bounds::PAGE).await?;
        let Some(last) = page.last() else { return Ok(None) };
        self.position = last.position;
        let mut events = Vec::new();
        for entry in &page {
            let before = self.seen.before(entry);
            self.seen.note(entry);
            let told = event::read(entry);
            if !self.filter.is_of(entry, told.as_ref().ok()) {
                continue;
            }
            match before {
                Before::Whole => {}
                Before::Gone(gap) => events.push(FleetEventJson::of_gap(entry, gap)),
                // The first entry of the subject that there is.
                Before::Unknown => self.shortened += 1,
            }
            let told = match told {
                Ok(told) => told,
                Err(error) => {
                    events.push(FleetEventJson::unreadable(entry, error.to_string()));
                    continue;
                }
            };
            if self.filter.passes(&told) {
                events.push(FleetEventJson::of(entry, &told));
            }
        }
        self.seen.keep_page();
        Ok(Some(events))
    }

    fn show(&mut self, event: &FleetEventJson, context: &mut Context<'_>) -> Result<(), Failure> {
        self.shown += 1;
        context.say(format_args!("{}", event.line()))?;
        context.line(event)
    }

    /// Shows new events as they come. A ledger that does not answer is asked again.
    async fn follow(mut self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        let (mut failures, jittered): (u32, _) = (0, by_chance());
        loop {
            let pause = match self.page(context).await {
                Ok(Some(events)) => {
                    events.iter().try_for_each(|event| self.show(event, context))?;
                    context.out.flush()?;
                    failures = 0;
                    Duration::ZERO
                }
                Ok(None) => {
                    failures = 0;
                    LOOK
                }
                Err(error) => {
                    if failures == 0 {
                        context.remark(format_args!("{error}; it is asked again"))?;
                    }
                    failures = failures.saturating_add(1);
                    jittered(PAUSES.wait(failures - 1, 0.0))
                }
            };
            tokio::time::sleep(pause).await;
        }
    }
}

// === impl Filter ===

impl Filter<'_> {
    /// Whether an entry belongs to the agent and the plugin that are asked for, in the time that is asked for.
    fn is_of(&self, entry: &Entry, told: Option<&Told>) -> bool {
        let received = told.and_then(|told| told.received);
        let is_old = self.since.zip(received).is_some_and(|(since, received)| received < since);
        let of = |plugin: &String| match told.map(|told| &told.content) {
            Some(Content::Notice(_, notice)) => notice.plugin == *plugin,
            // Some plugins share a place in the log.
            Some(Content::Event(event)) => event.plugin_name == *plugin,
            None => event::parts(&entry.subject).1 == *plugin,
        };
        !is_old && self.options.plugin.as_ref().is_none_or(of)
    }

    fn passes(&self, told: &Told) -> bool {
        self.kinds.is_empty() || self.kinds.contains(told.content.kind())
    }
}

// === impl FleetEventJson ===

impl FleetEventJson {
    fn new(entry: &Entry, entry_type: EntryType) -> Self {
        let (agent, name) = event::parts(&entry.subject);
        let is_notice = event::is_of_notices(&entry.subject);
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Self {
            about: some(&name).filter(|_| is_notice),
            agent: some(&agent),
            agents: Vec::new(),
            at: None,
            details: String::new(),
            fix: String::new(),
            from: None,
            id: entry.id.clone(),
            kind: String::new(),
            number: entry.number,
            plugin: if is_notice { String::new() } else { name },
            received: None,
            revision: String::new(),
            to: None,
            entry_type,
        }
    }

    fn of(entry: &Entry, told: &Told) -> Self {
        let received = told.received.and_then(shown);
        let kind = told.content.kind().to_owned();
        match &told.content {
            Content::Event(event) => Self {
                at: time(event.event_timestamp).and_then(shown),
                details: String::from_utf8_lossy(event.event_details()).into_owned(),
                plugin: event.plugin_name.clone(),
                revision: event.revision_id.clone(),
                kind,
                received,
                ..Self::new(entry, EntryType::Event)
            },
            Content::Notice(_, notice) => Self {
                agents: notice.agents.clone(),
                details: notice.text.clone(),
                fix: notice.fix.clone(),
                plugin: notice.plugin.clone(),
                kind,
                received,
                ..Self::new(entry, EntryType::Notice)
            },
        }
    }

    fn of_gap(entry: &Entry, gap: Gap) -> Self {
        let details = match gap.from {
            Some(from) => format!("the ledger does not keep {} any more", numbers(from, gap.to)),
            None => format!("the ledger does not keep all before number {} any more", gap.to),
        };
        let (id, from, to) = (String::new(), gap.from, Some(gap.to));
        Self { details, id, from, to, ..Self::new(entry, EntryType::Gap) }
    }

    fn unreadable(entry: &Entry, details: String) -> Self {
        Self { details, ..Self::new(entry, EntryType::Unreadable) }
    }

    /// `time  KIND  agent  plugin revision: details`.
    fn line(&self) -> String {
        let at = self.received.as_deref().unwrap_or("-");
        let kind = match self.entry_type {
            EntryType::Event | EntryType::Notice => self.kind.as_str(),
            EntryType::Gap => "GAP",
            EntryType::Unreadable => "UNREADABLE",
        };
        let plugin = [self.plugin.as_str(), self.revision.as_str()];
        let plugin = plugin.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
        let plugin = plugin.join(" ");
        let subject = [self.agent.as_deref(), self.about.as_deref(), Some(&plugin)];
        let subject = subject.into_iter().flatten().filter(|part| !part.is_empty());
        let parts = [subject.collect::<Vec<_>>().join("  "), self.details.clone()];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        let mut text = format!("{at}  {kind:<21}  {}", parts.collect::<Vec<_>>().join(": "));
        if !self.fix.is_empty() {
            text = format!("{text} ({})", self.fix);
        }
        one_line(&text)
    }
}

fn numbers(from: u64, to: u64) -> String {
    match to.saturating_sub(from) {
        0 | 1 => format!("number {from}"),
        _ => format!("numbers {from} to {}", to - 1),
    }
}

/// Reads a moment.
fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(Moment::At(at));
    }
    duration::parse(text).map(Moment::Ago).map_err(|_| {
        "write how long ago (`10m`, `2h`) or a time (`2030-01-31T12:00:00Z`)".to_owned()
    })
}

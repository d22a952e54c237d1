//! What must hold whenever, and however often, the agent died.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use guest_agent::store::{self, StateLock};
use guest_agent_actors::ports::{Storage, Table};
use sha2::{Digest, Sha256};

use super::run::NAME;
use crate::harness::{Bed, INSTANCE};

/// The events that the agent sent: kind and revision, in the order in which they came.
pub(super) type Told = Vec<(i32, String)>;

/// What must be told. Between the brackets the new revision is being started.
const STORY: [(i32, &str); 23] = [
    // INSTALL of 1.
    (1, "1"),
    (4, "1"),
    (3, "1"),
    // APPLY.
    (11, "1"),
    (12, "1"),
    // INSTALL of 2.
    (1, "2"),
    (6, "1"),
    (4, "2"),
    (3, "2"),
    (2, "1"),
    (5, "1"),
    // INSTALL of 3, which cannot be started.
    (1, "3"),
    (6, "2"),
    (9, "3"),
    (8, "3"),
    (4, "2"),
    // A person stops it, starts it, and rolls it back.
    (6, "2"),
    (4, "2"),
    (8, "2"),
    (4, "1"),
    // REMOVE.
    (2, "1"),
    (6, "1"),
    (5, "1"),
];

/// Notes, from inside of the plugin, who was started and who was alive then.
pub(super) struct Witness(PathBuf);

/// All events of the plugin so far. The control plane knows an event by its id and keeps it once.
pub(super) async fn told(bed: &Bed) -> Told {
    let events = bed.all_events_of(NAME).await;
    events.iter().map(|event| (event.event.event_type, event.revision().to_owned())).collect()
}

pub(super) fn hash(config: &str) -> String {
    Sha256::digest(config.as_bytes()).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

/// The events are exactly those of a run without deaths. A start that a death cut short begins
/// anew, and its process was stopped, which is one more event.
pub(super) fn events(told: &Told, deaths: usize) {
    let mut story = STORY.iter().peekable();
    let mut extra = 0;
    for event @ (kind, revision) in told {
        let expected = story.peek().copied();
        if expected.is_some_and(|it| it.0 == *kind && it.1 == revision) {
            story.next();
        } else if *kind == 6 && expected.is_some_and(|it| matches!(it.0, 4 | 9) && it.1 == revision)
        {
            extra += 1;
        } else {
            panic!("{event:?} was sent instead of {expected:?}: {told:?}");
        }
    }
    assert!(story.next().is_none(), "not every event was sent: {told:?}");
    assert!(extra <= deaths, "{extra} starts were cut short by {deaths} deaths: {told:?}");
}

/// No process was started that was not told: each ended by a stop, or was the bad one.
pub(super) fn starts(told: &Told, starts: &[(u32, String)]) {
    // The end of a process that is rolled back is part of the failure of its revision.
    for (revision, rolled_back) in [("1", 0), ("2", 1)] {
        let started = starts.iter().filter(|(_, of)| of == revision).count();
        let stopped = told.iter().filter(|(kind, of)| *kind == 6 && of == revision).count();
        assert_eq!(started, stopped + rolled_back, "revision {revision}: {starts:?} {told:?}");
    }
}

/// Nothing is recorded any more but history and facts.
pub(super) async fn store_is_empty(bed: &Bed) {
    let lock = StateLock::acquire(&bed.dir().join("state")).unwrap();
    let place = bed.dir().join("state").join(INSTANCE).join("store");
    let store = store::open(&lock, &place).await.unwrap().storage;
    for table in [Table::Plugins, Table::Inbox, Table::Outbox] {
        let left = store.load(table).await.unwrap();
        assert!(left.is_empty(), "records are left in {table:?}: {}", left.len());
    }
    assert!(store.quarantined().await.unwrap().is_empty(), "a record was set aside");
    store.close().await.unwrap();
}

// === impl Witness ===

impl Witness {
    pub(super) fn of(dir: &Path) -> Self {
        Self(dir.join("witness"))
    }

    /// A shell script that notes its start and which other processes of the plugin live, and then
    /// runs `then`.
    pub(super) fn script(&self, then: &str) -> String {
        let place = self.0.display();
        format!(
            "while read -r pid revision; do\n\
             if read -r _ _ state _ < \"/proc/$pid/stat\"; then\n\
             case \"$state\" in Z|X) ;; *) echo \"$pid $$\" >> '{place}.overlaps' ;; esac\n\
             fi\n\
             done < '{place}.starts' 2>/dev/null\n\
             echo \"$$ $GUEST_AGENT_REVISION\" >> '{place}.starts'\n\
             {then}"
        )
    }

    /// Who was started: pid and revision.
    pub(super) fn starts(&self) -> Vec<(u32, String)> {
        let text = std::fs::read_to_string(self.0.with_extension("starts")).unwrap_or_default();
        let parsed = text.lines().map(|line| {
            let (pid, revision) = line.split_once(' ').expect("two words");
            (pid.parse().expect("a pid"), revision.to_owned())
        });
        parsed.collect()
    }

    /// Never were there two processes of the plugin.
    pub(super) fn check_overlaps(&self) {
        let overlaps = std::fs::read_to_string(self.0.with_extension("overlaps"));
        assert!(overlaps.is_err(), "two processes at a time: {overlaps:?}");
    }
}

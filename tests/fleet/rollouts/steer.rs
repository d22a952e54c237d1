//! An operator who makes rollouts, and what is seen of them: by the program, as people do, and by the
//! records themselves where it has to be quick.

use std::fmt::Write as _;
use std::time::Duration;

use guest_fleet_core::rollout::State;
use guest_fleet_core::view::AssignmentRollout;
use guest_fleet_ledger::records::progress::{ProgressRecord, progress_key};
use guest_fleet_ledger::records::rollout::{RolloutRecord, rollout_key};
use guest_fleet_ledger::{Bucket, Ledger, Revision, records};
use guest_fleet_server::rollouts;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::orders::milliseconds;
use crate::control::Control;
use crate::fleet::Fleet;
use crate::say;
use crate::wishes::Archive;

/// The plugin, and the assignment that wants it everywhere.
pub(super) const PLUGIN: &str = "web";

/// What all agents have before the first rollout.
pub(super) const FORMER: &str = "1";

/// It crashes on machines that are broken for it.
pub(super) const BAD: &str = "2";

/// It works everywhere.
pub(super) const GOOD: &str = "3";

/// How often the records are looked at.
const LOOK: Duration = Duration::from_millis(30);

/// Longest time that anything takes which a rollout waits for.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

/// What is recorded of a rollout at one moment.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// When it was seen, in milliseconds since the Unix epoch.
    pub(super) at: u64,
    pub(super) revision: Revision,
    pub(super) found: AssignmentRollout,
    /// How far the controller told that it is.
    pub(super) progress: Option<ProgressRecord>,
}

/// The releases, and the former one for everybody.
pub(super) fn declarations(works: &Archive, crashes: &Archive) -> String {
    let mut text = String::new();
    for (revision, archive) in [(FORMER, works), (BAD, crashes), (GOOD, works)] {
        let Archive { url, sha256, entry_point } = archive;
        writeln!(
            text,
            "[[release]]\nplugin = \"{PLUGIN}\"\nrevision = \"{revision}\"\n\
             entry_point = \"{entry_point}\"\n\
             archives.any = {{ sha256 = \"{sha256}\", url = \"{url}\" }}"
        )
        .unwrap();
    }
    writeln!(
        text,
        "[[assignment]]\nname = \"{PLUGIN}\"\nplugin = \"{PLUGIN}\"\nrevision = \"{FORMER}\"\n\
         select = \"all\""
    )
    .unwrap();
    text
}

/// Declares it.
pub(super) async fn declare(control: &Control, declarations: &str) {
    let file = control.declarations();
    std::fs::write(&file, declarations).unwrap();
    let file = file.to_str().unwrap();
    control.ask(&["apply", "-f", file, "--at-once", "--reason", "a new fleet"]).await.unwrap();
}

/// What `rollout show` prints.
pub(super) async fn show(control: &Control, name: &str) -> Value {
    control.insist(&["rollout", "show", name], None).await
}

/// How many agents stand somewhere, as `rollout show` counts them.
pub(super) fn standing(shown: &Value, stands: &[&str]) -> u64 {
    let all = shown["progress"]["stands"].as_array().into_iter().flatten();
    let those = all.filter(|it| stands.iter().any(|stand| it["stand"] == *stand));
    those.map(|it| it["agents"].as_u64().unwrap()).sum()
}

/// The process that holds the controller's lease.
pub(super) async fn leader(ledger: &dyn Ledger) -> Option<u32> {
    rollouts::holder(ledger).await.ok().flatten().map(|holder| holder.pid)
}

/// The records of the rollout and of its progress; `None` where the ledger does not answer, or has no rollout.
async fn look(ledger: &dyn Ledger) -> Option<Look> {
    let (key, of_progress) = (rollout_key(PLUGIN), progress_key(PLUGIN));
    let record = ledger.get(Bucket::Configuration, &key).await.ok()??;
    let progress = ledger.get(Bucket::Index, &of_progress).await.ok()?;
    let found: RolloutRecord = records::decode(&key, &record.value).unwrap();
    let found = found.rollout(&key).unwrap();
    let progress: Option<ProgressRecord> =
        progress.map(|it| records::decode(&of_progress, &it.value).unwrap());
    let progress = progress.filter(|progress| progress.rollout == found.name);
    Some(Look { at: milliseconds(), revision: record.revision, found, progress })
}

/// Waits until a rollout is as it should be, and notes all that is seen until then.
pub(super) async fn until(
    fleet: &Fleet,
    seen: &mut Vec<Look>,
    what: &str,
    is_so: impl Fn(&Look) -> bool,
) -> Look {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(look) = look(&*fleet.ledger).await {
            note(seen, &look);
            if is_so(&look) {
                say(format_args!("{what}: {}", words(&look)));
                return look;
            }
            assert!(Instant::now() < deadline, "not {what}: {}", words(&look));
        }
        assert!(Instant::now() < deadline, "not {what}: the ledger does not answer");
        sleep(LOOK).await;
    }
}

fn note(seen: &mut Vec<Look>, look: &Look) {
    if seen.last().is_some_and(|last| last.revision >= look.revision) {
        return;
    }
    let is_told = seen.last().is_none_or(|last| {
        last.found.name != look.found.name
            || last.found.rollout.state.name() != look.found.rollout.state.name()
            || last.found.rollout.wave != look.found.rollout.wave
    });
    if is_told {
        say(words(look));
    }
    seen.push(look.clone());
}

fn words(look: &Look) -> String {
    let rollout = &look.found.rollout;
    let mut text =
        format!("{} is {}, wave {}", look.found.name, rollout.state.name(), rollout.wave + 1);
    if let State::Halted(cause) = &rollout.state {
        write!(text, ", {cause:?}").unwrap();
    }
    if let Some(it) = &look.progress {
        let (given, targets, in_flight, failed) = (it.given, it.targets, it.in_flight, it.failures);
        write!(text, "; {given} of {targets} given, {in_flight} in flight, {failed} failed")
            .unwrap();
    }
    text
}

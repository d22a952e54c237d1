//! The verdict about an order: by the status of its plugin, and by the recorded end of the order. Pure;
//! [`super::follow`] is the loop around it.

use guest_agent_proto::agent_controlplane::PluginType;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::local::{Hold, Installation, PluginStatus};

use super::awaited::{Awaited, FollowedOrder, Goal, REMOVED};
use super::format::one_line;
use super::waiting::Until;
use crate::display::values::{self, Named};

/// Why an order failed that brought another configuration than the plugin has.
const OTHER_CONFIGURATION: &str = "it does not have the new configuration";

/// Whether the agent was connected all the time since the status before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connected {
    Yes,
    No,
}

/// Whether a status is newer than the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Never,
    Before,
}

/// Judges an order by the current status of its plugin. `failure` is why the order failed, by the
/// recorded events; `None` where they do not say that it did, or were not asked.
pub(super) fn judge(
    awaited: &Awaited,
    status: Option<&PluginStatus>,
    seen: Seen,
    failure: Option<&str>,
) -> FollowedOrder {
    let Some(status) = status else {
        return match (&awaited.goal, seen) {
            (Goal::Removed, _) => FollowedOrder::Done(REMOVED.to_owned()),
            (_, Seen::Never) => FollowedOrder::Waiting,
            (_, Seen::Before) => FollowedOrder::Failed("it was removed meanwhile".to_owned()),
        };
    };
    if status.generation < awaited.generation {
        return FollowedOrder::Waiting;
    }
    let is_newest = status.generation == awaited.generation;
    if let Some(hold) = &status.hold
        && failure.is_none()
        && waits_under(hold, awaited, status)
    {
        return FollowedOrder::Held(one_line(&hold.by));
    }
    let state = values::state(status);
    if is_reached_at_once(&awaited.goal, status) {
        return FollowedOrder::Done(status.state.clone());
    }
    // A plugin that rests between two starts is busy: the agent starts it again by itself. The start
    // that was ordered has failed all the same, unless other files are on their way.
    let is_fetched = status.pending.as_ref().is_some_and(|pending| pending.error.is_empty());
    let is_start = matches!(awaited.goal, Goal::Working | Goal::Started);
    let has_given_up = is_start && state == StatusValue::Crashed && !is_fetched;
    if status.busy && !has_given_up {
        return FollowedOrder::Waiting;
    }
    let done = || FollowedOrder::Done(status.state.clone());
    let failed = |what: &str| {
        let why = failure.unwrap_or_else(|| reason(&awaited.goal, status));
        FollowedOrder::Failed(because(what, why))
    };
    let is = format!("it is {}", status.state);
    let replaced = || FollowedOrder::Failed("a newer order replaced it".to_owned());
    match &awaited.goal {
        Goal::Removed if values::installation(status) == Installation::Local => done(),
        Goal::Removed => failed("it is still there"),
        Goal::Stopped => failed(&is),
        // The revision that was left shows as failed.
        Goal::RolledBack if !status.rolled_back.is_empty() => match state {
            StatusValue::Running | StatusValue::Stopped => {
                let (state, revision) = (status.state.clone(), status.revision.clone());
                FollowedOrder::Returned { state, revision }
            }
            _ => failed(&is),
        },
        Goal::RolledBack => replaced(),
        Goal::Settled => done(),
        Goal::Installed { revision, .. } if status.revision != *revision => {
            if !is_newest {
                return replaced();
            }
            match status.revision.as_str() {
                "" => failed("nothing is installed"),
                other => failed(&format!("revision {other} is {} instead", status.state)),
            }
        }
        Goal::Installed { revision, config_hash, until } => {
            // A newer order for the revision may have failed, and this one not.
            let shows_failure = is_newest && failure_of(status, revision).is_some();
            let has_failed = shows_failure || failure.is_some();
            if !works(state) || has_failed {
                failed(&is)
            } else if state != StatusValue::Running {
                // It has no trial before it runs.
                done()
            } else if is_newest && status.config_hash != *config_hash {
                failed(OTHER_CONFIGURATION)
            } else if status.on_trial && *until == Until::Proven {
                FollowedOrder::Waiting
            } else {
                done()
            }
        }
        Goal::Configured { config_hash } if status.config_hash != *config_hash => {
            if is_newest {
                failed(OTHER_CONFIGURATION)
            } else {
                replaced()
            }
        }
        Goal::Configured { .. } if failure.is_some() => failed(&is),
        // A start is no run.
        Goal::Started if state == StatusValue::ExecutionFailed => done(),
        // The failure of a revision that is not there is not one of this order.
        Goal::Configured { .. } | Goal::Working | Goal::Started if works(state) => done(),
        Goal::Configured { .. } | Goal::Working | Goal::Started => failed(&is),
    }
}

/// Whether a plugin in this state does what it was ordered to do.
const fn works(state: StatusValue) -> bool {
    match state {
        StatusValue::Running | StatusValue::ExecutionCompleted => true,
        // Installed as ordered, and waiting for its trigger, or until its rules allow it to run. No
        // other plugin stays in this state.
        StatusValue::Stopped => true,
        StatusValue::Installing
        | StatusValue::InstallFailed
        | StatusValue::Starting
        | StatusValue::Stopping
        | StatusValue::Crashed
        | StatusValue::ExecutionFailed
        | StatusValue::StateValueUnspecified => false,
    }
}

/// Whether the order waits for the end of this hold.
fn waits_under(hold: &Hold, awaited: &Awaited, status: &PluginStatus) -> bool {
    let is_own = match awaited.goal {
        Goal::Installed { .. } | Goal::Configured { .. } | Goal::Removed => {
            status.generation == awaited.generation
        }
        // The first INSTALL of the plugin waits, so a start finds no files.
        Goal::Working | Goal::Started => {
            !status.busy && values::state(status) == StatusValue::Installing
        }
        Goal::Stopped | Goal::RolledBack | Goal::Settled => false,
    };
    is_own && !hold.waits.is_empty()
}

/// Whether the goal is reached, whatever the plugin is still busy with: the download of the next
/// revision neither keeps a process alive nor keeps it from its start.
fn is_reached_at_once(goal: &Goal, status: &PluginStatus) -> bool {
    let state = values::state(status);
    match goal {
        Goal::Stopped => {
            status.pid.is_none() && !matches!(state, StatusValue::Stopping | StatusValue::Starting)
        }
        // An agent that was restarted shows no address before it has found the process again. A run
        // of a one-shot plugin is over when the plugin is no longer busy.
        Goal::Working | Goal::Started => {
            state == StatusValue::Running
                && values::kind(status) == PluginType::Daemon
                && !status.address.is_empty()
        }
        Goal::Installed { .. }
        | Goal::Configured { .. }
        | Goal::Removed
        | Goal::RolledBack
        | Goal::Settled => false,
    }
}

/// Why this very revision failed last; `None` where it did not. The words of a revision that waits
/// under a hold are no failure.
fn failure_of<'a>(status: &'a PluginStatus, revision: &str) -> Option<&'a str> {
    let pending = status.pending.as_ref().filter(|pending| pending.revision == revision)?;
    let state = pending.state_value().or_named(&pending.state);
    values::has_failed(state).then_some(&pending.error)
}

/// The cause of the failure of an order with this goal, by the status alone; nothing of the failure
/// of another revision.
pub(super) fn reason<'a>(goal: &Goal, status: &'a PluginStatus) -> &'a str {
    let Goal::Installed { revision, .. } = goal else { return &status.reason };
    match failure_of(status, revision) {
        Some(failure) => failure,
        None if status.revision == *revision || status.revision.is_empty() => &status.reason,
        None => "",
    }
}

pub(super) fn because(what: &str, why: &str) -> String {
    if why.is_empty() { what.to_owned() } else { format!("{what}: {}", one_line(why)) }
}

/// The verdict about an order that was judged like this, with its end by the recorded events.
pub(super) fn confirmed(
    awaited: &Awaited,
    status: Option<&PluginStatus>,
    judged: FollowedOrder,
    end: FollowedOrder,
    was: Connected,
) -> FollowedOrder {
    let is_newest = status.is_some_and(|status| status.generation == awaited.generation);
    match (end, was) {
        (FollowedOrder::Failed(why), _) if is_newest => {
            judge(awaited, status, Seen::Before, Some(&why))
        }
        // The status is that of a newer order.
        (end @ FollowedOrder::Failed(_), _) | (end, Connected::No) if !is_newest => end,
        // A status that was seen later says more than the first end of the order.
        (_done, _) => judged,
    }
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::local::Pending;

    use super::*;

    fn awaited(goal: Goal) -> Awaited {
        Awaited { name: "a".to_owned(), goal, generation: 5, after: None }
    }

    fn installed() -> Awaited {
        until(Until::Proven)
    }

    fn until(until: Until) -> Awaited {
        let (revision, config_hash) = ("2".to_owned(), String::new());
        awaited(Goal::Installed { revision, config_hash, until })
    }

    fn with_failure(mut status: PluginStatus, revision: &str, error: &str) -> PluginStatus {
        status.pending = Some(Pending {
            revision: revision.to_owned(),
            state: "INSTALL_FAILED".to_owned(),
            error: error.to_owned(),
            ..Pending::default()
        });
        status
    }

    fn status(revision: &str, state: &str, generation: u64) -> PluginStatus {
        PluginStatus {
            name: "a".to_owned(),
            revision: revision.to_owned(),
            state: state.to_owned(),
            kind: "daemon".to_owned(),
            installation: "dynamic".to_owned(),
            state_value: StatusValue::named(state).expect("a state").into(),
            installation_value: Installation::Dynamic.into(),
            generation,
            ..PluginStatus::default()
        }
    }

    #[track_caller]
    fn check(order: &Awaited, status: &PluginStatus, expected: &FollowedOrder) {
        assert_eq!(judge(order, Some(status), Seen::Before, None), *expected);
    }

    fn done(state: &str) -> FollowedOrder {
        FollowedOrder::Done(state.to_owned())
    }

    fn failed(why: &str) -> FollowedOrder {
        FollowedOrder::Failed(why.to_owned())
    }

    #[test]
    fn an_installation_is_done_when_the_asked_revision_runs() {
        check(&installed(), &status("2", "RUNNING", 5), &done("RUNNING"));
        check(&installed(), &status("2", "EXECUTION_COMPLETED", 6), &done("EXECUTION_COMPLETED"));
        let mut one_shot = status("2", "STOPPED", 5);
        one_shot.kind = "one_shot".to_owned();
        check(&installed(), &one_shot, &done("STOPPED"));
    }

    #[test]
    fn an_agent_of_an_older_version_sends_names_alone() {
        let older = |state: &str| PluginStatus {
            state_value: 0,
            installation_value: 0,
            ..status("2", state, 5)
        };
        check(&installed(), &older("RUNNING"), &done("RUNNING"));
        check(&installed(), &older("CRASHED"), &failed("it is CRASHED"));
        let order = awaited(Goal::Removed);
        let local = PluginStatus { installation: "local".to_owned(), ..older("RUNNING") };
        check(&order, &local, &done("RUNNING"));
        check(&order, &older("RUNNING"), &failed("it is still there"));
    }

    #[test]
    fn an_older_order_or_work_under_way_says_nothing() {
        check(&installed(), &status("2", "RUNNING", 4), &FollowedOrder::Waiting);
        let mut busy = status("1", "RUNNING", 5);
        busy.busy = true;
        check(&installed(), &busy, &FollowedOrder::Waiting);
    }

    #[test]
    fn a_failed_installation_says_why() {
        let mut crashed = status("2", "CRASHED", 5);
        crashed.reason = "exited\nwith code 3".to_owned();
        check(&installed(), &crashed, &failed("it is CRASHED: exited with code 3"));
        check(&installed(), &status("", "INSTALL_FAILED", 5), &failed("nothing is installed"));
    }

    #[test]
    fn an_upgrade_that_was_taken_back_is_a_failure() {
        let old = with_failure(status("1", "RUNNING", 5), "2", "it crashed");
        check(&installed(), &old, &failed("revision 1 is RUNNING instead: it crashed"));
    }

    #[test]
    fn only_a_failure_of_the_ordered_revision_spoils_an_installation() {
        let plugin = status("2", "RUNNING", 5);
        let own = with_failure(plugin.clone(), "2", "refused");
        check(&installed(), &own, &failed("it is RUNNING: refused"));
        let other = with_failure(plugin, "3", "an older order failed");
        check(&installed(), &other, &done("RUNNING"));
        let taken_back = with_failure(status("1", "RUNNING", 5), "3", "an older order failed");
        check(&installed(), &taken_back, &failed("revision 1 is RUNNING instead"));
    }

    #[test]
    fn a_newer_order_for_the_revision_that_waits_or_failed_spoils_nothing() {
        let mut waits = with_failure(status("2", "RUNNING", 6), "2", "held: root: freeze");
        check(&installed(), &waits, &done("RUNNING"));
        if let Some(pending) = &mut waits.pending {
            pending.state = "INSTALLING".to_owned();
        }
        check(&installed(), &waits, &done("RUNNING"));
        let newest = PluginStatus { generation: 5, ..waits };
        check(&installed(), &newest, &done("RUNNING"));
        let down = PluginStatus { state_value: 0, state: "CRASHED".to_owned(), ..newest };
        check(&installed(), &down, &failed("it is CRASHED"));
    }

    #[test]
    fn a_download_of_the_next_revision_keeps_neither_a_stop_nor_a_start_waiting() {
        let busy = |state: &str| {
            let plugin = with_failure(status("1", state, 5), "2", "");
            PluginStatus { busy: true, address: "unix:/x".to_owned(), ..plugin }
        };
        let alive = PluginStatus { pid: Some(7), ..busy("RUNNING") };
        let stop = awaited(Goal::Stopped);
        check(&stop, &busy("STOPPED"), &done("STOPPED"));
        check(&stop, &busy("INSTALLING"), &done("INSTALLING"));
        for under_way in [busy("STOPPING"), busy("STARTING"), alive.clone()] {
            check(&stop, &under_way, &FollowedOrder::Waiting);
        }
        for goal in [Goal::Working, Goal::Started] {
            let start = awaited(goal);
            check(&start, &alive, &done("RUNNING"));
            let older = PluginStatus { generation: 4, ..alive.clone() };
            check(&start, &older, &FollowedOrder::Waiting);
            let unproven = PluginStatus { address: String::new(), ..alive.clone() };
            check(&start, &unproven, &FollowedOrder::Waiting);
            let kind = "one_shot".to_owned();
            let run = PluginStatus { kind, ..alive.clone() };
            check(&start, &run, &FollowedOrder::Waiting);
        }
    }

    #[test]
    fn a_plugin_that_runs_works_whatever_failed_before() {
        let plugin = with_failure(status("2", "RUNNING", 5), "3", "not found");
        check(&awaited(Goal::Working), &plugin, &done("RUNNING"));
        check(&awaited(Goal::Started), &plugin, &done("RUNNING"));
        let order = awaited(Goal::Configured { config_hash: String::new() });
        check(&order, &plugin, &done("RUNNING"));
        let mut down = with_failure(status("2", "CRASHED", 5), "3", "not found");
        down.reason = "exited with code 3".to_owned();
        check(&awaited(Goal::Working), &down, &failed("it is CRASHED: exited with code 3"));
        check(&order, &down, &failed("it is CRASHED: exited with code 3"));
    }

    #[test]
    fn the_last_run_of_a_one_shot_plugin_says_nothing_of_its_start() {
        let mut one_shot = status("2", "EXECUTION_FAILED", 5);
        one_shot.reason = "exited with code 3".to_owned();
        check(&awaited(Goal::Started), &one_shot, &done("EXECUTION_FAILED"));
        let failed = failed("it is EXECUTION_FAILED: exited with code 3");
        check(&awaited(Goal::Working), &one_shot, &failed);
    }

    #[test]
    fn a_start_has_failed_when_the_plugin_rests_between_two_starts() {
        let mut resting = PluginStatus { busy: true, ..status("2", "CRASHED", 5) };
        resting.reason = "exited with code 3".to_owned();
        check(&awaited(Goal::Working), &resting, &failed("it is CRASHED: exited with code 3"));
        let fetched = with_failure(resting.clone(), "3", "");
        check(&awaited(Goal::Working), &fetched, &FollowedOrder::Waiting);
        // The next start takes it.
        let order = awaited(Goal::Configured { config_hash: String::new() });
        check(&order, &resting, &FollowedOrder::Waiting);
    }

    #[test]
    fn an_installation_is_done_when_its_trial_is_over() {
        let on_trial = PluginStatus { on_trial: true, ..status("2", "RUNNING", 5) };
        check(&until(Until::Proven), &on_trial, &FollowedOrder::Waiting);
        check(&until(Until::Running), &on_trial, &done("RUNNING"));
        check(&until(Until::Proven), &status("2", "RUNNING", 5), &done("RUNNING"));
        let disabled = PluginStatus { on_trial: true, ..status("2", "STOPPED", 5) };
        check(&until(Until::Proven), &disabled, &done("STOPPED"));
    }

    #[test]
    fn a_configuration_that_the_plugin_refused_fails_its_installation() {
        let other = |generation| PluginStatus {
            config_hash: "ab".to_owned(),
            ..status("2", "RUNNING", generation)
        };
        check(&installed(), &other(5), &failed(OTHER_CONFIGURATION));
        // A newer order brought it.
        check(&installed(), &other(6), &done("RUNNING"));
    }

    #[test]
    fn the_events_say_why_an_order_failed_of_which_the_status_says_nothing() {
        let end = |order: &Awaited, status: &PluginStatus, end: FollowedOrder, was| {
            let judged = judge(order, Some(status), Seen::Before, None);
            confirmed(order, Some(status), judged, end, was)
        };
        let rolled_back = with_failure(status("1", "RUNNING", 5), "3", "not found");
        let why = "revision 2 was rolled back by root";
        let expected = failed("revision 1 is RUNNING instead: revision 2 was rolled back by root");
        assert_eq!(end(&installed(), &rolled_back, failed(why), Connected::Yes), expected);
        // Nothing but the events says that an archive was refused.
        let runs = status("2", "RUNNING", 5);
        let expected = failed("it is RUNNING: another checksum");
        assert_eq!(end(&installed(), &runs, failed("another checksum"), Connected::Yes), expected);
        assert_eq!(end(&installed(), &runs, done("INSTALLED"), Connected::Yes), done("RUNNING"));
        // The plugin may refuse the configuration that it has.
        let order = awaited(Goal::Configured { config_hash: String::new() });
        let expected = failed("it is RUNNING: told to refuse");
        assert_eq!(end(&order, &runs, failed("told to refuse"), Connected::Yes), expected);
        // Another order waits for the end of the hold.
        let hold = guest_agent_proto::local::Hold {
            by: "root".to_owned(),
            waits: "an APPLY".to_owned(),
            ..Default::default()
        };
        let held = PluginStatus { hold: Some(hold), ..rolled_back };
        let expected = failed("revision 1 is RUNNING instead: revision 2 was rolled back by root");
        assert_eq!(end(&installed(), &held, failed(why), Connected::Yes), expected);
        // A newer order came.
        let newer = status("3", "RUNNING", 6);
        assert_eq!(end(&installed(), &newer, failed(why), Connected::Yes), failed(why));
        let replaced = failed("a newer order replaced it");
        assert_eq!(end(&installed(), &newer, done("before"), Connected::Yes), replaced);
        assert_eq!(end(&installed(), &newer, done("before"), Connected::No), done("before"));
    }

    #[test]
    fn a_newer_order_ends_the_wait() {
        check(&installed(), &status("3", "RUNNING", 6), &failed("a newer order replaced it"));
    }

    #[test]
    fn an_order_that_a_hold_makes_wait_is_said_to_be_held() {
        let hold = guest_agent_proto::local::Hold {
            by: "root: freeze".to_owned(),
            waits: "an INSTALL of revision 2".to_owned(),
            ..Default::default()
        };
        let held = PluginStatus { hold: Some(hold.clone()), ..status("1", "RUNNING", 5) };
        check(&installed(), &held, &FollowedOrder::Held("root: freeze".to_owned()));
        let busy = PluginStatus { busy: true, ..held.clone() };
        for goal in [Goal::Removed, Goal::Configured { config_hash: "ab".to_owned() }] {
            let order = awaited(goal);
            check(&order, &busy, &FollowedOrder::Held("root: freeze".to_owned()));
        }
        // A start of a plugin that is there does not wait.
        check(&awaited(Goal::Working), &held, &done("RUNNING"));
        let first = PluginStatus {
            generation: 6,
            ..PluginStatus { hold: Some(hold.clone()), ..status("2", "INSTALLING", 5) }
        };
        for goal in [Goal::Working, Goal::Started] {
            check(&awaited(goal), &first, &FollowedOrder::Held("root: freeze".to_owned()));
        }
        check(&awaited(Goal::Stopped), &first, &done("INSTALLING"));
        let again = PluginStatus { busy: true, ..first };
        check(&awaited(Goal::Working), &again, &FollowedOrder::Waiting);
        // It is not this order that waits.
        let newer = PluginStatus { generation: 6, ..held.clone() };
        check(&installed(), &newer, &failed("a newer order replaced it"));
        let nothing = guest_agent_proto::local::Hold { waits: String::new(), ..hold };
        let free = PluginStatus { hold: Some(nothing), ..status("2", "RUNNING", 5) };
        check(&installed(), &free, &done("RUNNING"));
    }

    #[test]
    fn a_configuration_was_taken_when_its_digest_is_reported() {
        let order = awaited(Goal::Configured { config_hash: "ab".to_owned() });
        let with = |hash: &str, state: &str, generation| PluginStatus {
            config_hash: hash.to_owned(),
            ..status("2", state, generation)
        };
        check(&order, &with("ab", "RUNNING", 4), &FollowedOrder::Waiting);
        check(&order, &with("ab", "RUNNING", 5), &done("RUNNING"));
        check(&order, &with("", "RUNNING", 5), &failed("it does not have the new configuration"));
        check(&order, &with("cd", "RUNNING", 6), &failed("a newer order replaced it"));
        check(&order, &with("ab", "CRASHED", 5), &failed("it is CRASHED"));
    }

    #[test]
    fn a_plugin_that_vanishes_was_removed_but_one_not_yet_listed_is_waited_for() {
        assert_eq!(judge(&installed(), None, Seen::Never, None), FollowedOrder::Waiting);
        assert_eq!(
            judge(&installed(), None, Seen::Before, None),
            failed("it was removed meanwhile")
        );
    }

    #[test]
    fn a_removal_is_done_when_the_plugin_is_gone_or_local_again() {
        let order = awaited(Goal::Removed);
        assert_eq!(judge(&order, None, Seen::Never, None), done("REMOVED"));
        check(&order, &status("2", "STOPPING", 4), &FollowedOrder::Waiting);
        let mut local = status("0", "RUNNING", 5);
        local.installation = "local".to_owned();
        local.set_installation_value(Installation::Local);
        check(&order, &local, &done("RUNNING"));
        check(&order, &status("2", "STOPPED", 5), &failed("it is still there"));
    }
}

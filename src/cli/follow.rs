//! The outcome of an order: follows the status until every awaited plugin has settled.
//!
//! [`judge`] is the whole decision and is pure; [`follow`] is the loop around it. Used by every
//! verb with `--wait`.
//!
//! The agent may be restarted or upgraded meanwhile: the order is durable, so the wait goes on with
//! the agent that comes back. What a status cannot say any more by then, because a newer order
//! changed the plugin or it is gone, is in the recorded events ([`super::ends`]).

use std::collections::BTreeSet;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::local::{GetStatusRequest, Installation, PluginStatus};

pub(super) use super::awaited::{Awaited, FollowedOrder, Goal, HeldBy, REMOVED};
use super::client::Client;
use super::comeback::Comeback;
use super::ends;
use super::failure::{Exit, Failure};
use super::format::one_line;
use super::progress::Progress;
use crate::display::{self, values};

const KEPT: &str = "the order is kept; `guest-agent status` shows its result";

/// The failure of a verb that waited for an order which a hold or a closed window makes wait.
pub(super) fn held(name: &str, by: &HeldBy) -> Failure {
    match by {
        HeldBy::Person(by) => {
            Failure::new(Exit::TimedOut, format_args!("{name} is held by {by}, so the order waits"))
                .hint(format!("it is carried out after `guest-agent release {name}`"))
        }
        HeldBy::Window(opens) => {
            let why = "is outside of its maintenance windows, so the order waits";
            Failure::new(Exit::TimedOut, format_args!("{name} {why}")).hint(format!(
                "{opens}; `[[maintenance.window]]` of the configuration has the windows"
            ))
        }
    }
}

/// Whether a status is newer than the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Never,
    Before,
}

/// Judges an order by the current status of its plugin.
pub(super) fn judge(awaited: &Awaited, status: Option<&PluginStatus>, seen: Seen) -> FollowedOrder {
    let Some(status) = status else {
        return match (&awaited.goal, seen) {
            (Goal::Removed, _) => FollowedOrder::Done(REMOVED.to_owned()),
            (_, Seen::Never) => FollowedOrder::Waiting,
            (_, Seen::Before) => FollowedOrder::Failed("it was removed meanwhile".to_owned()),
        };
    };
    if status.generation < awaited.generation || status.busy {
        return FollowedOrder::Waiting;
    }
    if let Some(hold) = &status.hold
        && status.generation == awaited.generation
        && !hold.waits.is_empty()
        && awaited.goal.waits_under_a_hold()
    {
        return FollowedOrder::Held(HeldBy::Person(one_line(&hold.by)));
    }
    if let Some(outside) = &status.outside_window
        && status.generation == awaited.generation
        && !outside.waits.is_empty()
        && awaited.goal.waits_under_a_hold()
    {
        return FollowedOrder::Held(HeldBy::Window(display::opens(outside)));
    }
    match &awaited.goal {
        Goal::Removed if values::installation(status) == Installation::Local => {
            FollowedOrder::Done(status.state.clone())
        }
        Goal::Removed => FollowedOrder::Failed(explain(status, "it is still there")),
        Goal::Stopped if status.pid.is_none() => FollowedOrder::Done(status.state.clone()),
        Goal::Stopped => FollowedOrder::Failed(explain(status, &format!("it is {}", status.state))),
        // The revision that was left shows as failed.
        Goal::RolledBack if !status.rolled_back.is_empty() => match values::state(status) {
            StatusValue::Running | StatusValue::Stopped => {
                let (state, revision) = (status.state.clone(), status.revision.clone());
                FollowedOrder::Returned { state, revision }
            }
            _ => FollowedOrder::Failed(explain(status, &format!("it is {}", status.state))),
        },
        Goal::RolledBack => FollowedOrder::Failed("a newer order replaced it".to_owned()),
        Goal::Settled => FollowedOrder::Done(status.state.clone()),
        Goal::Installed { revision } if status.revision != *revision => {
            if status.generation > awaited.generation {
                FollowedOrder::Failed("a newer order replaced it".to_owned())
            } else {
                let runs = match status.revision.as_str() {
                    "" => "nothing is installed".to_owned(),
                    other => format!("revision {other} is {} instead", status.state),
                };
                FollowedOrder::Failed(explain(status, &runs))
            }
        }
        Goal::Configured { config_hash } if status.config_hash != *config_hash => {
            if status.generation > awaited.generation {
                FollowedOrder::Failed("a newer order replaced it".to_owned())
            } else {
                FollowedOrder::Failed("it does not have the new configuration".to_owned())
            }
        }
        // An upgrade that failed earlier does not belong to this order.
        Goal::Configured { .. } if values::state(status) == StatusValue::Running => {
            FollowedOrder::Done(status.state.clone())
        }
        Goal::Installed { .. } | Goal::Working | Goal::Configured { .. } => works(status),
    }
}

fn works(status: &PluginStatus) -> FollowedOrder {
    let pending_failed = status.pending.as_ref().is_some_and(|pending| !pending.error.is_empty());
    let works = match values::state(status) {
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
    };
    if works && !pending_failed {
        FollowedOrder::Done(status.state.clone())
    } else {
        FollowedOrder::Failed(explain(status, &format!("it is {}", status.state)))
    }
}

fn explain(status: &PluginStatus, fallback: &str) -> String {
    let pending = status.pending.as_ref().map_or("", |pending| &pending.error);
    let why = if pending.is_empty() { &status.reason } else { pending };
    if why.is_empty() { fallback.to_owned() } else { format!("{fallback}: {}", one_line(why)) }
}

/// Follows the status until every order has settled or the time is up, over restarts of the agent.
/// The verdicts are in the order of `awaited`; an order that has none when the time is up is
/// [`FollowedOrder::Late`].
///
/// # Errors
/// The agent refused to say, or was away when the time was up.
pub(super) async fn follow(
    client: &mut Client,
    awaited: &[Awaited],
    timeout: Duration,
    progress: &mut Progress,
) -> Result<Vec<FollowedOrder>, Failure> {
    let mut watch = Watch {
        awaited,
        verdicts: vec![FollowedOrder::Waiting; awaited.len()],
        last: vec![String::new(); awaited.len()],
        seen: BTreeSet::new(),
        comeback: Comeback::new(),
    };
    let waited = tokio::time::timeout(timeout, watch.until_settled(client, progress)).await;
    match waited {
        Ok(result) => result?,
        Err(_elapsed) => {
            if let Some(away) = watch.comeback.away_after(timeout) {
                return Err(away.hint(KEPT));
            }
            for (verdict, last) in watch.verdicts.iter_mut().zip(&watch.last) {
                if *verdict == FollowedOrder::Waiting {
                    let state = Some(last.as_str()).filter(|text| !text.is_empty());
                    let state = state.unwrap_or("the agent does not list it").to_owned();
                    *verdict = FollowedOrder::Late(state);
                }
            }
        }
    }
    Ok(watch.verdicts)
}

/// The failure of a wait whose time was up.
pub(super) fn late(timeout: Duration) -> Failure {
    let waited = crate::config::format_duration(timeout);
    Failure::new(Exit::TimedOut, format_args!("not done after {waited}"))
        .hint("the order is kept; see `guest-agent status`, or wait longer with --timeout")
}

/// What is known of orders while they are waited for.
struct Watch<'a> {
    awaited: &'a [Awaited],
    verdicts: Vec<FollowedOrder>,
    /// The last state of each plugin, in words.
    last: Vec<String>,
    /// The orders whose plugins the agent has listed.
    seen: BTreeSet<usize>,
    comeback: Comeback,
}

// === impl Watch ===

impl Watch<'_> {
    async fn until_settled(
        &mut self,
        client: &mut Client,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let mut is_first = true;
        loop {
            match self.connected(client, progress, is_first).await {
                Ok(()) => return Ok(()),
                Err(failure) => self.comeback.pause(failure, progress).await?,
            }
            is_first = false;
        }
    }

    /// Watches while one agent answers.
    async fn connected(
        &mut self,
        client: &mut Client,
        progress: &mut Progress,
        is_first: bool,
    ) -> Result<(), Failure> {
        let mut changes = client.watch_status(GetStatusRequest::default()).await?.into_inner();
        let mut is_back = !is_first;
        while let Some(status) = changes.message().await? {
            self.comeback.is_here();
            self.judge(&status.plugins, progress);
            if std::mem::take(&mut is_back) {
                self.ask_for_ends(client, &status.plugins).await?;
            }
            if !self.verdicts.contains(&FollowedOrder::Waiting) {
                return Ok(());
            }
        }
        Err(Failure::new(Exit::Unreachable, "the agent ended while it was waited for"))
    }

    fn judge(&mut self, plugins: &[PluginStatus], progress: &mut Progress) {
        for (index, order) in self.awaited.iter().enumerate() {
            let plugin = of(plugins, order);
            if let Some(plugin) = plugin {
                progress.show(plugin);
                self.last[index] = explain(plugin, &format!("it is {}", plugin.state));
            }
            let before = if self.seen.contains(&index) { Seen::Before } else { Seen::Never };
            if self.verdicts[index] == FollowedOrder::Waiting {
                self.verdicts[index] = judge(order, plugin, before);
            }
            if plugin.is_some() {
                self.seen.insert(index);
            }
        }
    }

    /// After nobody was connected: looks for the end of each order whose plugin says nothing of it
    /// any more.
    async fn ask_for_ends(
        &mut self,
        client: &mut Client,
        plugins: &[PluginStatus],
    ) -> Result<(), Failure> {
        for (index, order) in self.awaited.iter().enumerate() {
            let plugin = of(plugins, order);
            if plugin.is_some_and(|plugin| plugin.generation <= order.generation) {
                continue;
            }
            let events = ends::events_of(client, &order.name).await?;
            if let Some(ended) = ends::end_of(&order.goal, &events, plugin) {
                self.verdicts[index] = ended;
            }
        }
        Ok(())
    }
}

fn of<'a>(plugins: &'a [PluginStatus], order: &Awaited) -> Option<&'a PluginStatus> {
    plugins.iter().find(|plugin| plugin.name == order.name)
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::local::Pending;

    use super::*;
    use crate::display::values::Named;

    fn awaited(goal: Goal) -> Awaited {
        Awaited { name: "a".to_owned(), goal, generation: 5 }
    }

    fn installed() -> Awaited {
        awaited(Goal::Installed { revision: "2".to_owned() })
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
        assert_eq!(judge(order, Some(status), Seen::Before), *expected);
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
        let mut old = status("1", "RUNNING", 5);
        old.pending = Some(Pending {
            revision: "2".to_owned(),
            state: "CRASHED".to_owned(),
            error: "it crashed".to_owned(),
            ..Pending::default()
        });
        check(&installed(), &old, &failed("revision 1 is RUNNING instead: it crashed"));
    }

    #[test]
    fn a_pending_error_spoils_a_running_plugin() {
        let mut plugin = status("2", "RUNNING", 5);
        plugin.pending = Some(Pending { error: "refused".to_owned(), ..Pending::default() });
        check(&installed(), &plugin, &failed("it is RUNNING: refused"));
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
        check(&installed(), &held, &FollowedOrder::Held(HeldBy::Person("root: freeze".to_owned())));
        // What a person asks does not wait.
        check(&awaited(Goal::Working), &held, &done("RUNNING"));
        // It is not this order that waits.
        let newer = PluginStatus { generation: 6, ..held.clone() };
        check(&installed(), &newer, &failed("a newer order replaced it"));
        let nothing = guest_agent_proto::local::Hold { waits: String::new(), ..hold };
        let free = PluginStatus { hold: Some(nothing), ..status("2", "RUNNING", 5) };
        check(&installed(), &free, &done("RUNNING"));
    }

    #[test]
    fn an_order_that_waits_for_a_window_says_when_that_opens() {
        let outside = guest_agent_proto::local::OutsideWindow {
            opens: Some(prost_types::Timestamp { seconds: 1_767_488_400, nanos: 0 }),
            waits: "an INSTALL of revision 2".to_owned(),
        };
        let held = PluginStatus { outside_window: Some(outside), ..status("1", "RUNNING", 5) };
        let opens = "the next window opens at 2026-01-04T01:00:00Z".to_owned();
        check(&installed(), &held, &FollowedOrder::Held(HeldBy::Window(opens)));
        check(&awaited(Goal::Working), &held, &done("RUNNING"));
        let nothing = guest_agent_proto::local::OutsideWindow::default();
        let free = PluginStatus { outside_window: Some(nothing), ..status("2", "RUNNING", 5) };
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
        assert_eq!(judge(&installed(), None, Seen::Never), FollowedOrder::Waiting);
        assert_eq!(judge(&installed(), None, Seen::Before), failed("it was removed meanwhile"));
    }

    #[test]
    fn a_removal_is_done_when_the_plugin_is_gone_or_local_again() {
        let order = awaited(Goal::Removed);
        assert_eq!(judge(&order, None, Seen::Never), done("REMOVED"));
        check(&order, &status("2", "STOPPING", 4), &FollowedOrder::Waiting);
        let mut local = status("0", "RUNNING", 5);
        local.installation = "local".to_owned();
        local.set_installation_value(Installation::Local);
        check(&order, &local, &done("RUNNING"));
        check(&order, &status("2", "STOPPED", 5), &failed("it is still there"));
    }
}

//! The verdict about a plugin, in the words that the command line and the console share.

use guest_agent_actors::model::verdict::Cause;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::local::{PluginStatus, VerdictLevel};
use jiff::Timestamp;

use super::{Tone, age, note, one_line, state_tone, timestamp, values};

/// How much attention a plugin needs. An agent of before verdicts does not say.
pub(crate) fn level(plugin: &PluginStatus) -> VerdictLevel {
    values::level(plugin)
}

/// The tone of a plugin: that of its verdict where it needs attention, else that of its state.
pub(crate) fn plugin_tone(plugin: &PluginStatus) -> Tone {
    match level(plugin) {
        VerdictLevel::Failing => Tone::Bad,
        VerdictLevel::Degraded => Tone::Busy,
        VerdictLevel::Held | VerdictLevel::Busy | VerdictLevel::Ok | VerdictLevel::Unspecified => {
            state_tone(values::state(plugin))
        }
    }
}

/// Whether this is no plugin but a folder on the machine whose manifest is refused. Nothing can be
/// asked of it.
pub(crate) fn is_only_refused(plugin: &PluginStatus) -> bool {
    values::state(plugin) == StatusValue::InstallFailed
        && plugin.verdict.as_ref().is_some_and(|it| it.cause == Cause::ManifestRefused.name())
}

/// Whether a person stopped a plugin, so that it stays so until a person starts it.
pub(crate) fn is_stopped(plugin: &PluginStatus) -> bool {
    plugin.verdict.as_ref().is_some_and(|it| it.cause == Cause::Stopped.name())
}

/// Whether a release would change something: the plugin is held, or a revision of it stays away.
pub(crate) fn is_releasable(plugin: &PluginStatus) -> bool {
    plugin.hold.is_some() || !plugin.rolled_back.is_empty()
}

/// Whether the verdict is that a revision failed, which a person may dismiss.
pub(crate) fn is_dismissible(plugin: &PluginStatus) -> bool {
    plugin.verdict.as_ref().is_some_and(|it| it.cause == Cause::RevisionFailed.name())
}

/// Whether somebody has to look at a plugin.
pub(crate) fn needs_attention(plugin: &PluginStatus) -> bool {
    matches!(level(plugin), VerdictLevel::Failing | VerdictLevel::Degraded)
}

/// The order in which plugins need attention, the first first.
pub(crate) fn urgency(plugin: &PluginStatus) -> i32 {
    match level(plugin) {
        VerdictLevel::Unspecified => VerdictLevel::Ok.into(),
        level => level.into(),
    }
}

/// The verdict as a sentence, with how long it has been so and when the next step comes; empty
/// where there is nothing to say.
pub(crate) fn sentence(plugin: &PluginStatus, now: Timestamp) -> String {
    let Some(verdict) = &plugin.verdict else { return String::new() };
    let reason = one_line(&verdict.reason);
    if reason.is_empty() {
        return reason;
    }
    let since = timestamp(verdict.since.as_ref()).map(|since| format!("for {}", age(since, now)));
    let next = timestamp(verdict.until.as_ref()).filter(|until| *until > now);
    let next = next.map(|until| format!("next start in {}", age(now, until)));
    let times = [since, next].into_iter().flatten().collect::<Vec<_>>().join(", ");
    if times.is_empty() { reason } else { format!("{reason} ({times})") }
}

/// The remark beside a plugin in a list: its verdict where that is more than "ok", else the most
/// important fact about it.
pub(crate) fn remark(plugin: &PluginStatus, now: Timestamp) -> String {
    match level(plugin) {
        level @ (VerdictLevel::Failing | VerdictLevel::Degraded | VerdictLevel::Held) => {
            format!("{}: {}", values::Named::name(level), sentence(plugin, now))
        }
        VerdictLevel::Ok if is_over(plugin) => sentence(plugin, now),
        VerdictLevel::Busy | VerdictLevel::Ok | VerdictLevel::Unspecified => note(plugin),
    }
}

/// Whether its verdict is about a trouble that is over, or that a person dismissed.
fn is_over(plugin: &PluginStatus) -> bool {
    let causes = [Cause::Recovered, Cause::Dismissed];
    let verdict = plugin.verdict.as_ref();
    verdict.is_some_and(|verdict| causes.iter().any(|cause| verdict.cause == cause.name()))
}

/// How many plugins need attention, as a line; `None` when none does.
pub(crate) fn attention(plugins: &[&PluginStatus]) -> Option<String> {
    let count = plugins.iter().filter(|plugin| needs_attention(plugin)).count();
    match (count, plugins.len()) {
        (0, _) => None,
        (1, all) => Some(format!("1 of {all} plugins needs attention")),
        (count, all) => Some(format!("{count} of {all} plugins need attention")),
    }
}

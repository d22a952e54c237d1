//! Folders of local plugins whose manifest is refused, shown like plugins that could not be
//! installed.
//!
//! The control plane does not see them: it did not order them, and knows no plugin of that name. It
//! gets an event about each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use guest_agent_actors::messages::Listed;
use guest_agent_actors::model::refused_manifest::RefusedManifest;
use guest_agent_proto::agent_controlplane::PluginType;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::local;

use super::show;
use crate::display::values::Named;

/// Most folders that are shown. The folder may hold any number, and a status is one message.
const SHOWN_MAX: usize = 256;

/// Manifests by the name of their folder as it can be shown.
pub(super) type Refused = BTreeMap<String, RefusedManifest>;

/// What is shown of the folders that have no plugin in this list, sorted by name.
pub(super) fn rows(refused: &Refused, plugins: &[Listed], dir: &Path) -> Vec<local::PluginStatus> {
    let known: BTreeSet<&str> = plugins.iter().map(|it| it.view.name.as_str()).collect();
    let unknown = refused.iter().filter(|(name, _)| !known.contains(name.as_str()));
    unknown.take(SHOWN_MAX).map(|(name, it)| row(name, it, dir)).collect()
}

fn row(name: &str, refusal: &RefusedManifest, dir: &Path) -> local::PluginStatus {
    let state = StatusValue::InstallFailed;
    // A manifest that does not say of which kind its plugin is means this one.
    let kind = PluginType::Daemon;
    let installation = local::Installation::Local;
    let verdict = refusal.verdict();
    local::PluginStatus {
        name: name.to_owned(),
        revision: refusal.revision.clone(),
        state: state.name().to_owned(),
        state_value: state.into(),
        kind: kind.name().to_owned(),
        kind_value: kind.into(),
        installation: installation.name().to_owned(),
        installation_value: installation.into(),
        install_path: dir.join(name).to_string_lossy().into_owned(),
        reason: verdict.reason.clone(),
        verdict: Some(show::verdict(verdict)),
        ..local::PluginStatus::default()
    }
}

/// Why a folder has no plugin.
pub(super) fn explanation(
    name: &str,
    refusal: &RefusedManifest,
    dir: &Path,
) -> local::ExplainResponse {
    local::ExplainResponse {
        status: Some(row(name, refusal, dir)),
        doing: "not installed".to_owned(),
        since: Some(refusal.since.into()),
        trouble: Some(local::PluginTrouble {
            at: Some(refusal.since.into()),
            r#type: PluginEventType::PluginInstallFailed.name().to_owned(),
            why: refusal.reason.clone(),
        }),
        ..local::ExplainResponse::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_refused_folder_is_a_failing_plugin_of_the_machine_without_a_process() {
        let refusal = RefusedManifest {
            revision: String::new(),
            reason: "it is no JSON".to_owned(),
            since: SystemTime::UNIX_EPOCH,
        };
        let answer = explanation("od\\u{1b}d", &refusal, Path::new("/plugins"));
        let status = answer.status.expect("what it looks like");
        let shown = [&status.name, &status.state, &status.kind, &status.installation];
        assert_eq!(shown, ["od\\u{1b}d", "INSTALL_FAILED", "daemon", "local"]);
        assert_eq!((status.pid, status.install_path.as_str()), (None, "/plugins/od\\u{1b}d"));
        let verdict = status.verdict.expect("a verdict");
        assert_eq!((verdict.level.as_str(), &*verdict.cause), ("failing", "manifest_refused"));
        assert!(verdict.reason.ends_with(": it is no JSON"), "{verdict:?}");
        assert_eq!(answer.trouble.expect("the failure").r#type, "PLUGIN_INSTALL_FAILED");
        assert_eq!(answer.order, None);
    }
}

//! An order as the bytes of its message: the release's template with the archive for the agent's
//! architecture. The same release gives the same bytes, so that their digest names the order.

use std::collections::HashMap;

use guest_agent_proto::agent_communication::{
    MessageBody, StreamAgentMessagesResponse, stream_agent_messages_response,
};
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Plugin,
};
use guest_fleet_core::view::{ANY_ARCHITECTURE, Release, ReleaseName, Target, View};
use prost::Message;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::artifacts::digest::DigestError;
use crate::artifacts::path::artifact_path;
use crate::gateway::messages::{CONFIGURE_PLUGIN_STATES, MESSAGE_TYPE};

/// Label that carries the generation of an order, in decimal digits.
pub const GENERATION: &str = "fleet-generation";

/// Longest body of an order, in bytes: a journal holds several.
const BODY_BYTES: usize = 1 << 20;

/// The bytes of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) bytes: Vec<u8>,
    pub(crate) digest: [u8; 32],
}

/// Why an order cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum ComposeError {
    #[error("the release has no archive for {architecture:?}")]
    NoArchive { architecture: String },
    #[error(
        "the archive has no URL, and this gateway does not know where the artifacts are: serve with --artifacts-url"
    )]
    NoUrl,
    #[error("the release's order is damaged: {0}")]
    Damaged(String),
    #[error(
        "the order has {0} bytes, and at most {BODY_BYTES} are sent: shorten its configuration"
    )]
    TooLarge(usize),
}

/// The body of an order for a target that [`desired`](guest_fleet_core::desired) found.
pub(crate) fn body(
    view: &View,
    plugin: &str,
    target: &Target,
    architecture: &str,
    artifacts: Option<&str>,
) -> Result<Body, ComposeError> {
    let entry = match target {
        Target::Absent => ConfigurePlugin {
            action: Action::Remove.into(),
            plugin: Some(Plugin { name: plugin.to_owned(), ..Plugin::default() }),
            manifest: None,
        },
        Target::Revision(revision) => {
            let name = ReleaseName { plugin: plugin.to_owned(), revision: revision.clone() };
            let missing = || ComposeError::NoArchive { architecture: architecture.to_owned() };
            let release = view.releases.get(&name).ok_or_else(missing)?;
            install(&name, release, architecture, artifacts)?
        }
    };
    let bytes = ConfigurePluginStates { configure_plugins: vec![entry] }.encode_to_vec();
    if bytes.len() > BODY_BYTES {
        return Err(ComposeError::TooLarge(bytes.len()));
    }
    let digest = Sha256::digest(&bytes).into();
    Ok(Body { bytes, digest })
}

fn install(
    name: &ReleaseName,
    release: &Release,
    architecture: &str,
    artifacts: Option<&str>,
) -> Result<ConfigurePlugin, ComposeError> {
    let archive = release
        .archives
        .get(architecture)
        .or_else(|| release.archives.get(ANY_ARCHITECTURE))
        .ok_or_else(|| ComposeError::NoArchive { architecture: architecture.to_owned() })?;
    let url = match (archive.url.as_str(), artifacts) {
        ("", None) => return Err(ComposeError::NoUrl),
        ("", Some(base)) => {
            let digest = archive.digest.parse();
            let digest =
                digest.map_err(|error: DigestError| ComposeError::Damaged(error.to_string()))?;
            format!("{}{}", base.trim_end_matches('/'), artifact_path(&name.plugin, &digest))
        }
        (url, _) => url.to_owned(),
    };
    let mut entry = ConfigurePlugin::decode(release.order.as_slice())
        .map_err(|error| ComposeError::Damaged(error.to_string()))?;
    entry.action = Action::Install.into();
    let plugin = entry.plugin.get_or_insert_default();
    plugin.name.clone_from(&name.plugin);
    plugin.revision_id.clone_from(&name.revision);
    plugin.checksum.clone_from(&archive.digest);
    plugin.gcs_signed_url = url;
    Ok(entry)
}

/// The frame that carries an order.
pub(crate) fn frame(
    message_id: &str,
    generation: u64,
    body: Vec<u8>,
) -> StreamAgentMessagesResponse {
    let labels = HashMap::from([
        (MESSAGE_TYPE.to_owned(), CONFIGURE_PLUGIN_STATES.to_owned()),
        (GENERATION.to_owned(), generation.to_string()),
    ]);
    let type_url = format!("type.googleapis.com/{CONFIGURE_PLUGIN_STATES}");
    let body = MessageBody { labels, body: Some(prost_types::Any { type_url, value: body }) };
    request_frame(message_id.to_owned(), body)
}

/// The frame that carries a body.
pub(crate) fn request_frame(message_id: String, body: MessageBody) -> StreamAgentMessagesResponse {
    StreamAgentMessagesResponse {
        message_id,
        r#type: Some(stream_agent_messages_response::Type::MessageBody(body)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest_fleet_core::view::Archive;

    fn view(url: &str) -> View {
        let template = ConfigurePlugin {
            plugin: Some(Plugin { entry_point: "bin/p".to_owned(), ..Plugin::default() }),
            ..ConfigurePlugin::default()
        };
        let archive = Archive { digest: "ab".repeat(32), url: url.to_owned() };
        let release = Release {
            archives: [("amd64".to_owned(), archive)].into(),
            order: template.encode_to_vec(),
        };
        let name = ReleaseName { plugin: "a/b".to_owned(), revision: "1".to_owned() };
        View { releases: [(name, release)].into(), ..View::default() }
    }

    fn decoded(body: &Body) -> ConfigurePlugin {
        let states = ConfigurePluginStates::decode(body.bytes.as_slice()).expect("it decodes");
        states.configure_plugins.into_iter().next().expect("one plugin")
    }

    #[test]
    fn an_installation_is_the_template_with_name_archive_and_address() {
        let target = Target::Revision("1".to_owned());
        let body = body(&view(""), "a/b", &target, "amd64", Some("https://f:1/")).expect("a body");
        let entry = decoded(&body);
        assert_eq!(entry.action(), Action::Install);
        let plugin = entry.plugin.expect("a plugin");
        assert_eq!((plugin.name.as_str(), plugin.revision_id.as_str()), ("a/b", "1"));
        assert_eq!(plugin.entry_point, "bin/p");
        assert_eq!(plugin.checksum, "ab".repeat(32));
        let url = format!("https://f:1/artifacts/a%2Fb/{}", "ab".repeat(32));
        assert_eq!(plugin.gcs_signed_url, url);
        assert_eq!(body.digest, <[u8; 32]>::from(Sha256::digest(&body.bytes)));
    }

    #[test]
    fn an_archive_of_its_own_address_needs_no_listener() {
        let target = Target::Revision("1".to_owned());
        let body = body(&view("https://x/y"), "a/b", &target, "amd64", None).expect("a body");
        assert_eq!(decoded(&body).plugin.expect("a plugin").gcs_signed_url, "https://x/y");
    }

    #[test]
    fn what_cannot_be_ordered_says_why() {
        let target = Target::Revision("1".to_owned());
        let ask = |view: &View, architecture, artifacts| {
            body(view, "a/b", &target, architecture, artifacts).expect_err("no body")
        };
        assert_eq!(ask(&view(""), "amd64", None), ComposeError::NoUrl);
        let none = ComposeError::NoArchive { architecture: "arm64".to_owned() };
        assert_eq!(ask(&view(""), "arm64", Some("https://f")), none);
        let mut damaged = view("");
        damaged.releases.values_mut().for_each(|release| release.order = vec![0xff]);
        assert!(matches!(ask(&damaged, "amd64", Some("https://f")), ComposeError::Damaged(_)));
        let mut large = view("");
        let arguments = vec!["x".repeat(BODY_BYTES)];
        let plugin = Plugin { arguments, ..Plugin::default() };
        let template = ConfigurePlugin { plugin: Some(plugin), ..ConfigurePlugin::default() };
        large.releases.values_mut().for_each(|release| release.order = template.encode_to_vec());
        assert!(matches!(ask(&large, "amd64", Some("https://f")), ComposeError::TooLarge(_)));
    }

    #[test]
    fn a_removal_names_the_plugin_alone() {
        let body = body(&View::default(), "p", &Target::Absent, "", None).expect("a body");
        let entry = decoded(&body);
        assert_eq!(entry.action(), Action::Remove);
        let plugin = entry.plugin.expect("a plugin");
        assert_eq!((plugin.name.as_str(), plugin.revision_id.as_str()), ("p", ""));
    }
}

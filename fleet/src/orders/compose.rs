//! An order as the bytes of its message: the release's template with the archive for the agent's
//! architecture and the secrets of this gateway. The same release and the same secrets give the same
//! bytes, so that their digest names the order.

use std::collections::HashMap;

use guest_agent_proto::agent_communication::{
    MessageBody, StreamAgentMessagesResponse, stream_agent_messages_response,
};
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Plugin,
};
use guest_agent_proto::artifact;
use guest_fleet_core::view::{ANY_ARCHITECTURE, Archive, Release, ReleaseName, View};
use guest_fleet_sessions::messages::{CONFIGURE_PLUGIN_STATES, MESSAGE_TYPE};
use prost::Message;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::artifacts::{self, digest::DigestError};
use crate::secrets::Secrets;
use crate::secrets::directory::{KEY, SecretProblem};
use crate::secrets::reference::{ReferenceError, ResolveError, has_reference, resolve};

/// Label that carries the generation of an order, in decimal digits.
pub const GENERATION: &str = "fleet-generation";

/// Longest body of an order, in bytes: a journal holds several.
const BODY_BYTES: usize = 1 << 20;

/// The bytes of an order. There may be secrets in them, so it is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Body {
    /// As they are sent.
    pub(crate) bytes: Vec<u8>,
    /// As they are recorded, where that is not the same: with references for secrets.
    recorded: Option<Vec<u8>>,
    /// SHA-256 of what is sent.
    pub(crate) digest: [u8; 32],
}

/// Stands after the orders of a body with secrets, and is a part of it for its digest alone: agents skip
/// a field that they do not know.
#[derive(Clone, PartialEq, Message)]
struct Mark {
    #[prost(bytes = "vec", tag = "50080")]
    mark: Vec<u8>,
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
    #[error("the secret `{name}` is not there: {problem}")]
    Secret { name: String, problem: SecretProblem },
    #[error(
        "the release's configuration has a wrong reference to a secret: {0}; declare it again as a new revision"
    )]
    Reference(ReferenceError),
}

// === impl Body ===

impl Body {
    fn new(bytes: Vec<u8>, recorded: Option<Vec<u8>>) -> Self {
        let digest = Sha256::digest(&bytes).into();
        Self { bytes, recorded, digest }
    }

    /// Bytes that it takes in memory.
    pub(super) fn size(&self) -> usize {
        self.bytes.len() + self.recorded.as_ref().map_or(0, Vec::len)
    }

    /// The bytes as the journal keeps them.
    pub(crate) fn recorded(&self) -> &[u8] {
        self.recorded.as_ref().unwrap_or(&self.bytes)
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Body({} bytes)", self.bytes.len())
    }
}

/// The body of an order to remove a plugin.
pub(super) fn removal(plugin: &str) -> Result<Body, ComposeError> {
    let plugin = Plugin { name: plugin.to_owned(), ..Plugin::default() };
    let action = Action::Remove.into();
    let bytes = encode(ConfigurePlugin { action, plugin: Some(plugin), manifest: None })?;
    Ok(Body::new(bytes, None))
}

/// A release, and its archive for an agent.
pub(super) struct Found<'a> {
    release: &'a Release,
    archive: &'a Archive,
    /// The name of the archive: an architecture, or the one of all.
    pub(super) name: &'a str,
}

/// Finds the archive of a release for an architecture.
pub(super) fn find<'a>(
    view: &'a View,
    name: &ReleaseName,
    architecture: &'a str,
) -> Result<Found<'a>, ComposeError> {
    let release = view.releases.get(name);
    let found = release.and_then(|release| {
        let archive = |name| Some(Found { release, archive: release.archives.get(name)?, name });
        archive(architecture).or_else(|| archive(ANY_ARCHITECTURE))
    });
    found.ok_or_else(|| ComposeError::NoArchive { architecture: architecture.to_owned() })
}

/// The body of an order to install a release.
pub(super) fn installation(
    name: &ReleaseName,
    found: &Found<'_>,
    artifacts: Option<&str>,
    secrets: &Secrets,
) -> Result<Body, ComposeError> {
    let entry = install(name, found, artifacts)?;
    let config = entry.manifest.as_ref().and_then(|manifest| manifest.config.as_ref());
    match config {
        Some(config) if has_reference(config) => {
            let sent = with_secrets(entry.clone(), config.clone(), secrets)?;
            Ok(Body::new(sent, Some(encode(entry)?)))
        }
        _ => Ok(Body::new(encode(entry)?, None)),
    }
}

fn encode(entry: ConfigurePlugin) -> Result<Vec<u8>, ComposeError> {
    let bytes = ConfigurePluginStates { configure_plugins: vec![entry] }.encode_to_vec();
    if bytes.len() > BODY_BYTES {
        return Err(ComposeError::TooLarge(bytes.len()));
    }
    Ok(bytes)
}

/// The body with the secrets that its configuration refers to.
fn with_secrets(
    mut entry: ConfigurePlugin,
    config: Config,
    secrets: &Secrets,
) -> Result<Vec<u8>, ComposeError> {
    let mut find = |name: &_| secrets.find(name).map(|secret| secret.expose().to_owned());
    let config = resolve(config, &mut find).map_err(|error| match error {
        ResolveError::Reference(error) => ComposeError::Reference(error),
        ResolveError::Secret(name, problem) => {
            ComposeError::Secret { name: name.to_string(), problem }
        }
    })?;
    entry.manifest.get_or_insert_default().config = Some(config);
    let mut bytes = encode(entry)?;
    // Without it, everybody who reads the digest in a journal could try secrets until one fits.
    let mark = secrets.mark(&bytes);
    let mark = mark.map_err(|problem| ComposeError::Secret { name: KEY.to_owned(), problem })?;
    bytes.extend(Mark { mark }.encode_to_vec());
    Ok(bytes)
}

fn install(
    name: &ReleaseName,
    Found { release, archive, .. }: &Found<'_>,
    artifacts: Option<&str>,
) -> Result<ConfigurePlugin, ComposeError> {
    let url = match (archive.url.as_str(), artifacts) {
        ("", None) => return Err(ComposeError::NoUrl),
        ("", Some(base)) => {
            let digest: artifacts::Digest = archive
                .digest
                .parse()
                .map_err(|error: DigestError| ComposeError::Damaged(error.to_string()))?;
            format!("{}{}", base.trim_end_matches('/'), artifact::path(&name.plugin, digest))
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
    use guest_fleet_core::target::Target;

    use super::*;
    use prost_types::value::Kind;

    use crate::declarations::files::{Format, Source, Sources};
    use crate::declarations::set::Declarations;
    use crate::secrets::directory::tests::{directory, write};
    use crate::secrets::reference;

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

    fn body(
        view: &View,
        plugin: &str,
        target: &Target,
        architecture: &str,
        artifacts: Option<&str>,
        secrets: &Secrets,
    ) -> Result<Body, ComposeError> {
        let Some(revision) = target.revision() else { return removal(plugin) };
        let name = ReleaseName { plugin: plugin.to_owned(), revision: revision.to_owned() };
        installation(&name, &find(view, &name, architecture)?, artifacts, secrets)
    }

    fn decoded(body: &Body) -> ConfigurePlugin {
        let states = ConfigurePluginStates::decode(body.bytes.as_slice()).expect("it decodes");
        states.configure_plugins.into_iter().next().expect("one plugin")
    }

    #[test]
    fn an_installation_is_the_template_with_name_archive_and_address() {
        let target = Target::Revision("1".to_owned());
        let body =
            body(&view(""), "a/b", &target, "amd64", Some("https://f:1/"), &Secrets::default())
                .expect("a body");
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
        let body = body(&view("https://x/y"), "a/b", &target, "amd64", None, &Secrets::default())
            .expect("a body");
        assert_eq!(decoded(&body).plugin.expect("a plugin").gcs_signed_url, "https://x/y");
    }

    #[test]
    fn what_cannot_be_ordered_says_why() {
        let target = Target::Revision("1".to_owned());
        let ask = |view: &View, architecture, artifacts| {
            body(view, "a/b", &target, architecture, artifacts, &Secrets::default())
                .expect_err("no body")
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
        let body = body(&View::default(), "p", &Target::Absent, "", None, &Secrets::default())
            .expect("a body");
        let entry = decoded(&body);
        assert_eq!(entry.action(), Action::Remove);
        let plugin = entry.plugin.expect("a plugin");
        assert_eq!((plugin.name.as_str(), plugin.revision_id.as_str()), ("p", ""));
    }

    fn secret_view(config: &str) -> View {
        let text = format!(
            "[[release]]\nplugin = \"p\"\nrevision = \"1\"\nentry_point = \"p\"\nconfig = {config}\n\
             archives.any = {{ sha256 = \"{}\", url = \"https://x/y\" }}\n",
            "ab".repeat(32)
        );
        let file = Source { name: "a.toml".to_owned(), format: Format::Toml, text: text.into() };
        let sources = Sources { files: vec![file], ..Sources::default() };
        let declared = Declarations::parse(&sources).expect("it is right");
        let releases = declared.releases.into_iter().map(|(name, it)| (name, it.value));
        View { releases: releases.collect(), ..View::default() }
    }

    #[tokio::test]
    async fn a_secret_is_in_what_is_sent_and_a_reference_in_what_is_recorded() {
        let folder = directory();
        write(folder.path(), "password", b"hunter22\n");
        let secrets = Secrets::open(folder.path()).await.expect("they are opened");
        let target = Target::Revision("1".to_owned());
        let ask = |config: &str| body(&secret_view(config), "p", &target, "amd64", None, &secrets);
        let refers = "{ user = \"u\", password = { \"$secret\" = \"password\" } }";
        let first = ask(refers).expect("a body");
        let config = |body: &Body| decoded(body).manifest.expect("a manifest").config;
        let Some(Config::StructConfig(table)) = config(&first) else { panic!("no table") };
        let password = table.fields["password"].kind.clone();
        assert_eq!(password, Some(Kind::StringValue("hunter22".to_owned())));
        let recorded = String::from_utf8_lossy(first.recorded()).into_owned();
        assert!(recorded.contains("$secret") && !recorded.contains("hunter22"));
        assert!(!format!("{first:?}").contains("hunter22"));
        assert_eq!(first.digest, <[u8; 32]>::from(Sha256::digest(&first.bytes)));
        // A digest of the orders alone would tell who guesses that the guess is right.
        let states = ConfigurePluginStates::decode(first.bytes.as_slice()).expect("it decodes");
        assert_ne!(first.digest, <[u8; 32]>::from(Sha256::digest(states.encode_to_vec())));
        assert_eq!(ask(refers), Ok(first.clone()));

        let whole = ask("{ \"$secret\" = \"password\" }").expect("a body");
        assert_eq!(config(&whole), Some(Config::StringConfig("hunter22".to_owned())));
        let plain = ask("{ password = \"hunter22\" }").expect("a body");
        assert_eq!(plain.recorded(), plain.bytes);

        write(folder.path(), "password", b"hunter23");
        secrets.refresh().await;
        let second = ask(refers).expect("a body");
        assert_ne!(second.digest, first.digest);
        assert_eq!(second.recorded(), first.recorded());
        std::fs::remove_file(folder.path().join("password")).expect("it is removed");
        secrets.refresh().await;
        let words = ask(refers).expect_err("no body").to_string();
        assert!(words.contains("the secret `password` is not there"), "{words}");
        let words = body(&secret_view(refers), "p", &target, "", None, &Secrets::default());
        assert!(words.expect_err("no body").to_string().contains("--secrets DIR"));
        assert_eq!(ask("\"text\"").map(|body| body.recorded.is_none()), Ok(true));
    }

    #[test]
    fn a_reference_that_was_never_checked_is_refused() {
        let mut view = secret_view("{ password = { \"$secret\" = \"password\" } }");
        for release in view.releases.values_mut() {
            let mut order = ConfigurePlugin::decode(release.order.as_slice()).expect("an order");
            let table = reference::tests::table(&[("p", reference::tests::reference("../p"))]);
            order.manifest.get_or_insert_default().config = Some(Config::StructConfig(table));
            release.order = order.encode_to_vec();
        }
        let target = Target::Revision("1".to_owned());
        let refused = body(&view, "p", &target, "", None, &Secrets::default());
        assert_eq!(refused, Err(ComposeError::Reference(ReferenceError::Name)));
    }
}

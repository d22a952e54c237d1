//! An order as the bytes of its message: the release's template with the archive for the agent's
//! architecture and the secrets of this gateway. The same release and the same secrets give the same
//! bytes, so that their digest names the order. What was declared of it has a digest of its own, which no
//! gateway's own settings change.

use std::collections::{BTreeSet, HashMap};

use guest_agent_proto::agent_communication::{
    MessageBody, StreamAgentMessagesResponse, stream_agent_messages_response,
};
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Plugin,
};
use guest_agent_proto::artifact;
use guest_fleet_core::journal::Digests;
use guest_fleet_core::view::{ANY_ARCHITECTURE, Archive, Release, ReleaseName, View};
use guest_fleet_sessions::messages::{CONFIGURE_PLUGIN_STATES, MESSAGE_TYPE};
use prost::Message;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::artifacts::{self, digest::DigestError};
use crate::configuration::Configuration;
use crate::secrets::Secrets;
use crate::secrets::directory::{KEY, SecretProblem};
use crate::secrets::recorded::of_order;
use crate::secrets::reference::{
    ReferenceError, ResolveError, SecretName, has_reference, names, resolve,
};

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
    pub(crate) digests: Digests,
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
    #[error("the secret `{name}` cannot be used: {problem}")]
    Secret { name: String, problem: SecretProblem },
    #[error(
        "the release's configuration has a wrong reference to a secret: {0}; declare it again as a new revision"
    )]
    Reference(ReferenceError),
}

// === impl ComposeError ===

impl ComposeError {
    /// Whether the order can be made within a moment.
    pub(super) fn is_for_a_moment(&self) -> bool {
        matches!(self, Self::Secret { problem: SecretProblem::Unrecorded, .. })
    }
}

// === impl Body ===

impl Body {
    fn new(bytes: Vec<u8>, recorded: Option<Vec<u8>>, declared: [u8; 32]) -> Self {
        let sent = Sha256::digest(&bytes).into();
        Self { bytes, recorded, digests: Digests { sent, declared } }
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
    let declared = Sha256::digest(&bytes).into();
    Ok(Body::new(bytes, None, declared))
}

/// A release, and its archive for an agent.
pub(super) struct Found<'a> {
    release: &'a Release,
    archive: &'a Archive,
    /// The name of the archive: an architecture, or the one of all.
    pub(super) name: &'a str,
}

// === impl Found ===

impl Found<'_> {
    /// The secrets that the release refers to, as far as this program knows its references.
    pub(super) fn secrets(&self) -> BTreeSet<SecretName> {
        of_order(&self.release.order).unwrap_or_default()
    }
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
    secrets: (&Secrets, &Configuration),
) -> Result<Body, ComposeError> {
    let entry = install(name, found, artifacts)?;
    let declared = declared(name, found);
    let config = entry.manifest.as_ref().and_then(|manifest| manifest.config.as_ref());
    match config {
        Some(config) if has_reference(config) => {
            let sent = with_secrets(entry.clone(), config.clone(), secrets)?;
            Ok(Body::new(sent, Some(encode(entry)?), declared))
        }
        _ => Ok(Body::new(encode(entry)?, None, declared)),
    }
}

/// SHA-256 of a release for one architecture as the ledger has it. A newer program that makes other bytes of
/// the same declaration has the same.
fn declared(name: &ReleaseName, Found { release, archive, .. }: &Found<'_>) -> [u8; 32] {
    let mut digest = Sha256::new();
    let texts = [&name.plugin, &name.revision, &archive.digest].map(String::as_bytes);
    for part in texts.into_iter().chain([release.order.as_slice()]) {
        digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
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
    (secrets, ledger): (&Secrets, &Configuration),
) -> Result<Vec<u8>, ComposeError> {
    let mut find = |name: &_| secrets.find(name, ledger).map(|secret| secret.expose().to_owned());
    // All are asked for, so that all are recorded and told at once.
    for name in names(&config).map_err(ComposeError::Reference)? {
        drop(find(&name));
    }
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
    use crate::secrets::directory::tests::{directory, opened, record, write};
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
        let ledger = Configuration::default();
        installation(&name, &find(view, &name, architecture)?, artifacts, (secrets, &ledger))
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
        assert_eq!(body.digests.sent, <[u8; 32]>::from(Sha256::digest(&body.bytes)));
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

    #[test]
    fn what_was_declared_has_one_digest_wherever_its_archive_is() {
        let target = Target::Revision("1".to_owned());
        let ask = |view: &View, artifacts| {
            body(view, "a/b", &target, "amd64", artifacts, &Secrets::default()).expect("a body")
        };
        let (one, other) = (ask(&view(""), Some("https://f")), ask(&view(""), Some("https://g")));
        assert_ne!(one.digests.sent, other.digests.sent);
        assert_eq!(one.digests.declared, other.digests.declared);
        let mut changed = view("");
        changed.releases.values_mut().for_each(|release| release.order.extend([0x1a, 0]));
        assert_ne!(ask(&changed, Some("https://f")).digests.declared, one.digests.declared);
        let mut changed = view("");
        let archives =
            changed.releases.values_mut().flat_map(|release| release.archives.values_mut());
        archives.for_each(|archive| archive.digest = "cd".repeat(32));
        assert_ne!(ask(&changed, Some("https://f")).digests.declared, one.digests.declared);
    }

    /// The body of a release with this configuration, with secrets that are recorded.
    fn known(
        config: &str,
        secrets: &Secrets,
        ledger: &mut Configuration,
    ) -> Result<Body, ComposeError> {
        let name = ReleaseName { plugin: "p".to_owned(), revision: "1".to_owned() };
        let view = secret_view(config);
        let compose = |ledger: &Configuration| {
            installation(&name, &find(&view, &name, "amd64")?, None, (secrets, ledger))
        };
        let first = compose(ledger);
        if first.as_ref().is_err_and(ComposeError::is_for_a_moment) {
            record(secrets, ledger, "gw-1");
            return compose(ledger);
        }
        first
    }

    #[tokio::test]
    async fn a_secret_is_in_what_is_sent_and_a_reference_in_what_is_recorded() {
        let folder = directory();
        write(folder.path(), "password@1", b"hunter22\n");
        let secrets = opened(folder.path()).await;
        let mut ledger = Configuration::default();
        let mut ask = |config: &str, secrets: &Secrets| known(config, secrets, &mut ledger);
        let refers = "{ user = \"u\", password = { \"$secret\" = \"password@1\" } }";
        let first = ask(refers, &secrets).expect("a body");
        let config = |body: &Body| decoded(body).manifest.expect("a manifest").config;
        let Some(Config::StructConfig(table)) = config(&first) else { panic!("no table") };
        let password = table.fields["password"].kind.clone();
        assert_eq!(password, Some(Kind::StringValue("hunter22".to_owned())));
        let recorded = String::from_utf8_lossy(first.recorded()).into_owned();
        assert!(recorded.contains("$secret") && !recorded.contains("hunter22"));
        assert!(!format!("{first:?}").contains("hunter22"));
        assert_eq!(first.digests.sent, <[u8; 32]>::from(Sha256::digest(&first.bytes)));
        // A digest of the orders alone would tell who guesses that the guess is right.
        let states = ConfigurePluginStates::decode(first.bytes.as_slice()).expect("it decodes");
        let plain = <[u8; 32]>::from(Sha256::digest(states.encode_to_vec()));
        assert!(first.digests.sent != plain && first.digests.declared != plain);
        assert_eq!(ask(refers, &secrets), Ok(first.clone()));

        let whole = ask("{ \"$secret\" = \"password@1\" }", &secrets).expect("a body");
        assert_eq!(config(&whole), Some(Config::StringConfig("hunter22".to_owned())));
        let plain = ask("{ password = \"hunter22\" }", &secrets).expect("a body");
        assert_eq!(plain.recorded(), plain.bytes);
        assert_eq!(ask("\"text\"", &secrets).map(|body| body.recorded.is_none()), Ok(true));

        // Another version is another declaration, and one that was overwritten is ordered no more.
        write(folder.path(), "password@2", b"hunter23");
        write(folder.path(), "password@1", b"hunter23");
        secrets.refresh().await;
        secrets.refresh().await;
        let second = ask(&refers.replace("@1", "@2"), &secrets).expect("a body");
        assert_ne!(second.digests.sent, first.digests.sent);
        assert_ne!(second.digests.declared, first.digests.declared);
        let words = ask(refers, &secrets).expect_err("no body").to_string();
        assert!(
            words.contains("`password@1` cannot be used: its file has another content"),
            "{words}"
        );

        std::fs::remove_file(folder.path().join("password@1")).expect("it is removed");
        secrets.refresh().await;
        let words = ask(refers, &secrets).expect_err("no body").to_string();
        assert!(words.contains("`password@1` cannot be used: there is no file"), "{words}");
        let words = ask(refers, &Secrets::default()).expect_err("no body").to_string();
        assert!(words.contains("--secrets DIR"), "{words}");
        // With another key the same content is other bytes of the same declaration.
        write(folder.path(), KEY, b"another key of 128 bits");
        write(folder.path(), "password@1", b"hunter22");
        secrets.refresh().await;
        secrets.refresh().await;
        let third = ask(refers, &secrets).expect("a body");
        assert_ne!(third.digests.sent, first.digests.sent);
        assert_eq!(third.digests.declared, first.digests.declared);
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

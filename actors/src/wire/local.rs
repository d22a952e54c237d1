//! Manifests of plugins that came with the machine: one `ConfigurePlugin` each.
//!
//! The caller reads the files, passes their bytes and hashes the entry point; this module checks
//! every field, as strictly as those of an order. A field that means nothing in a manifest is
//! refused rather than ignored, because the author of the manifest expected an effect.
//!
//! Manifests in the field often say neither of what installation type they are nor which revision.
//! The folder says the first. The digest of the entry point stands in for the second, so other
//! content is another revision.

use std::path::Path;
use std::sync::Arc;

use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::configure_plugin_states as cfg;
use prost::Message;

use super::decode_spec;
use crate::model::id::{IdError, PluginName, Sha256Digest};
use crate::model::spec::{EntryPoint, LocalFiles, PluginSpec, Source};

/// Reads the manifest of the plugin `name` in `folder`. `digest` hashes an entry point, and is
/// asked only when everything else is right.
///
/// # Errors
/// Says which field is wrong, why, and what would be right.
pub fn decode_local(
    bytes: &[u8],
    name: &PluginName,
    folder: &str,
    digest: impl FnOnce(&Path) -> Result<Sha256Digest, String>,
) -> Result<Arc<PluginSpec>, String> {
    let item = cfg::ConfigurePlugin::decode(bytes)
        .map_err(|cause| format!("it is not a valid ConfigurePlugin: {cause}"))?;
    match cfg::Action::try_from(item.action) {
        Ok(cfg::Action::Install | cfg::Action::Unspecified) => {}
        Ok(cfg::Action::Remove | cfg::Action::Apply) | Err(_) => {
            return Err(
                "its action is not INSTALL; remove the manifest of a plugin that should not \
                        run"
                .to_owned(),
            );
        }
    }
    let mut plugin = item.plugin.ok_or("it does not name a plugin")?;
    if plugin.name != name.as_str() {
        let other: String = plugin.name.chars().take(80).collect();
        return Err(format!(
            "it names the plugin {other:?}, but its folder is {name:?}; the two have to be the \
             same",
            name = name.as_str()
        ));
    }
    let manifest = item.manifest.unwrap_or_default();
    // The number of DYNAMIC_INSTALLATION is 0, so that it cannot be told from an unset field. What
    // is to be downloaded is known by its URL.
    match pb::PluginInstallationType::try_from(manifest.plugin_installation_type) {
        Ok(
            pb::PluginInstallationType::LocalInstallation
            | pb::PluginInstallationType::DynamicInstallation,
        ) => {}
        Err(_) => {
            return Err("its plugin_installation_type is not known; leave it unset, or set \
                        LOCAL_INSTALLATION"
                .to_owned());
        }
    }
    if !plugin.gcs_signed_url.is_empty() {
        return Err("it has a gcs_signed_url; the files of a local plugin are in its folder, so \
                    leave it empty, and order a plugin that is to be downloaded"
            .to_owned());
    }
    let entry_point = EntryPoint::parse_local(&plugin.entry_point).map_err(|e| e.to_string())?;
    let expected = match plugin.checksum.as_str() {
        "" => None,
        text => Some(text.parse::<Sha256Digest>().map_err(|e| e.to_string())?),
    };
    // Takes the place of the digest, which is not known before everything else is right.
    let unread = Sha256Digest::from_bytes([0; 32]);
    let has_revision = !plugin.revision_id.is_empty();
    if !has_revision {
        plugin.revision_id = unread.to_string();
    }
    let files = LocalFiles { folder: folder.into(), sha256: unread };
    let mut spec = decode_spec(name, &plugin, manifest, (Source::Local(files), entry_point))?;
    let sha256 = digest(&Path::new(folder).join(spec.entry_point.as_str()))?;
    if let Some(expected) = expected.filter(|expected| *expected != sha256) {
        return Err(format!(
            "its checksum is {expected}, but its entry point {} has {sha256}; it may be damaged",
            spec.entry_point.as_str()
        ));
    }
    spec.source = Source::Local(LocalFiles { folder: folder.into(), sha256 });
    if !has_revision {
        spec.revision = sha256.to_string().parse().map_err(|e: IdError| e.to_string())?;
    }
    Ok(Arc::new(spec))
}

#[cfg(test)]
mod tests;

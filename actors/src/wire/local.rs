//! Manifests of plugins that came with the machine: one `ConfigurePlugin` each.
//!
//! The caller reads the files, passes their bytes and hashes the entry point; this module checks
//! every field, as strictly as those of an order. A field that means nothing in a manifest is
//! refused rather than ignored, because the author of the manifest expected an effect.

use std::path::Path;
use std::sync::Arc;

use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::configure_plugin_states as cfg;
use prost::Message;

use super::decode_spec;
use crate::model::id::{PluginName, Sha256Digest};
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
    let plugin = item.plugin.ok_or("it does not name a plugin")?;
    if plugin.name != name.as_str() {
        let other: String = plugin.name.chars().take(80).collect();
        return Err(format!(
            "it names the plugin {other:?}, but its folder is {name:?}; the two have to be the \
             same",
            name = name.as_str()
        ));
    }
    let manifest = item.manifest.unwrap_or_default();
    let installation = pb::PluginInstallationType::LocalInstallation;
    if manifest.plugin_installation_type != i32::from(installation) {
        return Err("its plugin_installation_type is not LOCAL_INSTALLATION; a plugin that is \
                    downloaded needs an order, not a manifest in this folder"
            .to_owned());
    }
    if !plugin.gcs_signed_url.is_empty() {
        return Err("it has a gcs_signed_url; the files of a local plugin are in its folder, so \
                    leave it empty"
            .to_owned());
    }
    let entry_point = EntryPoint::parse_local(&plugin.entry_point).map_err(|e| e.to_string())?;
    let expected = match plugin.checksum.as_str() {
        "" => None,
        text => Some(text.parse::<Sha256Digest>().map_err(|e| e.to_string())?),
    };
    let files = LocalFiles { folder: folder.into(), sha256: Sha256Digest::from_bytes([0; 32]) };
    let mut spec = decode_spec(name, &plugin, manifest, (Source::Local(files), entry_point))?;
    let sha256 = digest(&Path::new(folder).join(spec.entry_point.as_str()))?;
    if let Some(expected) = expected.filter(|expected| *expected != sha256) {
        return Err(format!(
            "its checksum is {expected}, but its entry point {} has {sha256}; it may be damaged",
            spec.entry_point.as_str()
        ));
    }
    spec.source = Source::Local(LocalFiles { folder: folder.into(), sha256 });
    Ok(Arc::new(spec))
}

#[cfg(test)]
mod tests;

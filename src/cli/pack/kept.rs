//! The order that is beside an archive already, and what of it stays when the plugin is packed again.
//!
//! ```text
//! with plugin.toml      the order is made of it. One that a person changed since is not overwritten: pack
//!                       remembers what it wrote, in a hidden file, and refuses.
//! without plugin.toml   the order is a person's: only what depends on the archive, and what flags say, changes
//! ```

use std::path::{Path, PathBuf};

use guest_agent_actors::model::id::{RevisionId, Sha256Digest};
use guest_agent_actors::model::spec::EntryPoint;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::json::{configure_plugin_from_json, configure_plugin_to_json};
use serde_json::Value;

use super::files::write;
use crate::cli::failure::Failure;
use crate::cli::order;
use crate::manifest::package::{Package, Wanted};

/// What is beside an archive.
pub(super) struct Kept {
    /// The file with the order.
    file: PathBuf,
    /// The order of a person. `None` without one, and where a manifest stands for it.
    order: Option<ConfigurePlugin>,
    /// The file that remembers what was written; where a manifest makes the order.
    remembered: Option<PathBuf>,
}

// === impl Kept ===

impl Kept {
    /// Reads what is beside an archive. Nothing of it is used for a bundle, which has its own order.
    pub(super) fn read(file: &Path, has_manifest: bool, is_bundle: bool) -> Result<Self, Failure> {
        let mut kept = Self { file: file.to_owned(), order: None, remembered: None };
        if is_bundle {
            return Ok(kept);
        }
        let remembered = remembered_beside(file);
        if has_manifest {
            kept.remembered = Some(remembered.clone());
        }
        if !file.exists() {
            return Ok(kept);
        }
        let bytes = order::bytes_of(file).map_err(|error| Failure::of(&error))?;
        let digest = Sha256Digest::of(&bytes).to_string();
        let is_ours = std::fs::read_to_string(&remembered).is_ok_and(|text| text.trim() == digest);
        if is_ours {
            return Ok(kept);
        }
        let text = String::from_utf8_lossy(&bytes);
        let found = configure_plugin_from_json(&text).map_err(|error| {
            Failure::failed(format_args!("{} is there and is no order", file.display()))
                .because(&error)
                .hint("move it away, or write the archive elsewhere with -o")
        })?;
        // One that holds nothing but what flags said is not worth a question.
        let says_more =
            found.manifest.as_ref().is_some_and(|manifest| *manifest != Default::default());
        if has_manifest && says_more {
            return Err(Failure::failed(format_args!(
                "{} was not written by pack, or was changed since, and plugin.toml would overwrite it",
                file.display()
            ))
            .hint("write into plugin.toml what it says, and delete it"));
        }
        kept.order = (!has_manifest).then_some(found);
        Ok(kept)
    }

    /// Takes from the order what neither a flag nor a manifest says.
    pub(super) fn complete(&self, wanted: &mut Wanted) {
        let Some(plugin) = self.order.as_ref().and_then(|order| order.plugin.as_ref()) else {
            return;
        };
        if wanted.name.is_none() {
            wanted.name = plugin.name.parse().ok();
        }
        if wanted.entry_point.is_none() {
            wanted.entry_point = EntryPoint::parse(&plugin.entry_point).ok();
        }
        if wanted.arguments.is_empty() {
            wanted.arguments.clone_from(&plugin.arguments);
        }
        // A revision that is made of the digest changes with it.
        let is_made =
            !plugin.revision_id.is_empty() && plugin.checksum.starts_with(&plugin.revision_id);
        if wanted.revision.is_none() && !is_made {
            wanted.revision = plugin.revision_id.parse().ok();
        }
    }

    /// The text of the order, with what a person added to it.
    pub(super) fn order(&self, fresh: Value) -> String {
        let plain = format!("{fresh:#}\n");
        let (Some(before), Ok(mut whole)) =
            (&self.order, configure_plugin_from_json(&fresh.to_string()))
        else {
            return plain;
        };
        let is_elsewhere = |url: &str| !url.is_empty() && !url.starts_with("file:");
        if let (Some(plugin), Some(before)) = (&mut whole.plugin, &before.plugin)
            && is_elsewhere(&before.gcs_signed_url)
        {
            plugin.gcs_signed_url.clone_from(&before.gcs_signed_url);
        }
        if whole.manifest.is_none() {
            whole.manifest.clone_from(&before.manifest);
        }
        let is_plain = configure_plugin_from_json(&plain).is_ok_and(|plain| plain == whole);
        match configure_plugin_to_json(&whole) {
            Ok(text) if !is_plain => text + "\n",
            Ok(_) | Err(_) => plain,
        }
    }

    /// Writes the order.
    pub(super) fn write(&self, fresh: Value) -> Result<(), Failure> {
        let text = self.order(fresh);
        write(&self.file, &text)?;
        match &self.remembered {
            Some(file) => write(file, &format!("{}\n", Sha256Digest::of(text.as_bytes()))),
            None => Ok(()),
        }
    }

    /// What a person may not know: a revision that stays is made of other files now.
    pub(super) fn note(&self, package: &Package, revision: &RevisionId) -> Option<String> {
        let before = self.order.as_ref()?.plugin.as_ref()?;
        let sha256 = package.packed.sha256.to_string();
        let is_another = before.revision_id == revision.as_str() && before.checksum != sha256;
        is_another.then(|| {
            format!(
                "revision {revision} is of another archive than before; where it was installed, give \
                 --revision, because a revision never changes what it is made of"
            )
        })
    }
}

/// The hidden file that remembers what was written into an order.
fn remembered_beside(order: &Path) -> PathBuf {
    let name = order.file_name().unwrap_or_default().to_string_lossy();
    order.with_file_name(format!(".{name}.packed"))
}

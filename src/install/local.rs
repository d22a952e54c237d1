//! What there is to install of a plugin that came with the machine: nothing but to look at it.
//!
//! The pipeline calls this instead of downloading. Its files are the image's; none is written here.

use guest_agent_actors::ports::{InstallError, InstallStep};
use guest_agent_actors::spec::{LocalFiles, PluginSpec};

use crate::local_plugins;

/// Whether a local plugin can be started as its manifest says.
///
/// # Errors
/// Its entry point is not there, cannot be executed, or must not be because others may change it.
pub(super) async fn preflight(spec: &PluginSpec, files: &LocalFiles) -> Result<(), InstallError> {
    let program = std::path::Path::new(&*files.folder).join(spec.entry_point.as_str());
    let recorded = files.sha256;
    let looked = tokio::task::spawn_blocking(move || local_plugins::fingerprint(&program));
    let looked = looked.await.unwrap_or(Err(local_plugins::ManifestError::Panicked));
    let found =
        looked.map_err(|error| InstallError { step: InstallStep::Prepare, cause: error.into() })?;
    if found != recorded {
        // Files of the image are replaced in place. What is there now is what its owner wants.
        tracing::warn!(
            plugin = %spec.name,
            revision = %spec.revision,
            read = %recorded,
            %found,
            "the entry point was replaced since its manifest was read; SIGHUP reads it again"
        );
    }
    Ok(())
}

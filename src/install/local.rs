//! What there is to install of a plugin that came with the machine: nothing but to look at it.
//!
//! The pipeline calls this instead of downloading. Its files are the image's; none is written here.

use guest_agent_actors::ports::{InstallError, InstallStep};
use guest_agent_actors::spec::{LocalFiles, PluginSpec};

use crate::{local_plugins, preflight};

/// Whether a local plugin can be started as its manifest says.
///
/// # Errors
/// Its entry point is not there, cannot be executed, must not be because others may change it, or is
/// for another machine.
pub(super) async fn preflight(spec: &PluginSpec, files: &LocalFiles) -> Result<(), InstallError> {
    let program = std::path::Path::new(&*files.folder).join(spec.entry_point.as_str());
    let recorded = files.sha256;
    let name = spec.entry_point.as_str().to_owned();
    let failed = |step, cause| InstallError { step, cause };
    let looked = tokio::task::spawn_blocking(move || {
        let found = local_plugins::fingerprint(&program)
            .map_err(|error| failed(InstallStep::Prepare, error.into()))?;
        preflight::runnable(&name, &program)
            .map_err(|error| failed(InstallStep::Check, error.into()))?;
        Ok(found)
    });
    let found = looked.await.unwrap_or_else(|_| {
        Err(failed(InstallStep::Prepare, local_plugins::ManifestError::Panicked.into()))
    })?;
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

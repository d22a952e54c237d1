//! The installation of a local plugin: only a check of its files.
//!
//! The pipeline calls this instead of a download. The files belong to the machine's image; the
//! agent writes none of them.

use std::path::{Path, PathBuf};

use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::model::spec::{LocalFiles, PluginSpec};
use guest_agent_actors::ports::{InstallError, InstallStep};

use crate::hostinfo::preflight;
use crate::install::local_manifests;
use crate::install::local_manifests::ManifestError;

/// Whether a local plugin can be started as its manifest says.
///
/// # Errors
/// The entry point does not exist, cannot be executed, can be changed by users that the agent does
/// not trust, or is for another kind of machine.
pub(super) async fn preflight(spec: &PluginSpec, files: &LocalFiles) -> Result<(), InstallError> {
    let recorded = files.sha256;
    let name = spec.entry_point.as_str().to_owned();
    let found = look(program(spec, files), move |program| {
        let failed = |cause| InstallError { step: InstallStep::Check, cause };
        preflight::runnable(&name, program).map_err(|error| failed(error.into()))
    })
    .await?;
    if found != recorded {
        // The image's files are replaced in place. The current file is the one that its owner
        // wants.
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

/// The current SHA-256 of a local plugin's entry point.
///
/// # Errors
/// The entry point does not exist, cannot be executed, or can be changed by users that the agent
/// does not trust.
pub(super) async fn content(
    spec: &PluginSpec,
    files: &LocalFiles,
) -> Result<Sha256Digest, InstallError> {
    look(program(spec, files), |_| Ok(())).await
}

/// Hashes a program, and checks it further.
async fn look(
    program: PathBuf,
    further: impl FnOnce(&Path) -> Result<(), InstallError> + Send + 'static,
) -> Result<Sha256Digest, InstallError> {
    let failed =
        |error: ManifestError| InstallError { step: InstallStep::Prepare, cause: error.into() };
    let looked = tokio::task::spawn_blocking(move || {
        let found = local_manifests::fingerprint(&program).map_err(failed)?;
        further(&program)?;
        Ok(found)
    });
    looked.await.unwrap_or_else(|_| Err(failed(ManifestError::Panicked)))
}

fn program(spec: &PluginSpec, files: &LocalFiles) -> PathBuf {
    Path::new(&*files.folder).join(spec.entry_point.as_str())
}

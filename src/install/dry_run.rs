//! An installation that leaves no files: returns the content of an archive, and whether it would be
//! installed.
//!
//! `plan` calls this. It does everything that an installation does, signatures and limits included,
//! but in a temporary folder that is deleted again.

use std::path::Path;
use std::sync::Arc;

use guest_agent_actors::model::spec::PluginSpec;
use guest_agent_actors::ports::{Cause, InstallError, InstallStep, Installer, Progress};
use tokio::sync::watch;

use super::pipeline::{Pipeline, PipelineConfig};
use super::trust::Trust;
use crate::config::Config;
use crate::hostinfo::preflight::contents::Contents;

/// The allocation unit of common file systems: the least space of a file or folder.
const BLOCK_BYTES: u64 = 4096;

/// Installs a revision in a temporary folder, measures it, and deletes it.
///
/// # Errors
/// The revision would not be installed.
pub async fn dry_run(config: &Config, spec: &Arc<PluginSpec>) -> Result<Contents, InstallError> {
    let failed = |cause: Cause| InstallError { step: InstallStep::Prepare, cause };
    let scratch = tempfile::tempdir().map_err(|error| failed(error.into()))?;
    let at = |name: &str| scratch.path().join(name);
    let settings = PipelineConfig::configured(
        config,
        at("plugins"),
        at("state"),
        at("log"),
        // An archive that is only checked is not kept.
        (at("cache"), 0),
        at("spool"),
    );
    let trust = Trust::load_or_nobody(&config.trust);
    let pipeline = Pipeline::new(settings, trust).map_err(|error| failed(error.into()))?;
    let pipeline = pipeline.for_dry_run(config.agent.state_dir.clone());
    let (sender, receiver) = watch::channel(Progress::default());
    pipeline.install(Arc::clone(spec), sender).await?;
    let archive_bytes = receiver.borrow().received;
    let revision = at("plugins").join(spec.name.as_str()).join(spec.revision.as_str());
    let measured = tokio::task::spawn_blocking(move || {
        // Held until the folder is measured, and deleted off the event loop.
        let _scratch = scratch;
        measure(&revision)
    });
    let (bytes, files) = measured
        .await
        .map_err(|error| failed(error.into()))?
        .map_err(|error| failed(error.into()))?;
    Ok(Contents { archive_bytes, bytes, files })
}

/// Bytes and files of a folder, with all that is below it.
fn measure(folder: &Path) -> std::io::Result<(u64, u64)> {
    let (mut bytes, mut files) = (BLOCK_BYTES, 1);
    let mut ahead = vec![folder.to_owned()];
    while let Some(folder) = ahead.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let found = entry.metadata()?;
            files += 1;
            if found.is_dir() {
                bytes += BLOCK_BYTES;
                ahead.push(entry.path());
            } else {
                bytes += found.len().next_multiple_of(BLOCK_BYTES);
            }
        }
    }
    Ok((bytes, files))
}

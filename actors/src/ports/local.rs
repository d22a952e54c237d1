//! The port that reads the manifests of plugins that came with the machine.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

use super::Cause;
use crate::model::id::PluginName;
use crate::model::spec::PluginSpec;

/// Reads the folder of local plugins.
#[async_trait]
pub trait LocalPlugins: Send + Sync {
    /// Reads every manifest, and hashes the entry points. An invalid manifest affects no other one.
    async fn scan(&self) -> Result<LocalScan, ScanError>;
}

/// The result of reading all manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalScan {
    /// Every plugin that is to run.
    pub plugins: BTreeMap<PluginName, Arc<PluginSpec>>,
    /// Folders with an invalid manifest, by their name as it can be shown, and the reason.
    pub refused: BTreeMap<String, String>,
}

/// Why the local plugins are unknown.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the local plugins")]
pub struct ScanError {
    /// Why.
    #[source]
    pub cause: Cause,
}

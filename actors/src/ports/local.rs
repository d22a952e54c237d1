//! The port that reads the manifests of plugins that came with the machine.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

use super::Cause;
use crate::model::id::PluginName;
use crate::model::spec::PluginSpec;

/// Knows the folder of local plugins.
#[async_trait]
pub trait LocalPlugins: Send + Sync {
    /// Reads every manifest, and hashes the entry points. A manifest that cannot be used spoils no
    /// other one.
    async fn scan(&self) -> Result<LocalScan, ScanError>;
}

/// What the machine says of its own plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalScan {
    /// Every plugin that is to run.
    pub plugins: BTreeMap<PluginName, Arc<PluginSpec>>,
    /// Folders whose manifest cannot be used, by their name as it can be shown, and why not.
    pub refused: BTreeMap<String, String>,
}

/// Why nothing is known of local plugins.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the local plugins")]
pub struct ScanError {
    /// Why.
    #[source]
    pub cause: Cause,
}

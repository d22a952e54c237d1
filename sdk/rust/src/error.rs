//! Why a plugin's method failed, in the plugin author's words.
//!
//! `service` turns it into a gRPC status; no other module reads it.

use std::error::Error;
use std::io;

use crate::ConfigError;

/// Why a method of [`Plugin`](crate::Plugin) failed.
///
/// The text, with its causes, is shown to operators and sent to the control plane: never put a
/// secret into it.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The plugin does not support this call. From `apply` it makes the agent restart the plugin
    /// with the new configuration.
    #[error("not supported by this plugin")]
    Unsupported,
    /// The configuration cannot be used; trying again with the same one is pointless.
    #[error("bad configuration: {reason}")]
    BadConfig {
        /// The problem of the configuration, without its values.
        reason: String,
    },
    /// The method failed for another reason.
    #[error("{doing}")]
    Failed {
        /// The action that failed, as a fragment that fits after "failed: ".
        doing: String,
        /// The cause, if the error has one.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}

// === impl PluginError ===

impl PluginError {
    /// A configuration that cannot be used, and why.
    pub fn bad_config(reason: impl Into<String>) -> PluginError {
        PluginError::BadConfig { reason: reason.into() }
    }

    /// A failure without a cause.
    pub fn failed(doing: impl Into<String>) -> PluginError {
        PluginError::Failed { doing: doing.into(), source: None }
    }

    /// A failure with its cause:
    /// `.map_err(|e| PluginError::because("cannot open the database", e))`.
    pub fn because(
        doing: impl Into<String>,
        cause: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> PluginError {
        PluginError::Failed { doing: doing.into(), source: Some(cause.into()) }
    }
}

impl From<io::Error> for PluginError {
    fn from(cause: io::Error) -> PluginError {
        PluginError::because("input or output failed", cause)
    }
}

impl From<Box<dyn Error + Send + Sync>> for PluginError {
    fn from(cause: Box<dyn Error + Send + Sync>) -> PluginError {
        PluginError::Failed {
            doing: "the plugin's own work failed".to_owned(),
            source: Some(cause),
        }
    }
}

impl From<ConfigError> for PluginError {
    fn from(error: ConfigError) -> PluginError {
        PluginError::bad_config(error.to_string())
    }
}

impl From<String> for PluginError {
    fn from(doing: String) -> PluginError {
        PluginError::failed(doing)
    }
}

impl From<&str> for PluginError {
    fn from(doing: &str) -> PluginError {
        PluginError::failed(doing)
    }
}

/// An error and its causes on one line: `first: second: third`.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_prints_every_cause_once() {
        let io = io::Error::other("disk on fire");
        let error = PluginError::because("cannot open the database", io);
        assert_eq!(chain(&error), "cannot open the database: disk on fire");
    }

    #[test]
    fn question_mark_works_on_io_errors_and_plain_text() {
        fn reads() -> Result<(), PluginError> {
            std::fs::read("/nonexistent/guest-agent")?;
            Ok(())
        }
        fn says() -> Result<(), PluginError> {
            Err("no licence")?;
            Ok(())
        }
        assert!(chain(&reads().expect_err("the file is missing")).starts_with("input or output"));
        assert_eq!(says().expect_err("always fails").to_string(), "no licence");
    }
}

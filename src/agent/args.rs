//! What the service is started with, and how its configuration is read: at the start, and at every
//! reload.

use std::error::Error as _;

use crate::config::log_filter;
use crate::config::{self, Config, ConfigError, Environment, Sources};

/// What the service is started with.
#[derive(Clone, Debug, PartialEq)]
pub struct RunArgs {
    /// The checked configuration.
    pub config: Config,
    /// Where it came from.
    pub sources: Sources,
    /// Whether plugins stop together with the agent.
    pub stop_plugins: bool,
}

/// Why the service has no configuration to run with.
#[derive(Debug, thiserror::Error)]
pub enum ConfiguredError {
    /// A layer of the configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `GUEST_AGENT_LOG` is not a valid log filter.
    #[error("GUEST_AGENT_LOG: {0}")]
    LogFilter(String),
}

// === impl ConfiguredError ===

impl ConfiguredError {
    /// The error as one line of the log, without its causes.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Config(ConfigError::Problems(problems)) => {
                let s = if problems.len() == 1 { "" } else { "s" };
                format!("the configuration has {} mistake{s}", problems.len())
            }
            Self::Config(_) | Self::LogFilter(_) => self.to_string(),
        }
    }

    /// The causes, the nearest first.
    pub(super) fn causes(&self) -> Vec<String> {
        match self {
            Self::Config(ConfigError::Problems(problems)) => {
                problems.iter().map(ToString::to_string).collect()
            }
            Self::Config(_) | Self::LogFilter(_) => {
                let mut causes = Vec::new();
                let mut next = self.source();
                while let Some(error) = next {
                    causes.push(error.to_string());
                    next = error.source();
                }
                causes
            }
        }
    }
}

/// The current configuration of the service: all layers, and the level in `GUEST_AGENT_LOG`. Read
/// at the start and again at every reload.
///
/// # Errors
/// The mistakes in the configuration.
pub fn configured(
    environment: &dyn Environment,
    sources: &Sources,
) -> Result<Config, ConfiguredError> {
    let mut config = config::load(environment, sources)?.config;
    if let Some(level) = environment.variable("GUEST_AGENT_LOG") {
        log_filter::check(&level).map_err(|wrong| ConfiguredError::LogFilter(wrong.to_string()))?;
        config.log.level = level;
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MapEnvironment;

    fn failed(set: &[&str], log: Option<&str>) -> ConfiguredError {
        let log = log.map(|log| ("GUEST_AGENT_LOG".to_owned(), log.to_owned()));
        let environment =
            MapEnvironment { variables: log.into_iter().collect(), ..Default::default() };
        let set = set.iter().map(|&set| set.to_owned()).collect();
        configured(&environment, &Sources { file: None, set }).expect_err("it cannot be used")
    }

    #[test]
    fn a_line_of_the_log_counts_mistakes_and_names_each_as_a_cause() {
        let error = failed(&["agent.nam=x", "plugins.max_tasks=many"], None);
        assert_eq!(error.reason(), "the configuration has 2 mistakes");
        assert_eq!(error.causes().len(), 2);
        let error = failed(&["agent.nam=x"], None);
        assert_eq!(error.reason(), "the configuration has 1 mistake");
        assert!(error.causes()[0].contains("agent.nam"), "{:?}", error.causes());
        let error = failed(&["nothing"], None);
        let form = "--set \"nothing\" is not of the form section.key=value";
        assert_eq!((&*error.reason(), error.causes().len()), (form, 0));
    }

    #[test]
    fn a_bad_filter_is_named_with_its_variable() {
        let error = failed(&[], Some("a=b=c"));
        assert!(error.reason().starts_with("GUEST_AGENT_LOG: "), "{}", error.reason());
        assert_eq!(error.causes(), [""; 0]);
    }
}

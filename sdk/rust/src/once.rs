//! Plugins that run to completion: no server, no calls, only work and an exit code.
//!
//! The agent launches such a plugin like any other and waits for its end. Exit code 0 is
//! EXECUTION_COMPLETED, anything else EXECUTION_FAILED; the report holds the last lines of its
//! standard output and error.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::error::chain;
use crate::{Arguments, Environment, PluginError, ServiceConfig, Trigger};

/// The environment variable that names the file with the configuration.
const CONFIG: &str = "GUEST_AGENT_CONFIG";

/// The arguments of a run.
#[derive(Clone, Debug)]
pub struct RunContext {
    /// The configuration, if there is one. A structure is JSON text here; [`ServiceConfig::parse`]
    /// reads both forms alike.
    pub config: Option<ServiceConfig>,
    /// The plugin's own directory, which survives upgrades.
    pub state_directory: PathBuf,
    /// The plugin's own arguments, without the agent's.
    pub arguments: Vec<String>,
    /// The plugin's name, revision, directory and host socket.
    pub environment: Environment,
}

/// Runs a plugin that runs to completion: the whole `main` of one.
///
/// Exit code 0 if the work succeeded; otherwise the error with its causes is printed to standard
/// error, where the agent finds it, and the exit code is 1. A panic ends the process with Rust's
/// own code 101.
///
/// SIGTERM asks the process to end: because its time is over, another revision is installed, or the
/// plugin is removed. A process without a handler of its own ends at once.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     guest_agent_plugin::run_once(|run| {
///         std::fs::write(run.state_directory.join("done"), "yes")?;
///         println!("all done");
///         Ok(())
///     })
/// }
/// ```
pub fn run_once(work: impl FnOnce(RunContext) -> Result<(), PluginError>) -> ExitCode {
    match RunContext::from_env().and_then(work) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

// === impl RunContext ===

impl RunContext {
    /// Why this run began. `None` for a process that was started by hand, or by an agent that does
    /// not say it.
    pub fn trigger(&self) -> Option<&Trigger> {
        self.environment.trigger.as_ref()
    }

    /// The arguments of this process. A process that was started by hand, without the agent, has no
    /// configuration and works in the current directory.
    ///
    /// # Errors
    ///
    /// The configuration cannot be read, or the command line is not text.
    pub fn from_env() -> Result<RunContext, PluginError> {
        let environment = Environment::from_env();
        let config = std::env::var_os(CONFIG).filter(|path| !path.is_empty());
        let config = config.map(|path| read_config(Path::new(&path))).transpose()?;
        let arguments = match Arguments::from_env() {
            Ok(arguments) => arguments.own().to_vec(),
            Err(_) => std::env::args_os()
                .skip(1)
                .map(|argument| argument.into_string())
                .collect::<Result<_, _>>()
                .map_err(|_| PluginError::failed("an argument is not valid UTF-8"))?,
        };
        let state_directory = environment.state_directory.clone().unwrap_or_else(|| ".".into());
        Ok(RunContext { config, state_directory, arguments, environment })
    }
}

fn read_config(path: &Path) -> Result<ServiceConfig, PluginError> {
    let read = |error: io::Error| PluginError::because("the configuration cannot be read", error);
    std::fs::read_to_string(path).map(ServiceConfig::String).map_err(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read_from_its_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config");
        std::fs::write(&path, r#"{"port":8}"#).expect("written");
        let config = read_config(&path).expect("read");
        #[derive(serde::Deserialize)]
        struct Settings {
            port: u16,
        }
        assert_eq!(config.parse::<Settings>().expect("it fits").port, 8);
        let missing = read_config(&dir.path().join("none")).expect_err("the file is absent");
        assert!(chain(&missing).contains("cannot be read"), "{missing}");
    }
}

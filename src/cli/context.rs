//! What every verb is given: the flags that all verbs share, the environment, the services and the
//! console.

use std::io::ErrorKind;
use std::path::PathBuf;

use super::client;
use super::console::Console;
use super::failure::{Exit, Failure};
use super::services::Services;
use crate::config::{self, ConfigError, Environment, Sources};

/// Flags of every verb.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Options of every verb")]
pub(super) struct Global {
    /// Socket of the running agent [env: GUEST_AGENT_SOCKET] [default: <runtime_dir>/agent.sock]
    #[arg(long, global = true, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
    /// Print JSON instead of text; `status` takes --json=array for its older form
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "FORM",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "object",
        hide_possible_values = true
    )]
    pub(super) json: Option<JsonForm>,
    /// Configuration file [default: /etc/guest-agent/guest-agent.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Set one configuration key; may be repeated
    #[arg(long, global = true, value_name = "SECTION.KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// Colour the text: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true,
        hide_default_value = true
    )]
    pub(super) color: Colour,
}

/// The form of a JSON document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum JsonForm {
    /// The one of today.
    Object,
    /// An array of plugins, which `status` printed before version 0.2.
    Array,
}

/// When text is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Colour {
    Auto,
    Always,
    Never,
}

/// The arguments of every verb.
pub(super) struct Context<'a, 'c> {
    pub(super) global: Global,
    pub(super) environment: &'a dyn Environment,
    pub(super) services: &'a Services<'a>,
    pub(super) console: &'a mut Console<'c>,
}

// === impl Global ===

impl Global {
    /// Whether JSON is printed.
    pub(super) const fn json(&self) -> bool {
        self.json.is_some()
    }
}

// === impl Context ===

impl Context<'_, '_> {
    pub(super) fn sources(&self) -> Sources {
        Sources { file: self.global.config.clone(), set: self.global.set.clone() }
    }

    pub(super) fn load(&self) -> Result<config::Loaded, Failure> {
        Ok(config::load(self.environment, &self.sources())?)
    }

    /// The agent's socket. The configuration is read only when no flag and no variable names the
    /// socket, so that a user who may not read it can still use the flag.
    pub(super) fn socket(&self) -> Result<PathBuf, Failure> {
        if let Some(path) = &self.global.socket {
            return Ok(path.clone());
        }
        if let Some(path) = self.environment.variable("GUEST_AGENT_SOCKET") {
            return Ok(path.into());
        }
        match config::load(self.environment, &self.sources()) {
            Ok(loaded) => Ok(loaded.config.agent.socket()),
            Err(ConfigError::Read { path, source })
                if source.kind() == ErrorKind::PermissionDenied =>
            {
                let path = path.display();
                let reason = format!(
                    "the agent is not reachable: no permission to read {path}, which says where its \
                     socket is"
                );
                Err(Failure::new(Exit::Unreachable, reason)
                    .because(&source)
                    .hint("run as root, or name the agent's socket with --socket")
                    .kind(source.kind()))
            }
            Err(error @ ConfigError::Read { .. }) => {
                Err(Failure::from(error).hint("name the agent's socket with --socket"))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn connect(&self) -> Result<client::Client, Failure> {
        client::connect(&self.socket()?).await
    }
}

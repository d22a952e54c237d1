//! A whole plugin on one page. It answers questions and remembers its configuration.
//!
//! guest-agent launches it; to try it by hand:
//!
//! ```text
//! cargo run -p guest-agent-plugin --example echo_plugin -- \
//!     --greeting=hello --protocol=unix --address=/tmp/echo.sock
//! ```

use std::process::ExitCode;
use std::sync::Mutex;

use guest_agent_plugin::{
    Arguments, Plugin, PluginError, PluginStatus, ServiceConfig, StartContext, StatusQuery,
    StopContext, VmEvent, async_trait,
};

/// The plugin's state. The methods take `&self` and may be called from several threads, so state
/// that changes is behind a `Mutex`.
struct Echo {
    greeting: String,
    config: Mutex<Option<ServiceConfig>>,
}

#[async_trait]
impl Plugin for Echo {
    /// Called when the socket answers. Return when the work has begun, not when it is done.
    async fn start(&self, context: StartContext) -> Result<(), PluginError> {
        // The agent keeps what the plugin writes to stdout and stderr: `guest-agent logs echo`.
        println!("{}; my files are in {}", self.greeting, context.state_directory.display());
        self.remember(context.config);
        Ok(())
    }

    /// A new configuration while running. Without this method the agent restarts the plugin.
    async fn apply(&self, config: Option<ServiceConfig>) -> Result<(), PluginError> {
        self.remember(config);
        Ok(())
    }

    /// News about the VM. Without this method it arrives as a configuration; this plugin is not
    /// interested.
    async fn vm_event(&self, _: VmEvent, _: ServiceConfig) -> Result<(), PluginError> {
        Err(PluginError::Unsupported)
    }

    /// Health checks and questions. Answer quickly: the agent takes a plugin that does not for
    /// hung.
    async fn status(&self, query: StatusQuery) -> PluginStatus {
        let StatusQuery::Question(question) = query else {
            return PluginStatus::healthy();
        };
        match question.split_once(' ').unwrap_or((&question, "")) {
            ("echo", text) => PluginStatus::answer(text),
            ("pid", _) => PluginStatus::answer(std::process::id().to_string()),
            ("config", _) => PluginStatus::answer(self.config_text()),
            _ => PluginStatus::unhealthy(1, format!("I do not understand {question:?}")),
        }
    }

    /// The last call. The SDK ends the process properly afterwards.
    async fn stop(&self, context: StopContext) -> Result<(), PluginError> {
        println!("goodbye ({:?}, {:?})", context.cleanup, context.deadline);
        Ok(())
    }
}

impl Echo {
    fn remember(&self, config: Option<ServiceConfig>) {
        *self.config.lock().expect("no thread panics while holding it") = config;
    }

    fn config_text(&self) -> String {
        let config = self.config.lock().expect("no thread panics while holding it");
        config.as_ref().map(ServiceConfig::to_text).unwrap_or_default()
    }
}

fn main() -> ExitCode {
    // These are the plugin's own arguments; the SDK reads the agent's. If those are wrong, `main`
    // below prints the error.
    let arguments = Arguments::from_env().ok();
    let greeting = arguments.as_ref().and_then(|own| own.value("--greeting")).unwrap_or("hello");
    guest_agent_plugin::main(Echo { greeting: greeting.to_owned(), config: Mutex::default() })
}

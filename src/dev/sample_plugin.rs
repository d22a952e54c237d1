//! This binary as a plugin: a greeter for `dev` and for trials.
//!
//! A real plugin is a program of its own made with `guest-agent-plugin`; see
//! `plugin-sdk/examples/echo_plugin.rs`. This one differs only in that it needs no second binary.

use std::sync::Mutex;
use std::time::Instant;

use guest_agent_actors::ports::Cause;
use guest_agent_plugin::{
    Arguments, Plugin, PluginError, PluginStatus, ServiceConfig, StartContext, StatusQuery,
    StopContext, async_trait,
};

use crate::dev::SamplePluginArgs;

/// An argument that makes the plugin refuse to start, as a bad release would.
pub const BROKEN: &str = "--broken";

struct Greeter {
    broken: bool,
    started: Instant,
    greeting: Mutex<String>,
}

/// Serves the sample plugin until it is stopped.
///
/// # Errors
/// When its arguments or its socket cannot be used.
pub fn run(args: SamplePluginArgs) -> Result<(), Cause> {
    let arguments = Arguments::parse(args.args)?;
    let greeter = Greeter {
        broken: arguments.has(BROKEN),
        started: Instant::now(),
        greeting: Mutex::new("hello".to_owned()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(guest_agent_plugin::serve_with(greeter, arguments))?)
}

// === impl Greeter ===

impl Greeter {
    fn take(&self, config: Option<&ServiceConfig>) {
        if let Some(config) = config {
            *self.greeting.lock().expect("nobody panics while greeting") = config.to_text();
        }
    }
}

#[async_trait]
impl Plugin for Greeter {
    async fn start(&self, context: StartContext) -> Result<(), PluginError> {
        if self.broken {
            return Err(PluginError::failed("this release is broken on purpose"));
        }
        self.take(context.config.as_ref());
        println!("started; my files are in {}", context.state_directory.display());
        Ok(())
    }

    async fn apply(&self, config: Option<ServiceConfig>) -> Result<(), PluginError> {
        if config.as_ref().and_then(ServiceConfig::vm_event).is_some() {
            return Err(PluginError::Unsupported);
        }
        self.take(config.as_ref());
        Ok(())
    }

    async fn status(&self, query: StatusQuery) -> PluginStatus {
        let greeting = self.greeting.lock().expect("nobody panics while greeting").clone();
        match query {
            StatusQuery::HealthCheck => PluginStatus::healthy()
                .with_line(format!("greeting for {} s", self.started.elapsed().as_secs())),
            StatusQuery::Question(name) => PluginStatus::answer(format!("{greeting}, {name}")),
        }
    }

    async fn stop(&self, context: StopContext) -> Result<(), PluginError> {
        println!("goodbye ({:?})", context.cleanup);
        Ok(())
    }
}

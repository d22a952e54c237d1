//! This binary as a plugin: a greeter for `dev` and for trials.
//!
//! A real plugin is a program of its own made with `guest-agent-plugin`; see
//! `sdk/rust/examples/echo_plugin.rs`. This one differs only in that it needs no second binary.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use guest_agent_actors::ports::Cause;
use guest_agent_plugin::{
    Arguments, Plugin, PluginError, PluginStatus, ServiceConfig, StartContext, StatusQuery,
    StopContext, async_trait,
};

use crate::dev::SamplePluginArgs;

pub mod flaw;

use flaw::Flaw;

/// An argument that makes the plugin refuse to start, as a bad release would.
pub const BROKEN: &str = "--broken";

/// Followed by a kernel on which the plugin crashes soon after its start. The machines of `guest-fleet dev` share
/// one kernel, so each has a file of this name that stands for its own.
const KERNEL: &str = "kernel";

/// How long it takes until the plugin does what its release has wrong. Its Start has been answered by then.
const FIRST_WORK: Duration = Duration::from_millis(100);

/// The exit code of that crash.
const CRASHED: i32 = 70;

/// Followed by the name of what is wrong with it.
pub const FLAW: &str = "--flaw";

struct Greeter {
    broken: bool,
    flaw: Option<Flaw>,
    data: OnceLock<PathBuf>,
    bad_kernel: Option<String>,
    started: Instant,
    greeting: Mutex<String>,
}

/// Serves the sample plugin until it is stopped.
///
/// # Errors
/// When its arguments or its socket cannot be used.
pub fn run(args: SamplePluginArgs) -> Result<(), Cause> {
    let arguments = Arguments::parse(args.args)?;
    let flaw = arguments.value(FLAW).map(|name| <Flaw as clap::ValueEnum>::from_str(name, false));
    let flaw = flaw.transpose()?;
    let greeter = Greeter {
        broken: arguments.has(BROKEN),
        flaw,
        data: OnceLock::new(),
        bad_kernel: arguments.value("--crash-on-kernel").map(str::to_owned),
        started: Instant::now(),
        greeting: Mutex::new("hello".to_owned()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(guest_agent_plugin::serve_with(greeter, arguments))?;
    if let Some(flaw) = flaw {
        flaw.at_end();
    }
    Ok(())
}

/// The kernel of the machine to which a state directory belongs, where a folder above it says so.
fn kernel_of(state_directory: &Path) -> Option<String> {
    let read = |folder: &Path| std::fs::read_to_string(folder.join(KERNEL)).ok();
    state_directory.ancestors().find_map(read).map(|text| text.trim().to_owned())
}

#[expect(clippy::exit, reason = "a crash leaves no time for anything else")]
fn crash_soon(kernel: String) {
    tokio::spawn(async move {
        tokio::time::sleep(FIRST_WORK).await;
        eprintln!("this release does not run on the kernel {kernel}");
        std::process::exit(CRASHED);
    });
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
        if let Some(kernel) = &self.bad_kernel
            && kernel_of(&context.state_directory).as_ref() == Some(kernel)
        {
            crash_soon(kernel.clone());
        }
        self.take(context.config.as_ref());
        let data = self.data.get_or_init(|| context.state_directory.clone());
        if let Some(flaw) = self.flaw {
            flaw.at_start(data).map_err(PluginError::failed)?;
        }
        println!("started; my files are in {}", context.state_directory.display());
        Ok(())
    }

    async fn apply(&self, config: Option<ServiceConfig>) -> Result<(), PluginError> {
        if config.as_ref().and_then(ServiceConfig::vm_event).is_some() {
            if self.flaw == Some(Flaw::FearsTheMachine) {
                return Err(PluginError::failed("what is this?"));
            }
            return Err(PluginError::Unsupported);
        }
        if let Some(flaw) = self.flaw {
            let text = config.as_ref().map(ServiceConfig::to_text).unwrap_or_default();
            flaw.at_apply(&text).map_err(PluginError::failed)?;
        }
        self.take(config.as_ref());
        Ok(())
    }

    async fn status(&self, query: StatusQuery) -> PluginStatus {
        if let Some(flaw) = self.flaw {
            match &query {
                StatusQuery::HealthCheck => flaw.at_health().await,
                StatusQuery::Question(_) => flaw.at_question(),
            }
        }
        let greeting = self.greeting.lock().expect("nobody panics while greeting").clone();
        match query {
            StatusQuery::HealthCheck => PluginStatus::healthy()
                .with_line(format!("greeting for {} s", self.started.elapsed().as_secs())),
            StatusQuery::Question(name) => PluginStatus::answer(format!("{greeting}, {name}")),
        }
    }

    async fn stop(&self, context: StopContext) -> Result<(), PluginError> {
        if let (Some(flaw), Some(data)) = (self.flaw, self.data.get()) {
            flaw.at_stop(data).await;
        }
        println!("goodbye ({:?})", context.cleanup);
        Ok(())
    }
}

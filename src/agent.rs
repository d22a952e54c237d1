//! The service: makes the adapters, starts the actors on them, runs until a signal, and stops.
//!
//! ```text
//!  Adapters::make ─────────► Service::start ─────► run_until ───────► Service::stop
//!
//!  lock of the state dir     actors                a signal: stop     STOPPING=1, log line
//!  identity, traces          host socket             or reload        plugins notified
//!  local socket (bound)      metrics, HTTP         a fault:           helper tasks
//!  control groups            local socket            an actor,        link (at most 3 s)
//!  cache, store or standby   command socket          local socket,    HTTP (a bound of its own)
//!  launcher, plugins' logs   link                    link,            host socket
//!  link (not connected)      start report            another machine  local socket
//!  keys, installer           attributes                               gate, admission
//!  sweeper                   forwarding and trimming of logs          plugins, if they stop
//!                            service manager                          last lazy writes
//!                            reports of losses                        last lines of plugins
//!                            giving memory back                       command socket
//!                            log line: ready                          socket files
//!                                                                     control groups
//!                                                                     log, traces
//!                                                                     lock
//! ```
//!
//! Each column is read from top to bottom. The local socket and the link do not wait for plugins:
//! plugins come back beside them. Stopping the agent leaves plugins running; the next agent process
//! adopts them.
//!
//! | file | what it does |
//! |---|---|
//! | `args.rs` | what the service is started with; reads the configuration |
//! | `adapters.rs` · `places.rs` · `link.rs` | makes the adapters · directories · the link |
//! | `ground.rs` | the lock and the store, or what stands in for them |
//! | `adoption.rs` | adopts the plugins of a store that was lost |
//! | `settings.rs` | the settings of the actors |
//! | `service.rs` · `tasks.rs` | starts, runs and stops · the tasks beside the actors |
//! | `fault.rs` | what ends the service without a signal |
//! | `signals.rs` · `reconfigure.rs` | what signals ask for · a changed configuration |
//! | `goodbye.rs` | notifies plugins of the end, stops them, writes what is left |
//! | `attributes.rs` | follows the metadata server |
//! | `memory.rs` | gives memory back after a burst of work |
//! | `report.rs` | tells the control plane how the start went |

use std::time::SystemTime;

use guest_agent_actors::ports::Cause;

use crate::config::Config;
use crate::install::trust::Trust;

mod adapters;
mod adoption;
mod args;
mod attributes;
mod fault;
mod goodbye;
mod ground;
mod link;
mod memory;
mod places;
mod reconfigure;
pub mod reload;
mod report;
mod service;
mod settings;
pub mod shutdown;
mod signals;
pub mod systemd;
mod tasks;
mod windows;

use adapters::Adapters;
pub use args::{ConfiguredError, RunArgs, configured};
use service::Service;
use signals::Signals;

/// Most threads for what blocks. The disk limits a burst of installations, not the number of
/// threads, and each thread has a stack and, with some allocators, a heap of its own. But a few
/// threads that hang in the kernel must not stop the rest.
const BLOCKING_THREADS_MAX: usize = 64;

/// Runs the service until SIGTERM or SIGINT.
///
/// # Errors
/// The service cannot start: another agent uses the state directory, a directory cannot be made,
/// the store or the socket cannot be used. Or a necessary part of it panicked; then the service
/// manager starts it again.
pub fn run(args: RunArgs) -> Result<(), Cause> {
    // This fails only if a provider is installed already, and that is the same one.
    drop(rustls::crypto::ring::default_provider().install_default());
    let runtime = runtime()?;
    actix_rt::System::with_tokio_rt(|| runtime).block_on(serve(args))
}

/// All tasks that do not block run on this one thread: a message between actors then costs half a
/// microsecond.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
}

async fn serve(args: RunArgs) -> Result<(), Cause> {
    let started_at = SystemTime::now();
    // Listening for signals comes first: from here on a signal means an orderly stop.
    let mut signals = Signals::new()?;
    let adapters = Adapters::make(&args.config).await?;
    let mut service = Service::start(args, adapters, started_at).await;
    let fault = service.run_until(&mut signals).await;
    service.stop(fault.as_ref()).await;
    fault.map_or(Ok(()), |fault| Err(fault.into()))
}

/// Checks everything that would keep the service from starting, beyond the checks of `config`.
/// `config check` calls this, so that it reports the same errors as `run`.
///
/// # Errors
/// The first error that would keep the service from starting.
pub fn check(config: &Config) -> Result<(), Cause> {
    adapters::metadata_client(config)?;
    Trust::load(&config.trust)?;
    link::check(&config.control_plane)
}

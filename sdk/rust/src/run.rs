//! From a plugin to a process: arguments, error log, signals, runtime, exit code.
//!
//! This module changes the state of the whole process; [`Server`] does the rest.

use std::future::Future;
use std::io;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::chain;
use crate::{Arguments, ErrorLog, Plugin, ServeError, Server};

/// Serves the plugin until it is stopped: the whole `main` of a plugin.
///
/// Exit code 0 after a stop; otherwise the error is printed to stderr and appended to the error
/// log, and the exit code is 1.
pub fn main<P: Plugin>(plugin: P) -> ExitCode {
    match serve_blocking(plugin) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Serves the plugin until it is stopped, on a tokio runtime of its own with two worker threads:
/// a method that blocks one of them does not keep health checks from being answered.
///
/// When it returns, tasks of that runtime that still run are abandoned without waiting. Otherwise
/// like [`serve_with`].
///
/// # Errors
///
/// [`ServeError`]; it has been appended to the error log already.
pub fn serve_blocking<P: Plugin>(plugin: P) -> Result<(), ServeError> {
    let arguments = process_arguments()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("plugin")
        .enable_all()
        .build()
        .map_err(|error| logged(&arguments, ServeError::Runtime(error)))?;
    let served = runtime.block_on(serve_with(plugin, arguments));
    runtime.shutdown_background();
    served
}

/// Serves the plugin until it is stopped, with the process's own arguments, on the runtime of the
/// caller: for `#[tokio::main]`.
///
/// ```no_run
/// # use guest_agent_plugin::{Plugin, PluginError, ServeError, StartContext, async_trait};
/// # struct Quiet;
/// # #[async_trait]
/// # impl Plugin for Quiet {
/// #     async fn start(&self, _: StartContext) -> Result<(), PluginError> { Ok(()) }
/// # }
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), ServeError> {
///     guest_agent_plugin::serve(Quiet).await
/// }
/// ```
///
/// On a runtime with one thread, as here, a method that blocks delays all other answers.
///
/// Otherwise like [`serve_with`].
///
/// # Errors
///
/// [`ServeError`]; it has been appended to the error log already.
pub async fn serve<P: Plugin>(plugin: P) -> Result<(), ServeError> {
    let arguments = process_arguments()?;
    serve_with(plugin, arguments).await
}

/// Serves the plugin until it is stopped, with the arguments given.
///
/// From this call on panics are appended to the error log, if the arguments name one, and `SIGTERM`
/// and `SIGINT` stop the plugin as a Stop call would (keeping its traces, within 10 s) instead of
/// ending the process; they keep being caught after it returned. After a stop, calls in flight are
/// finished (for at most 2 s) and the socket's file is removed; return from `main` then, so that
/// the process ends.
///
/// # Errors
///
/// [`ServeError`]; it has been appended to the error log already.
pub async fn serve_with<P: Plugin>(plugin: P, arguments: Arguments) -> Result<(), ServeError> {
    if let Some(path) = arguments.error_log() {
        ErrorLog::new(path).record_panics();
    }
    let served = async {
        let signal = end_signal().map_err(ServeError::Runtime)?;
        Server::bind(plugin, arguments.address())?.run_until(signal).await
    };
    served.await.map_err(|error| logged(&arguments, error))
}

/// Reads the command line. If it is wrong, the error log it names may still be usable.
fn process_arguments() -> Result<Arguments, ServeError> {
    Arguments::from_env().map_err(|error| {
        let error = ServeError::Arguments(error);
        if let Some(path) = Arguments::error_log_from_env() {
            append(&ErrorLog::new(path), &error);
        }
        error
    })
}

fn logged(arguments: &Arguments, error: ServeError) -> ServeError {
    if let Some(path) = arguments.error_log() {
        append(&ErrorLog::new(path), &error);
    }
    error
}

fn append(log: &ErrorLog, error: &ServeError) {
    if let Err(trouble) = log.append(&format!("error: {}", chain(error))) {
        eprintln!("cannot write the error log {}: {trouble}", log.path().display());
    }
}

/// Completes with the first SIGTERM or SIGINT after this call.
fn end_signal() -> io::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            () = received(&mut terminate) => {}
            () = received(&mut interrupt) => {}
        }
    })
}

async fn received(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        // The runtime is ending, so no signal will arrive any more.
        std::future::pending::<()>().await;
    }
}

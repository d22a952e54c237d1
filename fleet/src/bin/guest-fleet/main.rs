//! `guest-fleet`: serves agents and artifacts from one machine.
//!
//! Parses the command line and runs [`serve`]; logs are written to stderr, one line per event of an
//! agent to stdout.

mod desired;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use guest_fleet::cli;
use tracing_subscriber::EnvFilter;

/// The self-hosted control plane that guest-agents connect to.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Serve agents until SIGTERM or SIGINT; SIGHUP reads the desired state again.
    Serve(serve::Options),
    /// The fleet's authority: make, show, rotate.
    #[command(subcommand)]
    Ca(cli::ca::Verb),
}

fn main() -> ExitCode {
    let Cli { verb } = Cli::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn")),
        )
        .init();
    match run(verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Serve(options) => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(serve::run(options)),
        Verb::Ca(verb) => Ok(cli::ca::run(verb, &mut std::io::stdout().lock())?),
    }
}

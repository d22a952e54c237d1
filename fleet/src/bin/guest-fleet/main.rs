//! `guest-fleet`: serves agents and artifacts, and asks and changes what a fleet should run.
//!
//! Parses the command line and runs [`serve`] or a verb of the library; answers go to stdout, logs and
//! failures to stderr.

mod desired;
mod ledger;
mod serve;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use guest_fleet::cli;
use guest_fleet::cli::context::{Caller, Context, Output};
use guest_fleet::cli::failure::{Exit, Failure};
use guest_fleet::zones::IanaZones;
use tracing_subscriber::EnvFilter;

/// The self-hosted control plane that guest-agents connect to.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// The ledger of the fleet.
    #[arg(
        long,
        global = true,
        env = "GUEST_FLEET_LEDGER",
        default_value = "/var/lib/guest-fleet/ledger.db",
        value_name = "PATH"
    )]
    ledger: PathBuf,
    /// Print JSON documents.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Verb {
    /// Serve agents until SIGTERM or SIGINT; SIGHUP reads the desired state again.
    Serve(serve::Options),
    #[command(flatten)]
    Fleet(cli::Verb),
}

fn main() -> ExitCode {
    let arguments = Cli::parse();
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(
            EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn")),
        )
        .init();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return ended(Err(Failure::of(Exit::Failed, &error))),
    };
    match arguments.verb {
        Verb::Serve(options) => match runtime.block_on(serve::run(options)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        },
        Verb::Fleet(verb) => {
            let output = if arguments.json { Output::Json } else { Output::Text };
            ended(runtime.block_on(run(&verb, &arguments.ledger, output)))
        }
    }
}

async fn run(verb: &cli::Verb, path: &std::path::Path, output: Output) -> Result<Exit, Failure> {
    let ledger = ledger::open(path)?;
    let sudo = std::env::var("SUDO_USER").ok();
    let mut context = Context {
        ledger: &*ledger,
        out: &mut io::stdout().lock(),
        remarks: &mut io::stderr().lock(),
        input: &mut io::stdin().lock(),
        output,
        caller: Caller::of_process(sudo.as_deref()),
        now: jiff::Timestamp::now(),
        zones: &IanaZones,
    };
    cli::run(verb, &mut context).await
}

fn ended(result: Result<Exit, Failure>) -> ExitCode {
    match result {
        Ok(exit) => exit.into(),
        // The reader of the pipe has enough.
        Err(failure) if failure.exit == Exit::Done => ExitCode::SUCCESS,
        Err(failure) => {
            eprint!("{}", failure.text());
            failure.exit.into()
        }
    }
}

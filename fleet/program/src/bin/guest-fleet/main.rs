//! `guest-fleet`: serves agents and artifacts, and asks and changes what a fleet should run.
//!
//! Parses the command line and runs [`serve`] or a verb of the library; answers go to stdout, logs and
//! failures to stderr.

mod dev;
mod ledger;
mod log;
mod pages;
mod serve;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use guest_fleet::cli;
use guest_fleet::cli::context::{Caller, Context, Output};
use guest_fleet::cli::failure::{Exit, Failure};
use guest_fleet_server::artifacts::named::Named;
use guest_fleet_server::configuration::Configuration;
use guest_fleet_server::zones::IanaZones;
use ledger::Place;

/// The self-hosted control plane that guest-agents connect to.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// The ledger of the fleet: a file, or `nats://HOST:PORT,…?OPTIONS`.
    #[arg(
        long,
        global = true,
        env = "GUEST_FLEET_LEDGER",
        default_value = "/var/lib/guest-fleet/ledger.db",
        value_name = "PLACE"
    )]
    ledger: Place,
    /// Print JSON documents.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Verb {
    /// Serve agents until SIGTERM or SIGINT.
    Serve(Box<serve::Options>),
    /// Run a fleet on this machine: the server, ten agents and a plugin, without root and without a network.
    #[command(after_help = dev::EXAMPLES)]
    Dev(dev::Options),
    /// Clear up after `dev`.
    #[command(hide = true)]
    DevKeeper(dev::keeper::Options),
    /// Make, show and rotate the fleet's authority; it is in a directory beside the ledger.
    Ca(cli::ca::Options),
    /// Push, list and delete artifacts.
    Artifact(cli::artifact::ArtifactArgs),
    /// Copy the ledger into a file while it is in use; the file is a ledger of one machine.
    Backup {
        /// The new file.
        path: PathBuf,
    },
    /// Put a copy in the place of the ledger, which nothing may use meanwhile; on NATS it has to be empty.
    Restore {
        /// The copy.
        from: PathBuf,
        /// Replace the ledger that is there; it is lost.
        #[arg(long)]
        replace: bool,
    },
    #[command(flatten)]
    Fleet(cli::Verb),
    /// Write the manual pages.
    Man {
        /// The directory for them; it is made.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Print what a shell reads to complete command lines of this program.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

fn main() -> ExitCode {
    let arguments = Cli::parse();
    log::start(match &arguments.verb {
        Verb::Serve(options) => Some(&options.log),
        _ => None,
    });
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return ended(Err(Failure::of(Exit::Failed, &error))),
    };
    let output = if arguments.json { Output::Json } else { Output::Text };
    ended(runtime.block_on(dispatch(arguments.verb, &arguments.ledger, output)))
}

async fn dispatch(verb: Verb, place: &Place, output: Output) -> Result<Exit, Failure> {
    match verb {
        Verb::Serve(options) => {
            let served = serve::run(*options, place.open().await?).await;
            served.map_err(|error| Failure::of(Exit::Failed, error.as_ref()))?;
        }
        Verb::Dev(options) => return dev::run(options).await,
        Verb::DevKeeper(options) => return dev::keeper::run(&options),
        Verb::Ca(options) => {
            return cli::ca::run(&options, output, &mut io::stdout().lock());
        }
        Verb::Artifact(options) => {
            let named = async || {
                let ledger = place.open().await.map_err(|failure| failure.text())?;
                let read = Configuration::load(&*ledger.shared()).await;
                let read = read.map_err(|error| error.to_string())?;
                Ok(Named::of(read.view()))
            };
            cli::artifact::run(options, named, &mut io::stdout().lock())
                .await
                .map_err(|error| Failure::of(Exit::Failed, &error))?;
        }
        Verb::Backup { path: copy } => place.open().await?.backup(&copy).await?,
        Verb::Restore { from, replace } => place.restore(from, replace).await?,
        Verb::Man { out } => pages::man(Cli::command(), &out, &mut io::stdout().lock())?,
        Verb::Completions { shell } => {
            pages::completions(Cli::command(), shell, &mut io::stdout().lock());
        }
        Verb::Fleet(verb) => return run(&verb, place, output).await,
    }
    Ok(Exit::Done)
}

async fn run(verb: &cli::Verb, place: &Place, output: Output) -> Result<Exit, Failure> {
    let ledger = place.open().await?.shared();
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

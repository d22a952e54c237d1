//! The command line.
//!
//! ```text
//! main.rs ─► main ─► one file per verb ─► client.rs ─► the agent's socket
//!                          │                 follow.rs: the progress of an order
//!                          └─► Services: run, dev, sample-plugin, pack
//! ```
//!
//! [`main`] takes everything it depends on as an argument, so that a test is a call: the arguments,
//! the environment, the services that are not clients of a running agent, and a console. It never
//! ends the process; it returns how the process is to end.

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::Environment;
use crate::dev::DevArgs;
use crate::process::logs::keeper::{self, KeeperArgs};

mod act;
mod apply;
mod audit;
mod awaited;
mod brief;
mod client;
mod comeback;
mod completions;
mod config_verb;
mod console;
mod context;
mod dev;
mod dismiss;
mod doctor;
mod ends;
mod enroll;
mod events;
mod explain;
mod failure;
#[cfg(test)]
mod fake;
mod follow;
mod format;
mod http_token;
mod install;
mod json;
mod judge;
mod keygen;
mod limit;
mod logs;
mod man;
mod moment;
mod order;
pub mod pack;
mod plan;
mod progress;
mod registry;
mod remove;
mod restart;
mod run;
mod sample_plugin;
pub mod schemas;
mod services;
mod status;
mod submit;
mod support_bundle;
#[cfg(test)]
mod tests;
mod top;
mod upload;
mod vm_event;
mod wait;
mod waiting;

pub use console::Console;
pub use failure::{Exit, Failure};
pub use services::Services;

use context::{Colour, Context, Global, JsonForm};

/// The service inside a VM that a control plane tells which plugins should run there.
#[derive(Debug, Parser)]
#[command(name = "guest-agent", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Arguments {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 usage, 3 agent not reachable, 4 timed out waiting.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the service, or a one-shot plugin now
    Run(run::Flags),
    /// Run everything on this machine, without root and without a network
    Dev(DevArgs),
    /// Show what runs, what is pending and why not
    Status(status::Flags),
    /// Watch all plugins: states, load, memory, events
    Top(top::Flags),
    /// Install a plugin, or change how it is configured
    Install(install::Flags),
    /// Say what an install would do, without doing it
    Plan(plan::Flags),
    /// Remove a plugin and its data
    Remove(remove::Flags),
    /// Hand a plugin another configuration
    Apply(apply::Flags),
    /// Stop a plugin and start it again
    Restart(restart::Flags),
    /// Stop a plugin until it is started again
    Stop(act::Stop),
    /// Start a plugin that was stopped
    Start(act::Start),
    /// Return to the revision before
    Rollback(act::Rollback),
    /// Make orders for a plugin wait
    Hold(act::Hold),
    /// End a hold, and let a revision in again that was rolled back
    Release(act::Release),
    /// Make the failure of a revision count no more
    Dismiss(dismiss::Flags),
    /// Give a plugin other limits than its orders do, until `--reset`
    Limit(limit::Flags),
    /// Say why a plugin is in the state it is in
    Explain(explain::Flags),
    /// Wait until a plugin is in a state, or answers with a code
    Wait(wait::Flags),
    /// Show what happened to plugins
    Events(events::Flags),
    /// Show what people asked of this agent, and who they are
    Audit(audit::Flags),
    /// Show what plugins printed, or what the agent logged
    Logs(logs::Flags),
    /// Say what is wrong on this machine, and how to put it right
    Doctor(doctor::Flags),
    /// Collect what somebody else needs to find out what is wrong, without secrets
    SupportBundle(support_bundle::Flags),
    /// Tell all plugins what happens to the machine
    VmEvent(vm_event::Flags),
    /// Show what plugins offer each other
    Registry(registry::Flags),
    /// Make an archive of a plugin's directory, and the order that installs it
    Pack(pack::Flags),
    /// Make a pair of keys to sign archives with
    Keygen(keygen::Flags),
    /// Make this machine an agent of a fleet, with a certificate of its own
    Enroll(enroll::Flags),
    /// Make, list and revoke tokens for HTTP
    HttpToken(http_token::Flags),
    /// Check or show the configuration
    Config(config_verb::Flags),
    /// Print what makes a shell complete command lines of this program
    Completions(completions::Flags),
    /// Write the manual pages
    Man(man::Flags),
}

/// Parses the arguments (the program's name comes first) and runs the verb. Everything is printed
/// on the console when this returns.
pub fn main<I>(
    arguments: I,
    environment: &dyn Environment,
    services: &Services<'_>,
    console: &mut Console<'_>,
) -> Exit
where
    I: IntoIterator<Item = OsString>,
{
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // The arguments of a plugin belong to the plugin: clap must not read one of them as a flag of
    // the agent. So this verb, which no person types, does not pass through the parser.
    if let [_, verb, rest @ ..] = arguments.as_slice()
        && verb == sample_plugin::VERB
    {
        return match sample_plugin::run(rest, services) {
            Ok(()) => Exit::Done,
            Err(failure) => console.fail(&failure),
        };
    }
    if let [_, verb, rest @ ..] = arguments.as_slice()
        && verb == keeper::VERB
    {
        return match keep_logs(rest, services) {
            Ok(()) => Exit::Done,
            Err(failure) => console.fail(&failure),
        };
    }
    if let Some(shell) = environment.variable(completions::VARIABLE) {
        return match completions::answer(
            &shell,
            &arguments,
            Arguments::command(),
            environment,
            console.out,
        ) {
            Ok(()) => Exit::Done,
            Err(failure) => console.fail(&failure),
        };
    }
    let parsed = Arguments::command()
        .term_width(console.columns())
        .try_get_matches_from(&arguments)
        .map_err(|error| {
            brief::or_brief(error, &arguments, Arguments::command().term_width(console.columns()))
        })
        .and_then(|matches| Arguments::from_arg_matches(&matches));
    let Arguments { global, verb } = match parsed {
        Ok(arguments) => arguments,
        Err(error) => return console.usage(&error),
    };
    console.colour = match global.color {
        Colour::Auto => console.colour,
        Colour::Always => true,
        Colour::Never => false,
    };
    let context = Context { global, environment, services, console: &mut *console };
    match perform(verb, context) {
        Ok(()) => Exit::Done,
        Err(failure) => console.fail(&failure),
    }
}

/// No person types this verb either; the agent runs it.
fn keep_logs(arguments: &[OsString], services: &Services<'_>) -> Result<(), Failure> {
    let kept = KeeperArgs::parse(arguments).and_then(|args| (services.keep_logs)(args));
    kept.map_err(|error| Failure::of(&*error))
}

fn perform(verb: Verb, context: Context<'_, '_>) -> Result<(), Failure> {
    if context.global.json == Some(JsonForm::Array) && !matches!(verb, Verb::Status(_)) {
        return Err(Failure::new(Exit::Usage, "--json=array is for `status` alone"));
    }
    match verb {
        Verb::Run(flags) => match flags.plugin {
            Some(name) => wait_for(act::run(name, flags.waiting, context)),
            None => run::run(flags, context),
        },
        Verb::Dev(args) => dev::run(args, context),
        Verb::Pack(flags) => pack::run(flags, context),
        Verb::Keygen(flags) => keygen::run(flags, context),
        Verb::Enroll(flags) => wait_for(enroll::run(flags, context)),
        Verb::HttpToken(flags) => http_token::run(flags, context),
        Verb::Config(flags) => config_verb::run(flags, context),
        Verb::Completions(flags) => completions::run(&flags, &Arguments::command(), context),
        Verb::Man(flags) => man::run(flags, Arguments::command(), context),
        Verb::Status(flags) => wait_for(status::run(flags, context)),
        Verb::Top(flags) => wait_for(top::run(flags, context)),
        Verb::Install(flags) => wait_for(install::run(flags, context)),
        Verb::Plan(flags) => wait_for(plan::run(flags, context)),
        Verb::Remove(flags) => wait_for(remove::run(flags, context)),
        Verb::Apply(flags) => wait_for(apply::run(flags, context)),
        Verb::Restart(flags) => wait_for(restart::run(flags, context)),
        Verb::Stop(flags) => wait_for(act::stop(flags, context)),
        Verb::Start(flags) => wait_for(act::start(flags, context)),
        Verb::Rollback(flags) => wait_for(act::rollback(flags, context)),
        Verb::Hold(flags) => wait_for(act::hold(flags, context)),
        Verb::Release(flags) => wait_for(act::release(flags, context)),
        Verb::Dismiss(flags) => wait_for(dismiss::run(flags, context)),
        Verb::Limit(flags) => wait_for(limit::run(flags, context)),
        Verb::Explain(flags) => wait_for(explain::run(flags, context)),
        Verb::Wait(flags) => wait_for(wait::run(flags, context)),
        Verb::Events(flags) => wait_for(events::run(flags, context)),
        Verb::Audit(flags) => wait_for(audit::run(flags, context)),
        Verb::Doctor(flags) => wait_for(doctor::run(flags, context)),
        Verb::SupportBundle(flags) => wait_for(support_bundle::run(flags, context)),
        Verb::VmEvent(flags) => wait_for(vm_event::run(flags, context)),
        Verb::Registry(flags) => wait_for(registry::run(flags, context)),
        Verb::Logs(flags) => wait_for(logs::run(flags, context)),
    }
}

/// Runs a verb that talks to the agent.
fn wait_for(verb: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed("failed to start an event loop").because(&error))?;
    runtime.block_on(verb)
}

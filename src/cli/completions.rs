//! `completions`: what a shell reads to complete this program's command lines.
//!
//! The script only runs this program again for every word, so that it is never out of date and
//! completes the names of plugins on this machine:
//!
//! ```text
//! shell ─► script ─► GUEST_AGENT_COMPLETE=bash guest-agent -- words… ─► answer ─► the agent, if it is there
//! ```
//!
//! A person who presses Tab must not wait: an agent that does not answer at once has no plugins.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::Command;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use guest_agent_proto::host::registry_client::RegistryClient;
use guest_agent_proto::host::{ListRequest, Offer};

use super::client;
use super::context::Context;
use super::failure::Failure;
use crate::config::{self, Environment, Sources};

/// The environment variable that the script sets; it holds the name of the shell.
pub(super) const VARIABLE: &str = "GUEST_AGENT_COMPLETE";

/// How long a person is kept waiting for names.
const PATIENCE: Duration = Duration::from_millis(500);

/// Verbs whose first argument is the name of an existing plugin.
const OF_PLUGINS: [&str; 18] = [
    "status", "install", "remove", "restart", "apply", "explain", "wait", "events", "audit",
    "logs", "run", "stop", "start", "rollback", "hold", "release", "dismiss", "limit",
];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  source <(guest-agent completions bash)
  guest-agent completions bash >/etc/bash_completion.d/guest-agent
  guest-agent completions zsh >/usr/local/share/zsh/site-functions/_guest-agent
  guest-agent completions fish >~/.config/fish/completions/guest-agent.fish")]
pub(super) struct Flags {
    /// The shell that is to read it
    #[arg(value_parser = ["bash", "elvish", "fish", "powershell", "zsh"])]
    shell: String,
}

pub(super) fn run(
    flags: &Flags,
    command: &Command,
    context: Context<'_, '_>,
) -> Result<(), Failure> {
    let name = command.get_name();
    let shells = Shells::builtins();
    let shell = shells.completer(&flags.shell);
    let shell = shell.ok_or_else(|| Failure::usage("this shell is not known"))?;
    shell.write_registration(VARIABLE, name, name, name, context.console.out)?;
    Ok(())
}

/// Answers a shell: prints the completions of the last word. The words follow the first `--`.
pub(super) fn answer(
    shell: &str,
    arguments: &[OsString],
    command: Command,
    environment: &dyn Environment,
    out: &mut dyn std::io::Write,
) -> Result<(), Failure> {
    let shells = Shells::builtins();
    let shell = shells.completer(shell).ok_or_else(|| {
        let known: Vec<_> = shells.names().collect();
        Failure::usage(format_args!("{VARIABLE}={shell} is not a known shell"))
            .hint(format_args!("use one of {}", known.join(", ")))
    })?;
    let words: Vec<OsString> =
        arguments.iter().skip_while(|word| *word != "--").skip(1).cloned().collect();
    let mut command = asking(command, socket(&words, environment));
    let here = std::env::current_dir().ok();
    shell.write_complete(&mut command, words, here.as_deref(), out)?;
    Ok(())
}

/// The socket that the words name, or the usual one.
fn socket(words: &[OsString], environment: &dyn Environment) -> Option<PathBuf> {
    let mut words = words.iter();
    let (mut named, mut sources) = (None, Sources::default());
    while let Some(word) = words.next() {
        let Some(word) = word.to_str() else { continue };
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (word, None),
        };
        let known = ["--socket", "--config", "--set"].contains(&flag);
        let Some(value) = known
            .then(|| value.or_else(|| words.next().map(|next| next.to_string_lossy().into_owned())))
            .flatten()
        else {
            continue;
        };
        match flag {
            "--socket" => named = Some(value.into()),
            "--config" => sources.file = Some(value.into()),
            _ => sources.set.push(value),
        }
    }
    named.or_else(|| environment.variable("GUEST_AGENT_SOCKET").map(PathBuf::from)).or_else(|| {
        config::load(environment, &sources).ok().map(|loaded| loaded.config.agent.socket())
    })
}

/// The command, with arguments that know what the agent on this socket has.
fn asking(mut command: Command, socket: Option<PathBuf>) -> Command {
    let of = |list: fn(PathBuf) -> Option<Vec<String>>| {
        let socket = socket.clone();
        completer(move || list(socket.clone()?))
    };
    let (plugins, names, kinds) = (of(plugins), of(names), of(kinds));
    // Not `mut_arg`, which puts the argument behind the others.
    for verb in OF_PLUGINS {
        command = command.mut_subcommand(verb, |verb| {
            verb.mut_args(|arg| match arg.get_id().as_str() {
                "name" => arg.add(plugins.clone()),
                _ => arg,
            })
        });
    }
    command.mut_subcommand("registry", |registry| {
        registry.mut_subcommands(|verb| {
            verb.mut_args(|arg| match arg.get_id().as_str() {
                "name" => arg.add(names.clone()),
                "kind" => arg.add(kinds.clone()),
                _ => arg,
            })
        })
    })
}

/// Completes a word from a list; there may be none.
fn completer(list: impl Fn() -> Option<Vec<String>> + Send + Sync + 'static) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let current = current.to_string_lossy();
        let mut fitting: Vec<String> = list().unwrap_or_default();
        fitting.retain(|name| name.starts_with(&*current) && !name.contains(char::is_control));
        fitting.sort();
        fitting.dedup();
        fitting.into_iter().map(CompletionCandidate::new).collect()
    })
}

fn plugins(socket: PathBuf) -> Option<Vec<String>> {
    soon(async move {
        let mut client = client::connect(&socket).await.ok()?;
        let status = client::status(&mut client).await.ok()?;
        Some(status.plugins.into_iter().map(|plugin| plugin.name).collect())
    })
}

fn names(socket: PathBuf) -> Option<Vec<String>> {
    Some(offers(socket)?.into_iter().map(|offer| offer.name).collect())
}

fn kinds(socket: PathBuf) -> Option<Vec<String>> {
    Some(offers(socket)?.into_iter().map(|offer| offer.r#type).collect())
}

/// What plugins offer each other.
fn offers(socket: PathBuf) -> Option<Vec<Offer>> {
    soon(async move {
        let mut client = RegistryClient::new(client::channel(&socket).await.ok()?);
        let listed = client.list(ListRequest::default()).await.ok()?.into_inner();
        Some(listed.entries.into_iter().filter_map(|entry| entry.offer).collect())
    })
}

fn soon<T>(asking: impl Future<Output = Option<T>>) -> Option<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async { tokio::time::timeout(PATIENCE, asking).await.ok().flatten() })
}

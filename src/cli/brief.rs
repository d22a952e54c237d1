//! The short help: `-h` has what `--help` has, without the options that every verb has and without
//! what stands below the options, such as examples.

use std::ffi::OsString;

use clap::Command;
use clap::error::ErrorKind;

/// The error of clap that is to be printed: for `-h`, the short help instead of the long one.
pub(super) fn or_brief(
    error: clap::Error,
    arguments: &[OsString],
    command: Command,
) -> clap::Error {
    if error.kind() != ErrorKind::DisplayHelp || !arguments.iter().any(|word| word == "-h") {
        return error;
    }
    brief(command, Depth::Top).try_get_matches_from(arguments).err().unwrap_or(error)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Top,
    Verb,
}

fn brief(command: Command, depth: Depth) -> Command {
    let command = command
        .mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg })
        .mut_subcommands(|verb| brief(verb, Depth::Verb));
    match depth {
        Depth::Top => command,
        Depth::Verb => command.after_help("--help has examples and the options of every verb."),
    }
}

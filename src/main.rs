//! The binary: real environment, real console, real services; everything else is `cli::main`.

use std::io::{self, Write};
use std::process::ExitCode;

use guest_agent::cli::{self, Console, Services};
use guest_agent::config::ProcessEnvironment;
use guest_agent::dev::sample_plugin;
use guest_agent::install::pack::pack_chosen;
use guest_agent::observe::log;
use guest_agent::os::heap;
use guest_agent::process::logs::keeper;
use guest_agent::{agent, dev};

fn main() -> ExitCode {
    heap::share_one_arena();
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let mut console = Console::of_process(&mut out, &mut err, &ProcessEnvironment);
    let exit = cli::main(std::env::args_os(), &ProcessEnvironment, &services(), &mut console);
    let _nobody_reads = out.flush();
    exit.into()
}

/// The services that are part of this binary.
fn services() -> Services<'static> {
    Services {
        start_logging: Box::new(log::start),
        check: Box::new(agent::check),
        run: Box::new(agent::run),
        dev: Box::new(dev::run),
        sample_plugin: Box::new(sample_plugin::run),
        keep_logs: Box::new(keeper::run),
        pack: Box::new(|dir, out, compression, choice| {
            Ok(pack_chosen(dir, out, compression, choice)?)
        }),
    }
}

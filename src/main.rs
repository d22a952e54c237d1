//! The binary: real environment, real console, real services; everything else is `cli::main`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use guest_agent::agent::RunArgs;
use guest_agent::cli::{self, Console, Services};
use guest_agent::config::{Config, LogConfig, ProcessEnvironment};
use guest_agent::dev::sample_plugin;
use guest_agent::dev::{DevArgs, SamplePluginArgs};
use guest_agent::install::pack::{Compression, Packed, pack};
use guest_agent::observe::log;
use guest_agent::process::logs::keeper::{self, KeeperArgs};
use guest_agent::{agent, dev};
use guest_agent_actors::ports::Cause;

fn main() -> ExitCode {
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let mut console = Console::of_process(&mut out, &mut err, &ProcessEnvironment);
    let exit = cli::main(std::env::args_os(), &ProcessEnvironment, &Linked, &mut console);
    let _nobody_reads = out.flush();
    exit.into()
}

/// The services that are part of this binary.
struct Linked;

impl Services for Linked {
    fn start_logging(&self, log: &LogConfig) {
        log::start(log);
    }

    fn check(&self, config: &Config) -> Result<(), Cause> {
        agent::check(config)
    }

    fn run(&self, args: RunArgs) -> Result<(), Cause> {
        agent::run(args)
    }

    fn dev(&self, args: DevArgs) -> Result<(), Cause> {
        dev::run(args)
    }

    fn sample_plugin(&self, args: SamplePluginArgs) -> Result<(), Cause> {
        sample_plugin::run(args)
    }

    fn keep_logs(&self, args: KeeperArgs) -> Result<(), Cause> {
        keeper::run(args)
    }

    fn pack(&self, dir: &Path, out: &Path, how: Compression) -> Result<Packed, Cause> {
        Ok(pack(dir, out, how)?)
    }
}

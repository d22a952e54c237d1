//! The binary: real environment, real console, real services; everything else is `cli::main`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use guest_agent::cli::pack::{Compression, Packed};
use guest_agent::cli::{self, Console, DevArgs, RunArgs, SamplePluginArgs, Services};
use guest_agent::config::{LogConfig, ProcessEnvironment};
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
        cli::logging::start(log);
    }

    fn run(&self, _args: RunArgs) -> Result<(), Cause> {
        Err("the service is not part of this build".into())
    }

    fn dev(&self, _args: DevArgs) -> Result<(), Cause> {
        Err("the development setup is not part of this build".into())
    }

    fn sample_plugin(&self, _args: SamplePluginArgs) -> Result<(), Cause> {
        Err("the sample plugin is not part of this build".into())
    }

    fn pack(&self, _dir: &Path, _out: &Path, _how: Compression) -> Result<Packed, Cause> {
        Err("the archive writer is not part of this build".into())
    }
}

//! The verb `dev`: a fleet on this machine, without root and without a network. All parts are the real ones:
//! `serve` as a process with its authority and its ledger, ten agents as processes that enrolled with a
//! token, and plugins as processes of the agents. Only the addresses are local.
//!
//! ```text
//!   dev ─► walk ─► world ─┬─► guest-fleet serve, apply, rollout …   ledger, archives ┐
//!    │                    └─► guest-agent run × 10 ─► plugins       a folder each    ├─ one folder
//!    └─ pipe ─► keeper: ends and deletes all of it when the pipe closes              ┘
//! ```
//!
//! `dev` stays until a signal; `dev --once` takes the fleet through a good release, a bad one and the way back
//! (`walk`) and ends.

mod fleet;
pub(crate) mod keeper;
mod machines;
mod programs;
mod step;
mod walk;
mod world;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use guest_fleet::cli::failure::{Exit, Failure};
use tokio::signal::unix::{Signal, SignalKind, signal};

use fleet::{ASSIGNMENT, PLUGIN};
use machines::MACHINES;
use programs::Programs;
use step::{Step, say, shown};
use world::World;

/// The examples below the help text.
pub(crate) const EXAMPLES: &str = "\
Examples:
  guest-fleet dev
  guest-fleet dev --once
  guest-fleet dev --agent ./guest-agent --dir /tmp/fleet";

/// The options of `dev`.
#[derive(Args)]
pub(crate) struct Options {
    /// Take the fleet through a good release, a bad one and the way back, print each step, and end.
    #[arg(long)]
    once: bool,
    /// The program `guest-agent`; without it the one beside this program, or that of PATH.
    #[arg(long, value_name = "PROGRAM")]
    agent: Option<PathBuf>,
    /// Where to keep everything, an empty directory; without it a temporary one is used and deleted.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// The signals that end this process from outside: Ctrl-C, a service manager, a terminal that is closed.
struct Signals([Signal; 3]);

/// How the work ended.
enum Ended {
    Done,
    Failed(anyhow::Error),
    Interrupted,
}

/// Runs until a signal, or, with `--once`, through all steps.
pub(crate) async fn run(options: Options) -> Result<Exit, Failure> {
    let began = Instant::now();
    let failed = |error: &anyhow::Error| Failure::of(Exit::Failed, error.as_ref());
    let programs = Programs::find(options.agent)?;
    let mut signals = Signals::new().map_err(|error| Failure::of(Exit::Failed, &error))?;
    let mut world = World::new(programs, options.dir).await.map_err(|error| failed(&error))?;
    let ended = tokio::select! {
        done = work(&mut world, options.once) => match done {
            Ok(()) => Ended::Done,
            Err(error) => Ended::Failed(error),
        },
        () = signals.come() => Ended::Interrupted,
    };
    if matches!(ended, Ended::Failed(_)) {
        world.explain();
    }
    let step = Step::begin("end");
    let left = world.end().await;
    match ended {
        Ended::Failed(error) => Err(failed(&error)),
        Ended::Interrupted | Ended::Done if !left.is_empty() => {
            let mut failure = Failure::failed("not everything ended as it should");
            failure.causes = left;
            Err(failure)
        }
        Ended::Interrupted if options.once => {
            Err(Failure::failed("interrupted; everything that was started has ended"))
        }
        Ended::Interrupted => Ok(Exit::Done),
        Ended::Done => {
            step.done("the agents ended with their plugins, and the server; nothing is left");
            say(format_args!("all steps succeeded, in {}", shown(began.elapsed())));
            Ok(Exit::Done)
        }
    }
}

async fn work(world: &mut World, is_once: bool) -> anyhow::Result<()> {
    walk::begin(world).await?;
    if is_once {
        return walk::walk(world).await;
    }
    world.release("2")?;
    world.release("3")?;
    world.apply(&[]).await?;
    tell(world);
    world.stay().await
}

/// Prints what can be tried in another terminal.
fn tell(world: &World) {
    let fleet = world.programs().fleet.display();
    let agent = world.programs().agent.display();
    let dir = world.dir().display();
    let first = MACHINES[0].id;
    say(format_args!(
        "everything is in {dir}; in another terminal:\n  \
           export GUEST_FLEET_LEDGER={dir}/ledger.db\n  \
           {fleet} agents\n  \
           sed -i 's/^revision = .*/revision = \"2\"/' {dir}/declared/assignment.toml\n  \
           {fleet} apply -f {dir}/declared    # begins a rollout\n  \
           {fleet} rollout watch {ASSIGNMENT}\n  \
           sed -i 's/^revision = .*/revision = \"3\"/' {dir}/declared/assignment.toml\n  \
           {fleet} apply -f {dir}/declared    # it halts by itself\n  \
           {fleet} rollout show {ASSIGNMENT}\n  \
           {fleet} rollout rollback {ASSIGNMENT}\n  \
           {fleet} explain {first} {PLUGIN}\n  \
           {agent} --socket {dir}/{first}/run/agent.sock status\n\
         Ctrl-C ends it."
    ));
}

// === impl Signals ===

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn come(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

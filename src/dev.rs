//! Everything on this machine, without root and without a network: a control plane, an artifact
//! server, a metadata server, the agent as a process of its own, and sample plugins. All parts are
//! the real ones; only the addresses are local.
//!
//! `dev` keeps them running and shows the agent's status; `dev --once` takes a plugin from its
//! installation to its removal (`walk`) and ends.

use guest_agent_actors::ports::Cause;
use tokio::process::Command;

mod args;
pub mod private;
pub mod sample_plugin;
pub mod signals;
mod walk;
mod world;

pub use args::{DevArgs, SamplePluginArgs};
use signals::Signals;
use world::World;

/// A step of the walk failed.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; the agent and its plugins were stopped")]
struct Interrupted;

/// Runs until interrupted, or, with `--once`, from the installation of a plugin to its removal.
///
/// # Errors
/// An expected step did not happen.
pub fn run(args: DevArgs) -> Result<(), Cause> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Listening for signals comes first. The agent is a process of its own: a signal that ended
        // only this one would leave it behind, with its plugins and all their files.
        let mut signals = Signals::new()?;
        let mut world = tokio::select! {
            world = World::build(args.dir) => world?,
            () = signals.come() => return Err(Interrupted.into()),
        };
        let work = async {
            if args.once {
                walk::walk(&mut world).await
            } else {
                stay(&mut world, args.plugins).await
            }
        };
        let ended = tokio::select! {
            done = work => Some(done),
            () = signals.come() => None,
        };
        if let Some(Err(error)) = &ended {
            world.explain(error.as_ref());
        }
        world.end().await;
        match ended {
            Some(done) => done,
            None if args.once => Err(Interrupted.into()),
            None => Ok(()),
        }
    })
}

/// Installs the sample plugins and shows their status until it is interrupted.
async fn stay(world: &mut World, plugins: usize) -> Result<(), Cause> {
    world.start_agent()?;
    world.connected().await?;
    let orders = (1..=plugins).map(|n| world.install(&format!("sample-{n}"), "1", &[])).collect();
    world.configure(orders).await?;
    let program = world.program().display().to_string();
    let socket = world.socket().display().to_string();
    // Given to the view, which clears the screen.
    let note = format!(
        "everything is in {}\n\
         in another terminal: {program} --socket {socket} status\n\
         \u{20}                    {program} --socket {socket} events --follow\n\
         metadata for rules:  curl -X PUT -H 'Metadata-Flavor: Google' -d VALUE {}/KEY\n\
         Ctrl-C ends it.\n",
        world.dir().display(),
        world.attributes_url()
    );
    let mut view = Command::new(&program)
        .args(["--socket", &socket, "status", "--watch", "--note", &note])
        .kill_on_drop(true)
        .spawn()?;
    view.wait().await?;
    // It shares the terminal, so Ctrl-C may end it first; it also ends after the agent has ended.
    std::future::pending().await
}

//! Everything on this machine, without root and without a network: a control plane, an artifact
//! server, the agent as a process of its own, and sample plugins. All of it is the real thing; only
//! the addresses are local.
//!
//! `dev` keeps it running and shows what the agent shows; `dev --once` walks through a plugin's whole
//! life (`walk`) and ends.

use std::process::Command;

use guest_agent_actors::ports::Cause;
use tokio::signal::ctrl_c;

use crate::cli::DevArgs;

mod walk;
mod world;

use world::World;

/// Runs until interrupted, or through one whole life of a plugin.
///
/// # Errors
/// When anything that should happen did not.
pub fn run(args: DevArgs) -> Result<(), Cause> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut world = World::build(args.dir).await?;
        let done = if args.once {
            walk::walk(&mut world).await
        } else {
            stay(&mut world, args.plugins).await
        };
        if let Err(error) = &done {
            world.explain(error.as_ref());
        }
        world.end().await;
        done
    })
}

/// Installs the sample plugins and shows what becomes of them until Ctrl-C.
async fn stay(world: &mut World, plugins: usize) -> Result<(), Cause> {
    world.start_agent()?;
    world.connected().await?;
    let orders = (1..=plugins).map(|n| world.install(&format!("sample-{n}"), "1", &[])).collect();
    world.configure(orders).await?;
    let program = world.program().display().to_string();
    let socket = world.socket().display().to_string();
    println!("everything is in {}", world.dir().display());
    println!("in another terminal: {program} --socket {socket} status");
    println!("                     {program} --socket {socket} events --follow");
    println!("Ctrl-C ends it.\n");
    let mut view =
        Command::new(program).args(["--socket", &socket, "status", "--watch"]).spawn()?;
    ctrl_c().await?;
    // It shares the terminal, so Ctrl-C ended it too; without a terminal it is ended here.
    drop(view.kill());
    view.wait()?;
    Ok(())
}

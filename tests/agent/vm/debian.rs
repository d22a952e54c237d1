//! The agent as the package installs it, on a whole Debian with systemd: from its installation over
//! crashes, limits, restarts, a reboot and an upgrade to its removal, in one life of one machine.
//! Where virtual machines are slow a container shows all of it but limits.
//!
//! ```text
//! outside: control plane (TLS) · archives · metadata server       loopback ports
//!             ▲                    ▲          ▲                    the network's doors
//! inside:  guest-agent.service ── plugins · journal · control groups of version 2
//! ```
//!
//! Run by `just vm-test`. What it needs, and how to get it, is in `tests/vm/README.md`; where that
//! is not there, one line says what is skipped. Every part of the story is a function, in
//! `debian/`, and begins and ends with the plugin `web` running.

mod life;
mod limits;
mod link;
mod service;
mod world;

use std::time::{Duration, Instant};

use super::guest::Debian;
use world::World;

/// The machine must go down sooner than anything that systemd has to wait for in vain.
const GOES_DOWN: Duration = Duration::from_secs(60);

#[tokio::test]
#[ignore = "boots a virtual machine, which takes minutes: `just vm-test`"]
async fn the_package_lives_on_a_whole_machine() {
    story(Debian::machine(), "virtual machine").await;
}

#[tokio::test]
#[ignore = "needs a Debian to boot, and a package: `just vm-test`"]
async fn the_package_lives_in_a_container_with_systemd() {
    story(Debian::container(), "container").await;
}

async fn story(debian: Result<Debian, String>, kind: &str) {
    let debian = match debian {
        Ok(debian) => debian,
        Err(missing) => return eprintln!("SKIPPED: no Debian in a {kind}: {missing}"),
    };
    let packages = match world::Packages::find() {
        Ok(packages) => packages,
        Err(missing) => return eprintln!("SKIPPED: nothing to install in a {kind}: {missing}"),
    };
    let began = Instant::now();
    let told = |what: &str| println!("{:>4} s: {what}", began.elapsed().as_secs());
    let mut world = World::new(&debian, &packages).await;
    told("it is up");

    life::the_package_starts_the_service(&mut world).await;
    life::a_plugin_is_installed_crashes_and_comes_back(&mut world).await;
    told("installed; a plugin runs");
    service::the_unit_is_what_the_agent_expects(&mut world).await;
    if world.guest.can_limit().await {
        service::the_group_is_divided_as_the_agent_needs_it(&mut world).await;
        limits::memory_is_limited_and_told(&mut world).await;
        limits::cpu_time_is_limited(&mut world).await;
        limits::tasks_are_limited(&mut world).await;
        limits::all_together_are_limited(&mut world).await;
        told("limits hold");
    } else {
        println!("SKIPPED: limits in a {kind}: its control groups have no controllers");
    }
    service::a_reload_is_taken_up(&mut world).await;
    service::a_restart_keeps_plugins(&mut world).await;
    service::an_agent_that_is_killed_comes_back(&mut world).await;
    service::an_agent_that_hangs_is_replaced(&mut world).await;
    service::a_stop_keeps_plugins(&mut world).await;
    told("restarts keep plugins");
    link::vsock_is_a_link(&mut world).await;
    life::what_runs_once_is_installed(&mut world).await;
    let took = life::a_reboot_is_told_and_brings_plugins_back(&mut world).await;
    assert!(took < GOES_DOWN * world.guest.slowness(), "the reboot took {took:?}");
    told(&format!("back from a reboot that took {took:?}"));
    life::an_upgrade_keeps_plugins(&mut world, &packages).await;
    told("upgraded");
    service::nothing_suspicious_was_said(&mut world).await;
    life::a_removal_ends_plugins_and_a_purge_leaves_nothing(&mut world).await;
    told("removed");
    let took = world.guest.turn_off().await;
    assert!(took < GOES_DOWN * world.guest.slowness(), "turning off took {took:?}");
    told("turned off");
}

//! Tests of this very program, run again inside a virtual machine whose kernel has what this
//! machine's may not: control groups of version 2, and no other processes in them.
//!
//! ```text
//! host: this program ─► initrd (itself, the agent, example plugins, busybox, `init`) ─► qemu ─► serial console ─► judged
//! guest: init ─► mounts, control groups ─► this program `limits::…` ─► results ─► off
//! ```
//!
//! Run by `tests/run ship vm`, not with the other tests: without hardware help a virtual machine is some ten
//! times slower. What it needs, and how to get it, is in `tests/vm/README.md`; where that is not
//! there, one line says what is skipped.

use std::time::Duration;

use machine::{Ended, Machine, Tools};

mod debian;
mod guest;
mod initrd;
mod machine;

/// A machine that runs longer is turned off.
const DEADLINE: Duration = Duration::from_secs(900);

/// The tests that are run inside.
const INSIDE: [&str; 3] = [
    "limits::a_memory_hog_is_killed_reported_as_such_and_started_again",
    "limits::a_helper_that_left_everything_behind_ends_with_its_plugin",
    "limits::limits_that_do_not_hold_are_told_wherever_somebody_looks",
];

/// Those that measure how much processor time somebody gets: a plugin that may have a fifth of a
/// processor that is ten times slower does not start in time.
const WITH_HARDWARE_HELP: [&str; 1] = ["limits::a_cpu_hog_gets_its_share"];

#[test]
#[ignore = "boots a virtual machine, which takes minutes: `tests/run ship vm`"]
fn limits_hold_under_version_2_of_control_groups() {
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(missing) => return eprintln!("skipped: no virtual machine: {missing}"),
    };
    let mut wanted = INSIDE.to_vec();
    if machine::has_hardware_help() {
        wanted.extend(WITH_HARDWARE_HELP);
    } else {
        eprintln!(
            "SKIPPED: no hardware help for virtual machines: {}",
            WITH_HARDWARE_HELP.join(" ")
        );
    }
    let Ended { console, how } = Machine::new(&tools, &wanted).run(DEADLINE);
    let of = |word: &str| -> Vec<&str> {
        let results = console.lines().filter_map(|line| line.trim().strip_prefix("test "));
        let results = results.filter_map(|line| line.split_once(" ... "));
        results.filter(|(_, result)| result.ends_with(word)).map(|(name, _)| name).collect()
    };
    let (mut passed, failed) = (of("ok"), of("FAILED"));
    println!("{how}; inside passed: {}", passed.join(" "));
    passed.sort_unstable();
    wanted.sort_unstable();
    let is_whole = console.contains(machine::ALL_PASSED);
    let skipped: Vec<&str> = console.lines().filter(|line| line.contains("skipped: ")).collect();
    assert!(
        is_whole && failed.is_empty() && skipped.is_empty() && passed == wanted,
        "{how}; passed: {passed:?}, failed: {failed:?}, skipped: {skipped:?}\n--- console ---\n{console}"
    );
}

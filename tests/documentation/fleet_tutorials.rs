//! What the tutorials of a fleet tell people to do works, as it stands there, and prints what they show.

use std::path::PathBuf;

use crate::walkthrough::{Reader, blocks};
use crate::{fleet_program, pages};

/// The programs that a reader has installed.
fn programs() -> [PathBuf; 2] {
    [PathBuf::from(env!("CARGO_BIN_EXE_guest-agent")), fleet_program::path()]
}

#[track_caller]
fn follow(page: &str, name: &str) {
    let text = pages::text(page);
    for block in blocks(&text) {
        assert_ne!(block.language, "text", "{page} shows output that is not compared: {block:?}");
    }
    let ran = Reader::new(name, &programs()).follow(&text);
    assert!(ran > 8, "only {ran} blocks of {page} were run");
}

#[test]
fn a_fleet_runs_on_one_machine_as_it_is_written() {
    follow("docs/fleet-on-one-machine.md", "one");
}

//! What the documentation says is so: every link leads somewhere, every test it names exists, and
//! lists of things that the code has are the code's.
//!
//! `UPDATE_GENERATED=1 cargo test --test documentation` writes the pages that are made from the
//! code.

mod alerts;
mod collectors;
mod fleet_tutorials;
mod getting_started;
mod invariants;
mod lanes;
mod links;
mod operations;
mod pages;
mod recipes;
mod reference;
mod seed;
mod shown;
mod structure;
mod walkthrough;
mod words;

#[path = "../support/fleet_program.rs"]
mod fleet_program;
#[path = "../../fleet/program/tests/support/nats_server.rs"]
mod nats_server;

//! Whole lives of plugins: all actors, wired as in the real agent, on fakes and paused time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

mod admission;
mod agent_crashes;
mod audit;
mod conversation;
mod counts;
mod first_list;
mod generations;
mod health;
mod installs;
mod limits;
mod local;
mod one_shot;
mod overflow;
mod owners_changes;
mod recovery;
mod registry;
mod reports;
mod rules;
mod store;
mod sweep;
mod tracing;
mod verdicts;
mod vm_events;

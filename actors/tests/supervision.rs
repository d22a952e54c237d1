//! Whole lives of plugins: all actors, wired as in the real agent, on fakes and paused time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod supervision {
    pub(crate) mod support;

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
    mod pauses;
    mod recovery;
    mod registry;
    mod reports;
    mod rules;
    mod store;
    mod sweep;
    mod tracing;
    mod vm_events;
    mod windows;
}

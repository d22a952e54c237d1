//! Decides when plugins run: rules now, triggers of one-shot plugins beside them.

pub mod rules;

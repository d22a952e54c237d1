//! Starts, watches and ends processes of plugins.

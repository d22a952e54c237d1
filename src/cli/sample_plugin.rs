//! `sample-plugin`: this binary as a plugin, for `dev` and for tests. No help text shows it.

use std::ffi::OsString;

use super::failure::Failure;
use super::services::Services;
use crate::dev::SamplePluginArgs;

/// The name of the verb.
pub(super) const VERB: &str = "sample-plugin";

pub(super) fn run(args: &[OsString], services: &Services<'_>) -> Result<(), Failure> {
    let args = SamplePluginArgs { args: args.to_vec() };
    (services.sample_plugin)(args).map_err(|error| Failure::of(&*error))
}

//! Old names of modules, so that log filters that were written for them still mean the same code.
//!
//! A directive names code by the path of its module, and `tracing` takes each path that begins with
//! the text of the directive. A module that moves needs a row in [`MOVED`], and nothing else.

/// Old paths of modules and new ones. A module below an old path is below the new one, unless it
/// has a row of its own. An old path with two rows was divided.
const MOVED: [(&str, &str); 82] = [
    ("guest_agent::admission", "guest_agent::process::admission"),
    ("guest_agent::cgroup", "guest_agent::process::cgroup"),
    ("guest_agent::cli::hand_over", "guest_agent::cli::upload"),
    ("guest_agent::command_socket", "guest_agent::api::commands"),
    ("guest_agent::confine", "guest_agent::process::sandbox"),
    ("guest_agent::console", "guest_agent::api::http::console"),
    ("guest_agent::console::session", "guest_agent::api::http::session"),
    ("guest_agent::control_link", "guest_agent::link"),
    ("guest_agent::control_link::auth", "guest_agent::net::token"),
    ("guest_agent::control_link::dial", "guest_agent::net::dial"),
    ("guest_agent::control_link::endpoint", "guest_agent::net::endpoint"),
    ("guest_agent::facts", "guest_agent::hostinfo::facts"),
    ("guest_agent::finding", "guest_agent::hostinfo::preflight::finding"),
    ("guest_agent::going_down", "guest_agent::agent::shutdown"),
    ("guest_agent::guarded", "guest_agent_serve_kit::placed"),
    ("guest_agent::host_api", "guest_agent::api::host"),
    ("guest_agent::host_api::convert", "guest_agent::api::registry::convert"),
    ("guest_agent::host_api::places", "guest_agent::api::registry::call_permits"),
    ("guest_agent::host_api::registry", "guest_agent::api::registry"),
    ("guest_agent::http", "guest_agent::api::http"),
    ("guest_agent::http::gate", "guest_agent::api::http::access_check"),
    ("guest_agent::http::metrics", "guest_agent::api::http::metrics"),
    ("guest_agent::http::metrics", "guest_agent::observe::metrics"),
    ("guest_agent::http::patient", "guest_agent_serve_kit::write_timeout"),
    ("guest_agent::install::ahead", "guest_agent::install::unpack::decoder_thread"),
    ("guest_agent::install::attempt", "guest_agent::install::download::transfer"),
    ("guest_agent::install::buffers", "guest_agent::install::download::buffers"),
    ("guest_agent::install::delete", "guest_agent::os::remove"),
    ("guest_agent::install::early_flush", "guest_agent::install::unpack::early_flush"),
    ("guest_agent::install::fetch", "guest_agent::install::download::fetch"),
    ("guest_agent::install::format", "guest_agent::install::unpack::format"),
    ("guest_agent::install::guard", "guest_agent::install::unpack::limits_reader"),
    ("guest_agent::install::member", "guest_agent::install::unpack::member"),
    ("guest_agent::install::rehearse", "guest_agent::install::dry_run"),
    ("guest_agent::install::shelf", "guest_agent::install::cache::archive_store"),
    ("guest_agent::install::sign", "guest_agent::install::trust::sign"),
    ("guest_agent::install::spool", "guest_agent::install::cache::spool"),
    ("guest_agent::install::tree", "guest_agent::install::unpack::tree"),
    ("guest_agent::install::tries", "guest_agent::install::download::retry"),
    ("guest_agent::install::tries", "guest_agent::install::download::transfer"),
    ("guest_agent::install::write_out", "guest_agent::install::unpack::write_out"),
    ("guest_agent::jitter", "guest_agent::net::jitter"),
    ("guest_agent::launch", "guest_agent::process::launch"),
    ("guest_agent::launch::census", "guest_agent::process::launch::process_table"),
    ("guest_agent::launch::pidfd", "guest_agent::os::pidfd"),
    ("guest_agent::launch::procfs", "guest_agent::os::procfs"),
    ("guest_agent::launch::strangers", "guest_agent::process::launch::orphans"),
    ("guest_agent::launch::turns", "guest_agent::process::launch::launch_permits"),
    ("guest_agent::local_api", "guest_agent::api::local"),
    ("guest_agent::local_plugins", "guest_agent::install::local_manifests"),
    ("guest_agent::logging", "guest_agent::observe::log"),
    ("guest_agent::logging::filter", "guest_agent::config::log_filter"),
    ("guest_agent::logging::repeats", "guest_agent::observe::log::rate_limit"),
    ("guest_agent::machine", "guest_agent::hostinfo"),
    ("guest_agent::metadata", "guest_agent::hostinfo::metadata"),
    ("guest_agent::metadata::address", "guest_agent::net::metadata_address"),
    ("guest_agent::meter", "guest_agent::process::meter"),
    ("guest_agent::net::shares", "guest_agent_serve_kit::shares"),
    ("guest_agent::notify", "guest_agent::agent::systemd"),
    ("guest_agent::observe::otlp", "guest_agent_observe_kit::otlp"),
    ("guest_agent::plugin_logs", "guest_agent::process::logs"),
    ("guest_agent::plugin_rpc", "guest_agent::process::rpc"),
    ("guest_agent::preflight", "guest_agent::hostinfo::preflight"),
    ("guest_agent::readable", "guest_agent::os::async_fd"),
    ("guest_agent::reload", "guest_agent::agent::reload"),
    ("guest_agent::sample_plugin", "guest_agent::dev::sample_plugin"),
    ("guest_agent::socket", "guest_agent::net::socket"),
    ("guest_agent::storage", "guest_agent::store"),
    ("guest_agent::storage::tidy", "guest_agent::store::compaction"),
    ("guest_agent::storage::told", "guest_agent::store::loss_reporter"),
    ("guest_agent::tally", "guest_agent::observe::metrics::counters"),
    ("guest_agent::telemetry", "guest_agent::observe::otlp"),
    ("guest_agent::telemetry", "guest_agent_observe_kit::otlp"),
    ("guest_agent::ticket", "guest_agent::net::ticket"),
    ("guest_agent::words", "guest_agent::display"),
    ("guest_agent_actors::manager::comeback", "guest_agent_actors::manager::recovery"),
    ("guest_agent_actors::plugin::draft", "guest_agent_actors::plugin::transition_builder"),
    ("guest_agent_actors::plugin::errand", "guest_agent_actors::plugin::operation"),
    ("guest_fleet::artifacts::loopback", "guest_agent_lab::artifacts"),
    ("guest_fleet::front", "guest_agent_serve_kit::front"),
    ("guest_fleet::gateway", "guest_fleet_sessions"),
    ("guest_fleet::metadata", "guest_agent_lab::metadata"),
];

/// Replaces directives that name old paths by those of the new ones. Where two of them name the
/// same module, the last one counts, which is that of the longest old name.
pub(super) fn under_new_names(directives: &[&str]) -> Vec<String> {
    let mut renamed: Vec<(usize, String)> = Vec::new();
    for directive in directives {
        let Some(end) = directive.find(['=', '[']) else { continue };
        let (target, rest) = directive.split_at(end);
        let new = new_names(target).into_iter().map(|name| (target.len(), format!("{name}{rest}")));
        renamed.extend(new);
    }
    renamed.sort_by_key(|(length, _)| *length);
    renamed.into_iter().map(|(_, directive)| directive).collect()
}

/// The new paths of the modules whose old paths begin with a text.
fn new_names(old: &str) -> Vec<String> {
    if old.is_empty() {
        return Vec::new();
    }
    let mut names: Vec<String> = Vec::new();
    if MOVED.iter().all(|(from, _)| *from != old) {
        // A module below one that moved: the nearest row counts.
        let above = |from: &str| old.strip_prefix(from).filter(|rest| rest.starts_with("::"));
        let nearest = MOVED.iter().filter(|(from, _)| above(from).is_some());
        let nearest = nearest.map(|(from, _)| *from).max_by_key(|from| from.len());
        names.extend(
            MOVED
                .iter()
                .filter(|(from, _)| Some(*from) == nearest)
                .filter_map(|(from, to)| above(from).map(|rest| format!("{to}{rest}"))),
        );
    }
    for (from, to) in MOVED {
        // A name that begins with another one also matches that one's directive.
        let is_matched = to.starts_with(old) || names.iter().any(|name| to.starts_with(&**name));
        if from.starts_with(old) && !is_matched {
            names.push(to.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(directives: &[&str], expected: &[&str]) {
        assert_eq!(under_new_names(directives), expected);
    }

    #[test]
    fn a_module_that_moved_is_meant_under_its_new_name() {
        check(&["guest_agent::storage=debug"], &["guest_agent::store=debug"]);
        check(&["guest_agent::tally=off"], &["guest_agent::observe::metrics::counters=off"]);
        check(
            &["guest_agent_actors::plugin::errand=trace"],
            &["guest_agent_actors::plugin::operation=trace"],
        );
    }

    #[test]
    fn a_module_below_one_that_moved_is_below_its_new_name() {
        check(&["guest_agent::control_link::session=debug"], &["guest_agent::link::session=debug"]);
        check(
            &["guest_agent::http::metrics::page=warn"],
            &[
                "guest_agent::api::http::metrics::page=warn",
                "guest_agent::observe::metrics::page=warn",
            ],
        );
    }

    #[test]
    fn a_module_that_moved_elsewhere_than_its_parent_has_its_own_name() {
        check(
            &["guest_agent::install::attempt=debug"],
            &["guest_agent::install::download::transfer=debug"],
        );
        check(
            &["guest_agent::launch::census=debug"],
            &["guest_agent::process::launch::process_table=debug"],
        );
        check(&["guest_agent::host_api::registry=debug"], &["guest_agent::api::registry=debug"]);
    }

    #[test]
    fn a_parent_means_its_modules_that_moved_elsewhere_as_well() {
        check(&["guest_agent::install=debug"], &["guest_agent::os::remove=debug"]);
        check(
            &["guest_agent::launch=debug"],
            &[
                "guest_agent::process::launch=debug",
                "guest_agent::os::pidfd=debug",
                "guest_agent::os::procfs=debug",
            ],
        );
    }

    #[test]
    fn what_did_not_move_is_left_alone() {
        check(
            &["info", "guest_agent=debug", "guest_agent::sweep=debug", "h2=warn", "[order]=debug"],
            &[],
        );
        check(&["guest_agent::storages=debug", "guest_agent::storage"], &[]);
    }

    #[test]
    fn spans_and_fields_are_kept() {
        check(
            &["guest_agent::launch::start[order{plugin=\"a\"}]=trace", "guest_agent::words[x]"],
            &[
                "guest_agent::display[x]",
                "guest_agent::process::launch::start[order{plugin=\"a\"}]=trace",
            ],
        );
    }

    #[test]
    fn the_longest_old_name_counts_whatever_the_order() {
        check(
            &["guest_agent::install::delete=trace", "guest_agent::install=off"],
            &["guest_agent::os::remove=off", "guest_agent::os::remove=trace"],
        );
    }

    #[test]
    fn the_old_names_are_sorted_and_each_row_is_there_once() {
        assert!(MOVED.is_sorted_by(|one, next| one < next));
    }
}

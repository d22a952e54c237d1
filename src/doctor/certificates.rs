//! Whether the certificates that the agent shows can be used, how long they are valid, and who may
//! read their keys.

use std::error::Error as _;
use std::path::Path;
use std::time::SystemTime;

use guest_agent_serve_kit::certificate::{Pair, PairError, PairFiles, Validity, open_to_others};

use super::check::{Finding, Host, Severity};
use crate::config::Auth;
use crate::net::certificates::shown;

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let (api, control) = (&host.config.api, &host.config.control_plane);
    let is_shown = control.enabled && control.auth == Auth::Mtls;
    let pairs = [
        (
            !api.http_tls_cert.is_empty(),
            ["api.http_tls_cert", "api.http_tls_key"],
            [&api.http_tls_cert, &api.http_tls_key],
        ),
        (
            is_shown,
            ["control_plane.client_cert", "control_plane.client_key"],
            [&control.client_cert, &control.client_key],
        ),
    ];
    let mut findings = Vec::new();
    for (_, keys, [certificate, key]) in pairs.into_iter().filter(|(is_shown, ..)| *is_shown) {
        let files = PairFiles { certificate: certificate.into(), key: key.into() };
        match Pair::read(&files) {
            Ok(pair) => findings.extend(validity(keys[0], certificate, pair.validity, host.now)),
            Err(error) => findings.push(unusable(keys, &error)),
        }
        findings.extend(readers(keys[1], key));
    }
    findings
}

fn unusable(keys: [&str; 2], error: &PairError) -> Finding {
    let cause = error.source().map(|cause| format!("{cause}; ")).unwrap_or_default();
    Finding::new(
        Severity::Error,
        error.to_string(),
        format!(
            "{cause}{} and {} name a certificate and its key; an agent that has an earlier pair goes \
             on with it",
            keys[0], keys[1]
        ),
        "put a certificate and its key there; the agent reads them by itself",
    )
}

fn validity(key: &str, file: &str, validity: Validity, now: SystemTime) -> Option<Finding> {
    let (Validity { from, until }, remind_at) = (validity, validity.remind_at());
    let (severity, what) = if now < from {
        (Severity::Error, format!("the certificate in {file} is valid only from {}", shown(from)))
    } else if until < now {
        (Severity::Error, format!("the certificate in {file} ended at {}", shown(until)))
    } else if remind_at <= now {
        (Severity::Warning, format!("the certificate in {file} ends at {}", shown(until)))
    } else {
        return None;
    };
    Some(Finding::new(
        severity,
        what,
        format!("{key} names it; nobody trusts a certificate that is not valid"),
        "look why it was not renewed, and that the clock is right; the agent reads a new one by itself",
    ))
}

fn readers(key: &str, file: &str) -> Option<Finding> {
    let mode = open_to_others(Path::new(file))?;
    Some(Finding::new(
        Severity::Warning,
        format!("other users may use {file}, which {key} names"),
        format!("its mode is {mode:04o}; a user who has the key can pass for the agent"),
        format!("`chmod 600 {file}`, and get another certificate if another user may have read it"),
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use guest_agent_testing_kit::certificate::{FUTURE, NOW, PAST};

    use super::*;
    use crate::config::Config;
    use crate::doctor::Agent;
    use crate::net::pair_files::{files, write};

    #[track_caller]
    fn look(config: &Config) -> Vec<(Severity, String)> {
        let agent = Agent::Hidden { reason: String::new() };
        let host = Host { config, agent: &agent, now: SystemTime::now() };
        check(&host).into_iter().map(|found| (found.severity, found.what)).collect()
    }

    #[test]
    fn certificates_that_are_not_valid_or_not_usable_and_open_keys_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = files(dir.path());
        let [certificate, key] =
            [&files.certificate, &files.key].map(|file| file.display().to_string());
        let mut config = Config::default();
        assert_eq!(look(&config), []);
        config.api.http_tls_cert = certificate.clone();
        config.api.http_tls_key = key.clone();
        let found = look(&config);
        assert!(found[0].0 == Severity::Error && found[0].1.contains("cannot read"), "{found:?}");
        write(&files, NOW);
        assert_eq!(look(&config), []);
        for (years, what) in [(PAST, "ended at 2002-01-01"), (FUTURE, "valid only from 2080")] {
            write(&files, years);
            let found = look(&config);
            assert!(found[0].0 == Severity::Error && found[0].1.contains(what), "{found:?}");
        }
        write(&files, NOW);
        std::fs::set_permissions(&files.key, PermissionsExt::from_mode(0o644)).expect("set");
        let found = look(&config);
        assert!(found[0].0 == Severity::Warning && found[0].1.contains(&key), "{found:?}");
        let mut client = Config::default();
        client.control_plane.client_cert = certificate;
        client.control_plane.client_key = key;
        assert_eq!(look(&client), [], "it is not shown to anybody");
        client.control_plane.auth = Auth::Mtls;
        assert_eq!(look(&client).len(), 1);
    }

    #[test]
    fn two_weeks_before_the_end_there_is_a_warning() {
        let day = std::time::Duration::from_secs(24 * 3600);
        let from = SystemTime::UNIX_EPOCH;
        let valid = Validity { from, until: from + 100 * day };
        let at = |days: u32| validity("a.key", "/a.pem", valid, from + days * day);
        assert!(at(85).is_none());
        let found = at(87).expect("a finding");
        assert_eq!(found.severity, Severity::Warning);
        assert!(found.what.contains("/a.pem ends at 1970-04-11T00:00:00Z"), "{}", found.what);
        assert_eq!(at(101).expect("a finding").severity, Severity::Error);
    }
}

//! Whether HTTP is served where it is to be, and who can read its tokens.

use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use guest_agent_actors::error::Chain;

use super::check::{Agent, Finding, Host, Severity};
use crate::config::http_tokens::HttpTokens;

/// Most lines with mistakes, and most tokens, that have a finding each.
const LINES_MAX: usize = 8;

/// How long another process that listens on the address may take to accept a connection.
const CONNECT_WAIT: Duration = Duration::from_millis(300);

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let api = &host.config.api;
    let tokens = [
        ("api.http_token_file", &api.http_token_file),
        ("api.http_admin_token_file", &api.http_admin_token_file),
    ];
    let tokens = tokens.into_iter().filter(|(_, file)| !file.is_empty());
    let mut findings: Vec<Finding> = tokens.filter_map(|(key, file)| token(key, file)).collect();
    // The agent runs as the user who owns its state directory.
    let agent = std::fs::metadata(&host.config.agent.state_dir).map(|stat| stat.uid()).ok();
    findings.extend(tokens_file(&api.http_tokens_file, agent, host.now));
    findings.extend(listener(host));
    findings.extend(socket(host));
    findings.extend(unencrypted(host));
    findings
}

/// What is wrong with the file of tokens, its lines, and the ends of its tokens.
fn tokens_file(file: &str, agent: Option<u32>, now: SystemTime) -> Vec<Finding> {
    if file.is_empty() {
        return Vec::new();
    }
    let found = match HttpTokens::read_of(Path::new(file), |uid| agent == Some(uid)) {
        Ok(found) => found,
        Err(error) => {
            return vec![Finding::new(
                Severity::Error,
                format!("no token of {file}, which api.http_tokens_file names, is accepted"),
                Chain(&error).to_string(),
                "correct that, or make a file with `guest-agent http-token new`; then `systemctl \
                 reload guest-agent`",
            )];
        }
    };
    let mistakes = found.mistakes.iter().take(LINES_MAX).map(|mistake| {
        Finding::new(
            Severity::Error,
            format!("line {} of {file} gives nobody access", mistake.line),
            mistake.reason.clone(),
            "correct the line, then `systemctl reload guest-agent`",
        )
    });
    let ends = found.tokens.iter().filter_map(|token| token.trouble(now)).take(LINES_MAX);
    let ends = ends.map(|trouble| {
        let (what, fix) = trouble.split_once("; ").unwrap_or((&trouble, ""));
        let why = "clients that send it are refused from then on";
        Finding::new(Severity::Warning, what, why, fix)
    });
    mistakes.chain(ends).collect()
}

fn listener(host: &Host<'_>) -> Option<Finding> {
    let address = host.config.api.http_listen?;
    match host.agent {
        Agent::Silent { .. } => {
            TcpStream::connect_timeout(&address, CONNECT_WAIT).ok()?;
            Some(Finding::new(
                Severity::Error,
                format!("another process listens on {address}"),
                "the agent does not run, and api.http_listen names this address",
                "see with `ss -ltnp` which process it is, or change api.http_listen",
            ))
        }
        Agent::Hidden { .. } => None,
        Agent::Answers { itself, .. } => {
            let agent = itself.agent.as_ref()?;
            if !agent.http.is_empty() {
                return None;
            }
            let trouble = agent.troubles.iter().find(|trouble| trouble.contains("HTTP is off"));
            let why = trouble.map_or("the running agent has another configuration", |why| why);
            Some(Finding::new(
                Severity::Error,
                format!("the agent does not listen on {address}, which api.http_listen names"),
                why,
                "correct that; the agent tries again by itself, and takes another address at \
                 `systemctl reload guest-agent`",
            ))
        }
    }
}

/// Whether the socket is served that the configuration names.
fn socket(host: &Host<'_>) -> Option<Finding> {
    let wanted = &host.config.api.http_socket;
    let Agent::Answers { itself, .. } = host.agent else { return None };
    let agent = itself.agent.as_ref()?;
    if wanted.is_empty() || agent.http_socket == *wanted {
        return None;
    }
    let mut troubles = agent.troubles.iter();
    let trouble = troubles.find(|trouble| trouble.contains("the HTTP socket is off"));
    let why = trouble.map_or("the running agent has another configuration", |why| why);
    Some(Finding::new(
        Severity::Error,
        format!("the agent does not listen on {wanted}, which api.http_socket names"),
        why,
        "correct that; the agent tries again by itself, and takes another path at `systemctl reload \
         guest-agent`",
    ))
}

/// Whether tokens cross a network that everybody may read.
fn unencrypted(host: &Host<'_>) -> Option<Finding> {
    let api = &host.config.api;
    let address = api.http_listen.filter(|address| !address.ip().is_loopback())?;
    if !api.http_tls_cert.is_empty() {
        return None;
    }
    Some(Finding::new(
        Severity::Warning,
        format!("HTTP on {address} is not encrypted, and other machines reach it"),
        "a token that crosses the network can be read on the way",
        "set api.http_tls_cert and api.http_tls_key, unless the network encrypts",
    ))
}

/// What is wrong with the file of a token.
fn token(key: &str, file: &str) -> Option<Finding> {
    let stat = match std::fs::metadata(file) {
        Ok(stat) => stat,
        Err(error) => {
            return Some(Finding::new(
                Severity::Error,
                format!("{file}, which {key} names, cannot be looked at"),
                format!("{error}; without the file no request with this token is accepted"),
                format!("write one: `(umask 077; openssl rand -hex 32 > {file})`"),
            ));
        }
    };
    let (severity, what) = match stat.mode() {
        mode if mode & 0o022 != 0 => (Severity::Error, "write"),
        mode if mode & 0o044 != 0 => (Severity::Warning, "read"),
        _ => return None,
    };
    Some(Finding::new(
        severity,
        format!("other users may {what} {file}, which {key} names"),
        format!(
            "its mode is {:04o}; every user who reads the token gets its access",
            stat.mode() & 0o7777
        ),
        format!("`chmod 600 {file}`, and write another token if another user may have read it"),
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn lines_with_mistakes_and_ends_of_tokens_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("tokens");
        let file = path.display().to_string();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
        assert!(tokens_file("", None, now).is_empty());
        let missing = tokens_file(&file, None, now);
        assert!(
            missing[0].severity == Severity::Error && missing[0].fix.contains("http-token new")
        );
        let digest = "0".repeat(64);
        let text = format!("nonsense\na read sha256:{digest} expires 2030-03-18T00:00:00Z\n");
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("set");
        let found = tokens_file(&file, None, now);
        let [line, end] = found.as_slice() else { panic!("{found:?}") };
        assert!(line.severity == Severity::Error && line.what.starts_with("line 1 of"), "{line:?}");
        assert_eq!(end.severity, Severity::Warning);
        assert_eq!(end.what, "the HTTP token a ends at 2030-03-18T00:00:00Z");
        assert!(end.fix.contains("http-token revoke a"), "{end:?}");
    }

    #[test]
    fn an_address_that_other_machines_reach_is_to_have_tls() {
        let mut config = crate::config::Config::default();
        let agent = Agent::Hidden { reason: String::new() };
        let look = |config: &crate::config::Config| {
            let now = std::time::SystemTime::now();
            unencrypted(&Host { config, agent: &agent, now }).map(|found| found.severity)
        };
        config.api.http_listen = Some(([127, 0, 0, 1], 9464).into());
        assert_eq!(look(&config), None);
        config.api.http_listen = Some(([0, 0, 0, 0], 9464).into());
        assert_eq!(look(&config), Some(Severity::Warning));
        config.api.http_tls_cert = "/etc/tls.crt".to_owned();
        assert_eq!(look(&config), None);
    }

    #[test]
    fn a_token_is_its_owners_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        let file = path.display().to_string();
        let look = || token("api.http_token_file", &file);
        let missing = look().expect("a finding");
        assert!(missing.severity == Severity::Error && missing.fix.contains("openssl rand"));
        std::fs::write(&path, "token").expect("written");
        for (mode, expected) in [
            (0o600, None),
            (0o400, None),
            (0o640, Some((Severity::Warning, "read"))),
            (0o604, Some((Severity::Warning, "read"))),
            (0o620, Some((Severity::Error, "write"))),
            (0o666, Some((Severity::Error, "write"))),
        ] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
            let found = look();
            let expected = expected.map(|(severity, what)| {
                let text = "which api.http_token_file names";
                (severity, format!("other users may {what} {file}, {text}"))
            });
            assert_eq!(found.map(|found| (found.severity, found.what)), expected, "{mode:o}");
        }
    }
}

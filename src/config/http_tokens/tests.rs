//! Lines, files and their changes.

use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::edit::{NotEdited, Opened, append, delete};
use super::*;

const DIGEST: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const OTHER: &str = "sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752";

fn parse(text: &str) -> HttpTokens {
    HttpTokens::parse(text.as_bytes())
}

/// Lines that each give nobody access, with a part of the reason.
#[track_caller]
fn refused(text: &str, reasons: &[(usize, &str)]) {
    let found = parse(text);
    let lines: Vec<usize> = found.mistakes.iter().map(|mistake| mistake.line).collect();
    assert_eq!(lines, reasons.iter().map(|(line, _)| *line).collect::<Vec<_>>(), "{found:?}");
    for (mistake, (_, reason)) in found.mistakes.iter().zip(reasons) {
        assert!(mistake.reason.contains(reason), "{mistake}");
        assert!(!mistake.to_string().contains("s3cr3t"), "{mistake}");
    }
    assert!(found.keep_strangers_out(), "a doubt opens nothing");
}

fn at(text: &str) -> SystemTime {
    text.parse::<Timestamp>().expect("a time").into()
}

#[test]
fn a_line_is_a_name_its_scopes_a_digest_and_perhaps_an_end() {
    let text = format!(
        "# who may do what\n\n\tgrafana read {DIGEST} expires 2030-01-31T12:00:00+01:00  # a robot\n\
         alice act,read {OTHER}\r\n"
    );
    let found = parse(&text);
    assert_eq!(found.mistakes, []);
    let [grafana, alice] = found.tokens.as_slice() else { panic!("{found:?}") };
    assert_eq!((&*grafana.name, grafana.scopes, grafana.line), ("grafana", Scopes::Read, 3));
    assert_eq!(grafana.expires, Some(at("2030-01-31T11:00:00Z")));
    assert_eq!(grafana.digest, Sha256Digest::of(b"test"));
    assert_eq!((alice.scopes, alice.expires, alice.line), (Scopes::ReadAndAct, None, 4));
    let line = "grafana read ".to_owned() + DIGEST + " expires 2030-01-31T11:00:00Z";
    assert_eq!(grafana.to_string(), line);
}

#[test]
fn a_line_with_a_doubt_opens_nothing_and_leaves_the_others_alone() {
    let good = format!("good act {OTHER}\n");
    for (bad, reason) in [
        ("s3cr3t", "it is not a name, scopes and a digest"),
        ("a read", "it is not a name, scopes and a digest"),
        (&format!("a read {DIGEST} 2030-01-31T12:00:00Z"), "it is not a name, scopes"),
        (&format!("a read {DIGEST} expires"), "it is not a name, scopes"),
        (&format!("a/b read {DIGEST}"), "letters, digits"),
        (&format!("{} read {DIGEST}", "n".repeat(65)), "1 to 64"),
        (&format!("admin read {DIGEST}"), "api.http_admin_token_file is admin"),
        (&format!("a write {DIGEST}"), "the scopes of a are not"),
        (&format!("a read,read {DIGEST}"), "the scopes of a are not"),
        (&format!("a READ {DIGEST}"), "the scopes of a are not"),
        (&format!("a read, {DIGEST}"), "the scopes of a are not"),
        ("a read s3cr3t", "http-token new"),
        ("a read sha256:s3cr3t", "64 hexadecimal digits"),
        (&format!("a read {DIGEST} expires tomorrow"), "2030-01-31T12:00:00Z"),
        (&format!("a read {DIGEST} expires 2030-01-31"), "2030-01-31T12:00:00Z"),
    ] {
        refused(&format!("{bad}\n{good}"), &[(1, reason)]);
        assert_eq!(parse(&format!("{bad}\n{good}")).tokens.len(), 1, "{bad}");
    }
    let found = HttpTokens::parse(b"a\xff read\n");
    assert!(found.mistakes[0].reason.contains("UTF-8"), "{found:?}");
}

#[test]
fn tokens_that_share_a_name_or_a_secret_are_all_refused() {
    let text = format!("a read {DIGEST}\na act {OTHER}\n");
    refused(&text, &[(1, "line 2 has the name"), (2, "line 1 has the name")]);
    let text = format!("a read {DIGEST}\nb act {DIGEST}\n");
    refused(&text, &[(1, "line 2 has the token"), (2, "line 1 has the token")]);
    assert_eq!(parse(&text).tokens, []);
}

#[test]
fn a_file_has_so_many_tokens() {
    let line = |n: usize| format!("t{n} act sha256:{n:064x}\n");
    let text: String = (0..TOKENS_MAX + 1).map(line).collect();
    let found = parse(&text);
    assert_eq!(found.tokens.len(), TOKENS_MAX);
    assert!(found.mistakes[0].reason.contains("the most"), "{found:?}");
}

#[test]
fn strangers_may_look_only_where_every_line_is_clear_and_none_says_read() {
    assert!(!parse(&format!("a act {DIGEST}\n")).keep_strangers_out());
    for closed in [
        String::new(),
        "# nobody\n".to_owned(),
        format!("a read {DIGEST}\n"),
        format!("a act {DIGEST}\nb act,read {OTHER}\n"),
        format!("a act {DIGEST}\nb read {OTHER} expires 2000-01-01T00:00:00Z\n"),
        format!("a act {DIGEST}\nnonsense\n"),
    ] {
        assert!(parse(&closed).keep_strangers_out(), "{closed}");
    }
}

#[test]
fn the_end_of_a_token_is_reported_a_week_before() {
    let found = parse(&format!("a read {DIGEST} expires 2030-01-31T00:00:00Z\n"));
    let token = &found.tokens[0];
    assert_eq!(token.trouble(at("2030-01-23T00:00:00Z")), None);
    assert_eq!(token.next_change(at("2030-01-23T00:00:00Z")), Some(at("2030-01-24T00:00:00Z")));
    let near = token.trouble(at("2030-01-24T00:00:00Z")).expect("it is near");
    assert!(near.contains("token a ends at 2030-01-31T00:00:00Z"), "{near}");
    assert!(!token.has_ended(at("2030-01-30T23:59:59Z")));
    assert_eq!(token.next_change(at("2030-01-30T00:00:00Z")), Some(at("2030-01-31T00:00:00Z")));
    assert!(token.has_ended(at("2030-01-31T00:00:00Z")));
    let over = token.trouble(at("2031-01-01T00:00:00Z")).expect("it is over");
    assert!(over.contains("has ended") && over.contains("http-token revoke a"), "{over}");
    assert_eq!(token.next_change(at("2031-01-01T00:00:00Z")), None);
}

#[test]
fn a_file_that_others_can_write_or_that_is_too_large_is_not_used() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("tokens");
    let reason = || HttpTokens::read(&path).expect_err("it is not usable").to_string();
    assert!(reason().contains("failed to read"), "it does not exist");
    std::fs::write(&path, format!("a act {DIGEST}\n")).expect("written");
    for (mode, usable) in
        [(0o600, true), (0o644, true), (0o620, false), (0o602, false), (0o666, false)]
    {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
        assert_eq!(HttpTokens::read(&path).is_ok(), usable, "{mode:o}");
    }
    assert!(reason().contains("0666") && reason().contains("chmod 600"), "{}", reason());
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("set");
    std::fs::write(&path, "#".repeat(70_000)).expect("written");
    assert!(reason().contains("larger than 65536 bytes"), "{}", reason());
    std::fs::remove_file(&path).expect("removed");
    std::fs::create_dir(&path).expect("made");
    assert!(reason().contains("not a file"), "{}", reason());
}

fn token(name: &str, scopes: Scopes, secret: &str) -> HttpToken {
    let digest = Sha256Digest::of(secret.as_bytes());
    HttpToken { name: name.into(), scopes, digest, expires: None, line: 0 }
}

#[test]
fn lines_are_appended_and_deleted_and_all_else_stays() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("tokens");
    append(&path, &token("a", Scopes::Read, "1")).expect("appended");
    assert_eq!(std::fs::metadata(&path).expect("it is there").mode() & 0o777, 0o600);
    let first = std::fs::read_to_string(&path).expect("text");
    std::fs::write(&path, format!("# mine\n{}", first.trim_end())).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("set");
    append(&path, &token("b", Scopes::Act, "2")).expect("appended");
    let mode = std::fs::metadata(&path).expect("it is there").mode() & 0o777;
    assert_eq!(mode, 0o640, "the agent may read it as a member of a group");
    let error = append(&path, &token("a", Scopes::Act, "3")).expect_err("it is there");
    assert!(matches!(&error, NotEdited::Refused(why) if why.contains("the name a")), "{error}");
    let names = || {
        let found = HttpTokens::read(&path).expect("usable");
        assert_eq!(found.mistakes, []);
        found.tokens.iter().map(|token| token.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["a", "b"]);
    assert_eq!(delete(&path, "a").expect("deleted"), Opened::Yes, "only who acts is left");
    assert_eq!(names(), ["b"]);
    assert!(std::fs::read_to_string(&path).expect("text").starts_with("# mine\n"));
    assert!(delete(&path, "a").is_err(), "it is gone");
    assert_eq!(delete(&path, "b").expect("deleted"), Opened::No, "a file without tokens is closed");
    assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 1, "nothing is left over");
}

#[test]
fn a_line_with_a_mistake_is_deleted_by_its_name_as_well() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("tokens");
    std::fs::write(&path, format!("a read s3cr3t\nb act {DIGEST}\n")).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("set");
    assert!(append(&path, &token("a", Scopes::Act, "3")).is_err(), "the name is taken");
    delete(&path, "a").expect("deleted");
    assert_eq!(std::fs::read_to_string(&path).expect("text"), format!("b act {DIGEST}\n"));
}

proptest! {
    #[test]
    fn law_arbitrary_bytes_are_lines_or_mistakes(
        bytes in proptest::collection::vec(any::<u8>(), 0..300)
    ) {
        let found = HttpTokens::parse(&bytes);
        prop_assert!(found.tokens.len() <= TOKENS_MAX);
    }

    #[test]
    fn law_a_line_is_read_as_it_was_written(
        name in "[a-zA-Z0-9._-]{1,64}",
        secret: Vec<u8>,
        scopes in prop_oneof![Just(Scopes::Read), Just(Scopes::Act), Just(Scopes::ReadAndAct)],
        expires in proptest::option::of(0u64..200_000_000_000),
    ) {
        prop_assume!(check_name(&name).is_ok());
        let expires =
            expires.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let digest = Sha256Digest::of(&secret);
        let token = HttpToken { name: name.into(), scopes, digest, expires, line: 1 };
        let found = HttpTokens::parse(token.to_string().as_bytes());
        prop_assert_eq!(found, HttpTokens { tokens: vec![token], mistakes: Vec::new() });
    }
}

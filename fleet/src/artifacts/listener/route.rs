//! What a path names. Pure.
//!
//! There is no decoding: a path with an escaped or odd character names nothing. What comes out of
//! it is a plugin's name that is compared, and a [`Digest`]; no text of a client reaches a file.

use guest_agent_proto::artifact::FOLDER;
use guest_agent_proto::escape::is_plain;

use crate::artifacts::digest::Digest;

const MAX_NAME_BYTES: usize = 255;

/// Plugin and digest of an artifact's path.
pub(super) fn artifact(path: &str) -> Option<(&str, Digest)> {
    let (plugin, digest) = path.strip_prefix(FOLDER)?.split_once('/')?;
    let is_name = !plugin.is_empty()
        && plugin.len() <= MAX_NAME_BYTES
        && !plugin.starts_with('.')
        && plugin.bytes().all(is_plain);
    if !is_name {
        return None;
    }
    Some((plugin, digest.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_plugin_and_a_digest() {
        let digest = Digest::of(b"it");
        let path = format!("/artifacts/echo-2.x_y/{digest}");
        assert_eq!(artifact(&path), Some(("echo-2.x_y", digest)));
    }

    #[test]
    fn hostile_paths_name_nothing() {
        let digest = Digest::of(b"it");
        for path in [
            String::new(),
            "/".to_owned(),
            "*".to_owned(),
            "/artifacts/".to_owned(),
            format!("/artifacts/{digest}"),
            format!("/artifacts//{digest}"),
            format!("/artifacts/../{digest}"),
            format!("/artifacts/..%2f/{digest}"),
            format!("/artifacts/.hidden/{digest}"),
            format!("/artifacts/a/b/{digest}"),
            format!("/artifacts/a/{digest}/"),
            format!("/artifacts/a/{digest}/../../etc/passwd"),
            format!("/artifacts/a/%2e%2e/{digest}"),
            format!("/artifacts/a b/{digest}"),
            format!("/artifacts/a\0/{digest}"),
            format!("/artifacts/a/{}", digest.to_string().to_uppercase()),
            format!("/artifacts/a/sha256:{digest}"),
            format!("//artifacts/a/{digest}"),
            format!("/artifacts/{}/{digest}", "a".repeat(256)),
            "/artifacts/a/../../../../etc/passwd".to_owned(),
            "/artifacts/a/tmp".to_owned(),
        ] {
            assert_eq!(artifact(&path), None, "{path}");
        }
    }
}

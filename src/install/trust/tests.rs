use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use minisign::{KeyPair, SecretKey};
use proptest::prelude::*;

use super::*;
use crate::config::trust_key::check_key;

fn pair() -> KeyPair {
    KeyPair::generate_unencrypted_keypair().expect("random numbers")
}

fn signed(key: &SecretKey, comment: &str) -> Signature {
    let made = minisign::sign(None, key, Cursor::new(b"archive"), Some(comment), None);
    Signature::parse(made.expect("signed").into_string().as_bytes()).expect("well-formed")
}

fn ring(keys: &[&KeyPair], binding: Binding) -> Keyring {
    let keys = keys.iter().map(|pair| pair.pk.to_base64()).collect();
    let config = TrustConfig { keys, key_files: Vec::new(), binding };
    match Trust::load(&config).expect("keys") {
        Trust::Keys(ring) => ring,
        other => panic!("{other:?}"),
    }
}

/// The result for an archive `monitor` `1.2` with this content and signature.
fn verdict(ring: &Keyring, signature: &Signature, content: &[u8]) -> Result<(), SignatureError> {
    let (name, revision) = ("monitor".parse().expect("a name"), "1.2".parse().expect("one"));
    let mut check = ring.judge(signature, &name, &revision)?;
    content.chunks(3).for_each(|bytes| check.update(bytes));
    check.finish()
}

#[test]
fn what_a_trusted_key_signed_passes_and_nothing_else_does() {
    let (one, two, stranger) = (pair(), pair(), pair());
    let ring = ring(&[&one, &two], Binding::Plugin);
    for key in [&one, &two] {
        let signature = signed(&key.sk, "plugin:monitor");
        verdict(&ring, &signature, b"archive").expect("trusted");
        let changed = verdict(&ring, &signature, b"Archive");
        assert!(matches!(changed, Err(SignatureError::Wrong { .. })), "{changed:?}");
        let longer = verdict(&ring, &signature, b"archive ");
        assert!(matches!(longer, Err(SignatureError::Wrong { .. })), "{longer:?}");
    }
    let foreign = verdict(&ring, &signed(&stranger.sk, "plugin:monitor"), b"archive");
    let said = foreign.expect_err("a stranger").to_string();
    let id = |pair: &KeyPair| check_key(&pair.pk.to_base64()).expect("a key").to_string();
    for id in [id(&one), id(&two), id(&stranger)] {
        assert!(said.contains(&id), "{said}");
    }
}

#[test]
fn a_key_is_called_what_minisign_calls_it() {
    let pair = pair();
    let comment = pair.pk.to_box().expect("a file").to_string();
    let id = check_key(&pair.pk.to_base64()).expect("a key").to_string();
    assert!(comment.contains(&id), "{id}: {comment}");
}

#[test]
fn the_key_of_another_id_is_not_tried() {
    // An attacker who knows the id of a trusted key can write it into a signature.
    let (trusted, stranger) = (pair(), pair());
    let ring = ring(&[&trusted], Binding::None);
    let made = minisign::sign(None, &stranger.sk, Cursor::new(b"archive"), Some(""), None);
    let text = made.expect("signed").into_string();
    let line = text.lines().nth(1).expect("a second line");
    let mut bytes = STANDARD.decode(line).expect("base64");
    let id = STANDARD.decode(trusted.pk.to_base64()).expect("base64");
    bytes[2..10].copy_from_slice(&id[2..10]);
    let forged = text.replace(line, &STANDARD.encode(bytes));
    let forged = Signature::parse(forged.as_bytes()).expect("well-formed");
    let result = verdict(&ring, &forged, b"archive");
    assert!(matches!(result, Err(SignatureError::Wrong { .. })), "{result:?}");
}

#[test]
fn a_changed_comment_is_a_wrong_signature() {
    let key = pair();
    let ring = ring(&[&key], Binding::Plugin);
    let made = minisign::sign(None, &key.sk, Cursor::new(b"archive"), Some("plugin:other"), None);
    let text = made.expect("signed").into_string().replace("plugin:other", "plugin:monitor");
    let changed = Signature::parse(text.as_bytes()).expect("well-formed");
    let result = verdict(&ring, &changed, b"archive");
    assert!(matches!(result, Err(SignatureError::Wrong { .. })), "{result:?}");
}

#[test]
fn a_signature_is_good_for_what_it_names_only() {
    use Binding::{None, Plugin, Revision};
    let key = pair();
    let check = |binding, comment: &str| match verdict(
        &ring(&[&key], binding),
        &signed(&key.sk, comment),
        b"archive",
    ) {
        Ok(()) => "passes",
        Err(SignatureError::Unbound { field, .. }) => field,
        Err(SignatureError::Other { field: "plugin", .. }) => "other plugin",
        Err(SignatureError::Other { .. }) => "other revision",
        Err(error) => panic!("{error}"),
    };
    let full = "timestamp:1\tplugin:monitor revision:1.2";
    assert_eq!([None, Plugin, Revision].map(|it| check(it, full)), ["passes"; 3]);
    let bare = "timestamp:1\tfile:monitor.tar.gz";
    assert_eq!([None, Plugin, Revision].map(|it| check(it, bare)), ["passes", "plugin", "plugin"]);
    let plugin = "plugin:monitor";
    let verdicts = [None, Plugin, Revision].map(|it| check(it, plugin));
    assert_eq!(verdicts, ["passes", "passes", "revision"]);
    for binding in [None, Plugin, Revision] {
        assert_eq!(check(binding, "plugin:monito revision:1.2"), "other plugin");
        assert_eq!(check(binding, "plugin:monitor revision:1.1"), "other revision");
        assert_eq!(check(binding, "plugin:a plugin:monitor revision:1.2"), "passes");
    }
}

#[test]
fn an_old_signature_is_refused_with_what_to_do() {
    let key = pair();
    let ring = ring(&[&key], Binding::None);
    let made = minisign::sign(None, &key.sk, Cursor::new(b"archive"), Some(""), None);
    let text = made.expect("signed").into_string();
    let line = text.lines().nth(1).expect("a second line");
    let mut bytes = STANDARD.decode(line).expect("base64");
    bytes[1] = b'd';
    let legacy = text.replace(line, &STANDARD.encode(bytes));
    let legacy = Signature::parse(legacy.as_bytes()).expect("well-formed");
    let said = verdict(&ring, &legacy, b"archive").expect_err("legacy").to_string();
    assert!(said.contains("sign again"), "{said}");
}

#[test]
fn keys_come_from_texts_and_from_files_of_minisign() {
    let dir = tempfile::tempdir().expect("a folder");
    let (one, two) = (pair(), pair());
    let file = dir.path().join("two.pub");
    let two_text = two.pk.to_box().expect("a file").to_string();
    std::fs::write(&file, format!("# rotated in spring\n{two_text}\n")).expect("written");
    let config = TrustConfig {
        keys: vec![one.pk.to_base64(), one.pk.to_base64()],
        key_files: vec![file.clone()],
        binding: Binding::None,
    };
    let Ok(Trust::Keys(ring)) = Trust::load(&config) else { panic!("no keys") };
    assert_eq!(ring.keys.len(), 2);
    assert!(matches!(Trust::load(&TrustConfig::default()), Ok(Trust::Anybody)));

    // A key file that is empty, missing or of another kind does not make any signature trusted.
    let config = TrustConfig { key_files: vec![file.clone()], ..TrustConfig::default() };
    for text in ["", "# none\n", "<html>\n", "RWQf6LRCGA9i53mlYecO"] {
        std::fs::write(&file, text).expect("written");
        let Trust::Unreadable(why) = Trust::load_or_nobody(&config) else { panic!("{text:?}") };
        assert!(why.contains("two.pub"), "{why}");
    }
    std::fs::remove_file(&file).expect("deleted");
    assert!(matches!(Trust::load_or_nobody(&config), Trust::Unreadable(_)));
}

#[test]
fn a_secret_key_is_recognised_and_not_repeated() {
    let pair = pair();
    let file = pair.sk.to_box(None).expect("a file").to_string();
    let secret = file.lines().nth(1).expect("a key");
    let said = check_key(secret).expect_err("the other half").to_string();
    assert!(said.contains("SECRET") && !said.contains(&secret[..16]), "{said}");
    let said = check_key("RWnot a key").expect_err("no key").to_string();
    assert!(!said.contains("RWnot"), "{said}");
}

proptest! {
    #[test]
    fn law_no_other_bytes_pass(
        content in prop::collection::vec(any::<u8>(), 0..64),
        at in any::<prop::sample::Index>(),
        flip in 1..=255u8,
    ) {
        let key = pair();
        let ring = ring(&[&key], Binding::None);
        let made = minisign::sign(None, &key.sk, Cursor::new(&content), Some(""), None);
        let text = made.expect("signed").into_string();
        let signature = Signature::parse(text.as_bytes()).expect("well-formed");
        prop_assert!(verdict(&ring, &signature, &content).is_ok());
        if !content.is_empty() {
            let mut other = content.clone();
            let at = at.index(other.len());
            other[at] ^= flip;
            prop_assert!(verdict(&ring, &signature, &other).is_err());
        }
    }

    #[test]
    fn law_a_spoilt_signature_is_refused_or_says_the_same(
        at in any::<prop::sample::Index>(),
        with in any::<u8>(),
    ) {
        let key = pair();
        let ring = ring(&[&key], Binding::Plugin);
        let made = minisign::sign(None, &key.sk, Cursor::new(b"archive"), Some("plugin:monitor"), None);
        let good = made.expect("signed").into_string();
        let mut spoilt = good.clone().into_bytes();
        let at = at.index(spoilt.len());
        spoilt[at] = with;
        let Ok(signature) = Signature::parse(&spoilt) else { return Ok(()) };
        let comment_end = good.find('\n').expect("lines");
        // The first line is ignored, and lines may end in more than one way.
        let harmless = at <= comment_end || spoilt == good.as_bytes() || with == b'\r' || with == b'\n';
        prop_assert!(verdict(&ring, &signature, b"archive").is_err() || harmless, "at {at}: {with}");
    }
}

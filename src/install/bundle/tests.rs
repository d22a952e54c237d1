use proptest::prelude::*;

use super::*;

const ORDER: &str = r#"{"plugin":{"name":"a"}}"#;

fn signature() -> String {
    let pair = minisign::KeyPair::generate_unencrypted_keypair().expect("random numbers");
    let signed = minisign::sign(None, &pair.sk, io::Cursor::new(b"x"), Some("c"), None);
    signed.expect("signed").into_string()
}

/// A bundle's bytes.
fn made(signature: Option<&str>, archive: &[u8]) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    let (packed, out) = (dir.path().join("archive"), dir.path().join("bundle"));
    fs::write(&packed, archive).expect("written");
    write(&out, ORDER, signature, &packed).expect("written");
    let opened = Bundle::open(&out).expect("readable").expect("a bundle");
    assert_eq!(opened.archive_bytes(), archive.len() as u64);
    assert!(Bundle::open(&packed).expect("readable").is_none());
    fs::read(&out).expect("readable")
}

/// Manifest, signature and archive.
type Parts = (String, Option<Vec<u8>>, Vec<u8>);

/// All of a bundle.
fn read(bytes: &[u8]) -> Result<Parts, BundleError> {
    let mut bundle = Bundle::read(bytes)?;
    let mut archive = Vec::new();
    bundle.archive.read_to_end(&mut archive).map_err(BundleError::Read)?;
    Ok((bundle.manifest, bundle.signature, archive))
}

#[test]
fn what_is_written_is_read_and_can_be_listed_by_any_tar() {
    let signature = signature();
    for archive in [&b""[..], b"x", &[7; 512], &[8; 5000]] {
        for signature in [None, Some(signature.as_str())] {
            let bytes = made(signature, archive);
            assert_eq!(bytes.len() % BLOCK, 0);
            let (manifest, found, content) = read(&bytes).expect("as written");
            assert_eq!((manifest.as_str(), &*content), (ORDER, archive));
            assert_eq!(found.as_deref(), signature.map(str::as_bytes));
        }
    }
}

#[test]
fn everything_that_is_not_as_it_was_written_is_refused() {
    let signature = signature();
    let good = made(Some(&signature), b"archive");
    let check = |bytes: &[u8], part: &str| {
        let said = read(bytes).expect_err(part).to_string();
        assert!(said.contains(part), "{said}");
    };
    check(&good[..100], "ends early");
    check(&good[..BLOCK + 5], "ends early");
    check(&good[..3 * BLOCK], "ends early");
    check(&[&good[2 * BLOCK..], &good[..]].concat(), "does not begin with an order");
    check(&[&good[..2 * BLOCK], &good[..]].concat(), "not in their order");
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    check(&changed(0, b'G'), "does not belong");
    check(&changed(b"guest-agent-bundle-".len(), b'2'), "newer");
    check(&changed(100, b'7'), "a header was changed");
    check(&changed(124, b'z'), "not a number");
    check(&changed(156, b'2'), "a header was changed");
    let large = [&header(MANIFEST, MANIFEST_MAX + 1)[..], &[b' '; BLOCK]].concat();
    check(&large, "the limit is");
    let huge = [&good[..4 * BLOCK], &header(ARCHIVE, SIZE_MAX)[..]].concat();
    check(&huge, "the limit is");
    let start = good.windows(9).position(|it| it == b"untrusted").expect("a signature");
    check(&changed(start + 200, b'!'), "the signature");
}

proptest! {
    #[test]
    fn law_no_bytes_make_the_reader_panic_or_take_more_than_it_may(
        start in prop::sample::select(vec![0, BLOCK, 2 * BLOCK]),
        noise in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let mut bytes = made(None, b"archive");
        bytes.truncate(start);
        bytes.extend(noise);
        if let Ok((manifest, signature, archive)) = read(&bytes) {
            let all = manifest.len() + signature.map_or(0, |it| it.len()) + archive.len();
            prop_assert!(all <= bytes.len());
        }
    }
}

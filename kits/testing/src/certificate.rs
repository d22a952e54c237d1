//! Certificates and their keys, in files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rcgen::{CertificateParams, KeyPair};

/// Years in which a certificate is valid: from the first day of one to the first day of another.
pub type Years = (i32, i32);

/// Years that are over.
pub const PAST: Years = (2001, 2002);
/// Years that began, and do not end soon.
pub const NOW: Years = (2020, 2090);
/// Years that are to come.
pub const FUTURE: Years = (2080, 2090);

/// Writes a self-signed certificate for this machine that is valid in these years, and its key, as PEM.
pub fn write(certificate: &Path, key: &Path, (from, until): Years) {
    let pair = KeyPair::generate().expect("a key is made");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut params = CertificateParams::new(names).expect("the names are valid");
    params.not_before = rcgen::date_time_ymd(from, 1, 1);
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    let signed = params.self_signed(&pair).expect("a certificate is made");
    fs::write(certificate, signed.pem()).expect("the certificate is written");
    write_key(key, &pair);
}

/// Writes a key that belongs to no certificate.
pub fn write_other_key(key: &Path) {
    write_key(key, &KeyPair::generate().expect("a key is made"));
}

fn write_key(file: &Path, key: &KeyPair) {
    fs::write(file, key.serialize_pem()).expect("the key is written");
    fs::set_permissions(file, PermissionsExt::from_mode(0o600)).expect("its mode is set");
}

//! A request for a certificate: a public key, and the proof that the sender has its private key.
//!
//! Nothing else of a request counts: names and extensions in it are ignored, because the server
//! decides what stands in a certificate.

use data_encoding::HEXLOWER;
use rcgen::SubjectPublicKeyInfo;
use sha2::{Digest, Sha256};
use thiserror::Error;
use x509_parser::prelude::{FromDer, X509CertificationRequest};
use x509_parser::public_key::PublicKey;

/// Longest request, in bytes of its PEM form.
const MAX_BYTES: usize = 16 << 10;
/// Bits of the weakest RSA key that is certified.
const RSA_BITS: usize = 2048;
const PEM_LABEL: &str = "CERTIFICATE REQUEST";

/// A key that its owner proved to have.
#[derive(Clone, Debug)]
pub struct ProvenKey {
    /// The public key as certificates hold it.
    pub(super) public: SubjectPublicKeyInfo,
    /// SHA-256 of the public key, in lower-case hexadecimal digits.
    pub digest: String,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CsrError {
    /// It is larger than any request.
    #[error("the request has {0} bytes, and at most {MAX_BYTES} are allowed")]
    TooLarge(usize),
    /// It is no PEM, or of something else.
    #[error("the request is not one PEM block `{PEM_LABEL}`")]
    NotPem,
    /// It cannot be read.
    #[error("the content of the request is damaged")]
    Damaged,
    /// The key is of a kind that is not certified.
    #[error("the key is neither ECDSA P-256 nor Ed25519 nor RSA")]
    Kind,
    /// The key can be guessed.
    #[error("the RSA key has {0} bits, and at least {RSA_BITS} are required")]
    Weak(usize),
    /// The sender did not prove that it has the key.
    #[error("the signature of the request does not fit its key")]
    Signature,
}

/// Checks a request.
///
/// # Errors
/// See [`CsrError`].
pub fn check(pem: &str) -> Result<ProvenKey, CsrError> {
    if pem.len() > MAX_BYTES {
        return Err(CsrError::TooLarge(pem.len()));
    }
    let (_, block) =
        x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|_| CsrError::NotPem)?;
    if block.label != PEM_LABEL {
        return Err(CsrError::NotPem);
    }
    let (rest, request) =
        X509CertificationRequest::from_der(&block.contents).map_err(|_| CsrError::Damaged)?;
    if !rest.is_empty() {
        return Err(CsrError::Damaged);
    }
    let key = &request.certification_request_info.subject_pki;
    let public = SubjectPublicKeyInfo::from_der(key.raw).map_err(|_| CsrError::Kind)?;
    check_kind(&public, &key.parsed().map_err(|_| CsrError::Damaged)?)?;
    request.verify_signature().map_err(|_| CsrError::Signature)?;
    Ok(ProvenKey { public, digest: HEXLOWER.encode(&Sha256::digest(key.raw)) })
}

fn check_kind(public: &SubjectPublicKeyInfo, key: &PublicKey<'_>) -> Result<(), CsrError> {
    use rcgen::PublicKeyData;

    let algorithm = public.algorithm();
    if algorithm == &rcgen::PKCS_ECDSA_P256_SHA256 || algorithm == &rcgen::PKCS_ED25519 {
        return Ok(());
    }
    match key {
        PublicKey::RSA(key) if key.key_size() >= RSA_BITS => Ok(()),
        PublicKey::RSA(key) => Err(CsrError::Weak(key.key_size())),
        _ => Err(CsrError::Kind),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, IsCa, KeyPair, SanType};

    use super::*;

    fn request(key: &KeyPair, params: &CertificateParams) -> String {
        params.serialize_request(key).expect("a request").pem().expect("PEM")
    }

    fn ask(key: &KeyPair) -> String {
        request(key, &CertificateParams::default())
    }

    #[test]
    fn the_kinds_of_keys_that_hold_are_certified() {
        for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ED25519] {
            let key = KeyPair::generate_for(algorithm).expect("a key");
            let proven = check(&ask(&key)).expect("a request");
            assert_eq!(proven.digest.len(), 64);
        }
        let odd = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("a key");
        assert_eq!(check(&ask(&odd)).err(), Some(CsrError::Kind));
    }

    #[test]
    fn a_request_may_ask_for_anything_and_only_its_key_counts() {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["bank.example".to_owned()]).expect("names");
        params
            .subject_alt_names
            .push(SanType::URI("guest-fleet://f/agent/x".try_into().expect("a name")));
        params.is_ca = IsCa::NoCa;
        let (plain, greedy) = (check(&ask(&key)), check(&request(&key, &params)));
        assert_eq!(plain.expect("a request").digest, greedy.expect("a request").digest);
    }

    #[test]
    fn a_request_with_a_foreign_key_proves_nothing() {
        let (key, other) =
            (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
        let (mut der, foreign) = (
            CertificateParams::default().serialize_request(&key).expect("a request").der().to_vec(),
            other.public_key_raw().to_vec(),
        );
        let own = key.public_key_raw();
        let at = der.windows(own.len()).position(|bytes| bytes == own).expect("the key is in it");
        der[at..at + own.len()].copy_from_slice(&foreign);
        assert_eq!(check(&pem(&der)).err(), Some(CsrError::Signature));
    }

    #[test]
    fn garbage_is_refused() {
        let key = KeyPair::generate().expect("a key");
        let good = ask(&key);
        let der =
            CertificateParams::default().serialize_request(&key).expect("a request").der().to_vec();
        for (bad, error) in [
            (String::new(), CsrError::NotPem),
            ("\0\u{7f}".repeat(100), CsrError::NotPem),
            (key.serialize_pem(), CsrError::NotPem),
            (pem(b"nothing"), CsrError::Damaged),
            (pem(&[der.clone(), vec![0]].concat()), CsrError::Damaged),
            (good.repeat(100), CsrError::TooLarge(good.len() * 100)),
        ] {
            assert_eq!(check(&bad).err(), Some(error), "{bad}");
        }
        // No cut or changed byte is a panic, and none is a proof of another key. What the signature
        // does not cover may differ.
        let own = check(&good).expect("a request").digest;
        for at in 0..der.len() {
            let mut changed = der.clone();
            changed[at] ^= 0x55;
            assert!(check(&pem(&changed)).map_or(true, |key| key.digest == own), "byte {at}");
            assert!(check(&pem(&der[..at])).is_err(), "cut at {at}");
        }
    }

    fn pem(der: &[u8]) -> String {
        use base64::Engine;

        let text = base64::engine::general_purpose::STANDARD.encode(der);
        let lines: Vec<&str> = text
            .as_bytes()
            .chunks(64)
            .map(|line| std::str::from_utf8(line).expect("ASCII"))
            .collect();
        format!("-----BEGIN {PEM_LABEL}-----\n{}\n-----END {PEM_LABEL}-----\n", lines.join("\n"))
    }
}

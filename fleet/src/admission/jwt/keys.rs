//! The public keys of an issuer: a JSON Web Key Set (RFC 7517). Keys of other kinds are left out.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use thiserror::Error;

use crate::net::outbound::FetchError;

/// Largest set that is read, in bytes.
pub(super) const SET_BYTES: usize = 256 << 10;
/// Most keys of a set.
const KEYS: usize = 100;
const COORDINATE_BYTES: usize = 32;

/// A set of keys.
#[derive(Debug, Default)]
pub(super) struct Keys(Vec<Key>);

/// A key that signs tokens.
#[derive(Debug)]
pub(super) struct Key {
    id: Option<String>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Rs256 { modulus: Vec<u8>, exponent: Vec<u8> },
    Es256 { point: Vec<u8> },
}

/// How a token says that it was signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Es256,
}

/// Why the keys of an issuer cannot be used.
#[derive(Debug, Error)]
pub enum KeysError {
    /// The file cannot be read.
    #[error("cannot read `{path}`")]
    File {
        /// The file.
        path: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The address gave nothing.
    #[error("cannot get `{url}`")]
    Fetch {
        /// The address.
        url: String,
        /// Why not.
        #[source]
        source: FetchError,
    },
    /// It is no set of keys.
    #[error("it is no JSON Web Key Set")]
    Json(#[source] serde_json::Error),
    /// There are too many.
    #[error("the set has {0} keys, and at most {KEYS} are allowed")]
    TooMany(usize),
    /// No key of the set signs tokens.
    #[error("the set has no RSA key of 2048 bits or more and no P-256 key that signs")]
    None,
    /// It is too large.
    #[error("the set is larger than {SET_BYTES} bytes")]
    TooLarge,
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

// === impl Keys ===

impl Keys {
    /// Reads a set.
    pub(super) fn parse(json: &[u8]) -> Result<Self, KeysError> {
        if json.len() > SET_BYTES {
            return Err(KeysError::TooLarge);
        }
        let set: Set = serde_json::from_slice(json).map_err(KeysError::Json)?;
        if set.keys.len() > KEYS {
            return Err(KeysError::TooMany(set.keys.len()));
        }
        let keys: Vec<Key> = set.keys.iter().filter_map(Key::read).collect();
        if keys.is_empty() { Err(KeysError::None) } else { Ok(Self(keys)) }
    }

    /// The key with an id, or the only one of its kind for a token that names none.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&Key> {
        let mut fitting = self.0.iter().filter(|key| key.algorithm() == algorithm);
        match id {
            Some(id) => fitting.find(|key| key.id.as_deref() == Some(id)),
            None => fitting.next().filter(|_| fitting.next().is_none()),
        }
    }
}

// === impl Key ===

impl Key {
    fn read(jwk: &Jwk) -> Option<Self> {
        if jwk.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let kind = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => {
                let modulus = without_zeros(bytes(jwk.n.as_deref())?);
                // A shorter modulus is refused by the check of every signature, too.
                (modulus.len() >= 256).then_some(())?;
                Kind::Rs256 { modulus, exponent: without_zeros(bytes(jwk.e.as_deref())?) }
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes(jwk.x.as_deref())?, bytes(jwk.y.as_deref())?);
                (x.len() == COORDINATE_BYTES && y.len() == COORDINATE_BYTES).then_some(())?;
                Kind::Es256 { point: [&[4], x.as_slice(), y.as_slice()].concat() }
            }
            _ => return None,
        };
        let key = Self { id: jwk.kid.clone(), kind };
        jwk.alg
            .as_deref()
            .is_none_or(|name| Algorithm::read(name) == Some(key.algorithm()))
            .then_some(key)
    }

    fn algorithm(&self) -> Algorithm {
        match self.kind {
            Kind::Rs256 { .. } => Algorithm::Rs256,
            Kind::Es256 { .. } => Algorithm::Es256,
        }
    }

    /// Whether the key signed these bytes.
    pub(super) fn signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match &self.kind {
            Kind::Rs256 { modulus, exponent } => RsaPublicKeyComponents { n: modulus, e: exponent }
                .verify(&signature::RSA_PKCS1_2048_8192_SHA256, message, signature),
            Kind::Es256 { point } => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point)
                    .verify(message, signature)
            }
        };
        verified.is_ok()
    }
}

// === impl Algorithm ===

impl Algorithm {
    /// The algorithm with this name. Others, `none` before all, sign nothing here.
    pub(super) fn read(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            _ => None,
        }
    }
}

fn bytes(text: Option<&str>) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text?.trim_end_matches('=')).ok()
}

fn without_zeros(bytes: Vec<u8>) -> Vec<u8> {
    bytes.into_iter().skip_while(|byte| *byte == 0).collect()
}

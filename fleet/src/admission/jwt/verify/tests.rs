use std::time::UNIX_EPOCH;

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::json;

use super::*;
use crate::admission::jwt::keys::KeysError;

pub(crate) const AUDIENCE: &str = "https://fleet.example";
pub(crate) const ISSUER: &str = "https://issuer.example";

/// Who signs tokens with a key of ECDSA P-256.
pub(crate) struct Issuer(EcdsaKeyPair);

impl Issuer {
    pub(crate) fn new() -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
        Self(EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).expect("a key"))
    }

    pub(crate) fn jwk(&self, id: &str) -> Value {
        let point = self.0.public_key().as_ref();
        let (x, y) = (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..]));
        json!({ "kty": "EC", "crv": "P-256", "kid": id, "x": x, "y": y })
    }

    pub(crate) fn jwks(&self) -> String {
        json!({ "keys": [self.jwk("one")] }).to_string()
    }

    pub(crate) fn sign(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let signed = self.0.sign(&SystemRandom::new(), message.as_bytes()).expect("signed");
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signed))
    }

    /// A token for an agent that ends in an hour.
    pub(crate) fn token(&self, id: &str) -> String {
        self.sign(&json!({ "alg": "ES256", "kid": "one" }), &claims(id))
    }
}

pub(crate) fn claims(id: &str) -> Value {
    json!({ "aud": AUDIENCE, "iss": ISSUER, "sub": id, "exp": seconds() + 3600, "iat": seconds() })
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

fn rules() -> Rules {
    Rules { audience: AUDIENCE.to_owned(), issuer: Some(ISSUER.to_owned()) }
}

fn keys(issuer: &Issuer) -> Keys {
    Keys::parse(issuer.jwks().as_bytes()).expect("keys")
}

fn result(issuer: &Issuer, token: &str) -> Result<Value, VerifyError> {
    verify(token, &keys(issuer), &rules(), SystemTime::now()).map(|verified| verified.claims)
}

/// Changes claims of a good token, or removes those that are null, and checks the outcome.
#[track_caller]
fn with_claims(changes: &Value, expected: Option<VerifyError>) {
    let (issuer, mut claims) = (Issuer::new(), claims("vm-1"));
    for (name, value) in changes.as_object().expect("an object") {
        claims[name] = value.clone();
    }
    claims.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
    let token = issuer.sign(&json!({ "alg": "ES256" }), &claims);
    assert_eq!(result(&issuer, &token).err(), expected, "{changes}");
}

#[test]
fn a_signed_token_for_this_fleet_is_taken() {
    let issuer = Issuer::new();
    assert_eq!(result(&issuer, &issuer.token("vm-1")).expect("taken")["sub"], "vm-1");
    with_claims(&json!({ "aud": ["other", AUDIENCE] }), None);
    with_claims(&json!({ "exp": (seconds() + 60) as f64 + 0.5, "iat": null }), None);
}

#[test]
fn a_token_with_an_rsa_signature_is_taken_and_one_by_a_short_key_is_not() {
    let fixture: Value = serde_json::from_str(include_str!("rs256.json")).expect("JSON");
    let token = fixture["token"].as_str().expect("a token");
    let set = |key: &Value| json!({ "keys": [key] }).to_string();
    let keys = Keys::parse(set(&fixture["key"]).as_bytes()).expect("keys");
    assert!(verify(token, &keys, &rules(), SystemTime::now()).is_ok());
    let cut = &token[..token.len() - 4];
    let checked = verify(&format!("{cut}AAAA"), &keys, &rules(), SystemTime::now());
    assert_eq!(checked.err(), Some(VerifyError::Signature));
    let short = Keys::parse(set(&fixture["short_key"]).as_bytes());
    assert!(matches!(short, Err(KeysError::None)), "{short:?}");
}

#[test]
fn times_count_with_a_minute_of_leeway() {
    let now = seconds();
    with_claims(&json!({ "exp": now - 30 }), None);
    with_claims(&json!({ "exp": now - 61 }), Some(VerifyError::Ended));
    with_claims(&json!({ "nbf": now + 30 }), None);
    with_claims(&json!({ "nbf": now + 90 }), Some(VerifyError::Early));
    with_claims(&json!({ "iat": now + 90 }), Some(VerifyError::Early));
    for odd in [json!(null), json!("soon"), json!(-1), json!(1e300), json!([])] {
        with_claims(&json!({ "exp": odd }), Some(VerifyError::NoEnd));
    }
}

#[test]
fn a_token_for_somebody_else_is_refused() {
    let google = Some(VerifyError::GoogleAudience(AUDIENCE.to_owned()));
    with_claims(&json!({ "aud": GOOGLE_AUDIENCE }), google.clone());
    with_claims(&json!({ "aud": format!("https://{GOOGLE_AUDIENCE}") }), google);
    for odd in [json!("other"), json!([]), json!(null), json!({ "x": AUDIENCE }), json!(["a", 1])] {
        let found = odd.to_string().escape_debug().to_string();
        let wanted = AUDIENCE.to_owned();
        with_claims(&json!({ "aud": odd }), Some(VerifyError::Audience { found, wanted }));
    }
    let (found, wanted) = ("null".to_owned(), ISSUER.to_owned());
    with_claims(&json!({ "iss": null }), Some(VerifyError::Issuer { found, wanted }));
}

#[test]
fn a_token_that_nobody_known_signed_is_refused() {
    let (issuer, other) = (Issuer::new(), Issuer::new());
    assert_eq!(result(&issuer, &other.token("vm-1")).err(), Some(VerifyError::Signature));
    let unknown = issuer.sign(&json!({ "alg": "ES256", "kid": "new" }), &claims("vm-1"));
    assert_eq!(result(&issuer, &unknown).err(), Some(VerifyError::UnknownKey("new".into())));
    for name in ["none", "None", "HS256", "RS512", "ES384", ""] {
        let token = issuer.sign(&json!({ "alg": name }), &claims("vm-1"));
        let expected = Some(VerifyError::Algorithm(name.to_owned()));
        assert_eq!(result(&issuer, &token).err(), expected, "{name}");
    }
    // The key is one for ES256, whatever the token says.
    let confused = issuer.sign(&json!({ "alg": "RS256" }), &claims("vm-1"));
    let unnamed = VerifyError::UnknownKey("(unnamed)".into());
    assert_eq!(result(&issuer, &confused).err(), Some(unnamed));
    let critical = issuer.sign(&json!({ "alg": "ES256", "crit": ["x"] }), &claims("vm-1"));
    assert_eq!(result(&issuer, &critical).err(), Some(VerifyError::Critical));
}

#[test]
fn garbage_is_no_token() {
    let issuer = Issuer::new();
    let good = issuer.token("vm-1");
    for bad in ["", ".", "..", "...", "a.b.c", "ä.ö.ü", "e30.e30.", "!.!.!"] {
        assert_eq!(result(&issuer, bad).err(), Some(VerifyError::Malformed), "{bad}");
    }
    let large = "x".repeat(TOKEN_BYTES + 1);
    assert_eq!(result(&issuer, &large).err(), Some(VerifyError::TooLarge(TOKEN_BYTES + 1)));
    for at in 0..good.len() {
        assert!(result(&issuer, &good[..at]).is_err(), "cut at {at}");
        let mut changed = good.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).expect("ASCII");
        assert!(result(&issuer, &changed).is_err(), "changed at {at}");
    }
}

#[test]
fn a_set_without_a_key_that_signs_is_refused() {
    let key = Issuer::new().jwk("one");
    let with = |name: &str, value: Value| {
        let mut key = key.clone();
        key[name] = value;
        json!({ "keys": [key] })
    };
    for bad in [
        json!({}),
        json!([]),
        json!({ "keys": [] }),
        with("use", json!("enc")),
        with("alg", json!("ES384")),
        with("crv", json!("P-384")),
        with("x", json!("AA")),
        with("kty", json!("oct")),
        json!({ "keys": vec![key.clone(); 101] }),
    ] {
        assert!(Keys::parse(bad.to_string().as_bytes()).is_err(), "{bad}");
    }
    assert!(Keys::parse(&vec![b' '; (256 << 10) + 1]).is_err());
    // A key of a kind that is not known is no trouble for the others.
    let mixed = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": "AA" }, key] });
    assert!(Keys::parse(mixed.to_string().as_bytes()).is_ok());
}

//! What clients and servers of NATS show each other: certificates, nkeys, and JWTs with their
//! operator, accounts and users.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair as Nkey;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};

/// Writes a file; returns its path.
pub(crate) fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// An authority whose files are in a folder.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
    /// Its certificate.
    pub(crate) file: PathBuf,
}

// === impl Authority ===

impl Authority {
    pub(crate) fn new(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let file = write(folder, &format!("{name}.pem"), &issuer.pem());
        Self { issuer, folder: folder.to_owned(), file }
    }

    /// Files with a certificate for somebody at an address, and with its key.
    pub(crate) fn issue(&self, name: &str, address: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![address.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let certificate = write(&self.folder, &format!("{name}.cert"), &certificate);
        (certificate, write(&self.folder, &format!("{name}.key"), &key.serialize_pem()))
    }
}

/// The block `tls` of a server.
pub(crate) fn tls((certificate, key): &(PathBuf, PathBuf), more: &str) -> String {
    let (certificate, key) = (certificate.display(), key.display());
    format!("tls {{\n  cert_file: \"{certificate}\"\n  key_file: \"{key}\"\n  {more}\n}}\n")
}

/// An operator with an account that has JetStream, and a system account.
pub(crate) struct Operator {
    key: Nkey,
    account: Nkey,
    system: Nkey,
}

// === impl Operator ===

impl Operator {
    pub(crate) fn new() -> Self {
        let (account, system) = (Nkey::new_account(), Nkey::new_account());
        Self { key: Nkey::new_operator(), account, system }
    }

    /// The lines with which servers obey it.
    pub(crate) fn lines(&self) -> String {
        let (system, account) = (self.system.public_key(), self.account.public_key());
        let operator = json!({ "type": "operator", "version": 2, "system_account": system });
        let operator = jwt(&self.key, &self.key.public_key(), operator);
        let streams =
            json!({ "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1 });
        let preload = [
            (&account, jwt(&self.key, &account, account_claims(&streams))),
            (&system, jwt(&self.key, &system, account_claims(&json!({})))),
        ]
        .map(|(key, jwt)| format!("  {key}: {jwt}\n"))
        .concat();
        format!(
            "operator: {operator}\nsystem_account: {system}\nresolver: MEMORY\nresolver_preload {{\n{preload}}}\n"
        )
    }

    /// The login of a user of the account, as `nsc generate creds` writes it.
    pub(crate) fn user(&self) -> String {
        credentials(&self.account)
    }

    /// The login of a user of the system account.
    pub(crate) fn system_user(&self) -> String {
        credentials(&self.system)
    }
}

fn account_claims(more: &Value) -> Value {
    let mut limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
    });
    for (name, limit) in more.as_object().unwrap() {
        limits[name] = limit.clone();
    }
    json!({ "type": "account", "version": 2, "limits": limits, "default_permissions": { "pub": {}, "sub": {} } })
}

fn credentials(account: &Nkey) -> String {
    let user = Nkey::new_user();
    let claims = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {} });
    let (jwt, seed) = (jwt(account, &user.public_key(), claims), user.seed().unwrap());
    format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

/// A JWT of NATS about the owner of a public key.
fn jwt(issuer: &Nkey, about: &str, claims: Value) -> String {
    let part = |part: Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let claims = json!({
        "jti": about, "iat": 1_700_000_000, "iss": issuer.public_key(), "name": about, "sub": about, "nats": claims,
    });
    let signed =
        format!("{}.{}", part(json!({ "typ": "JWT", "alg": "ed25519-nkey" })), part(claims));
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(issuer.sign(signed.as_bytes()).unwrap()))
}

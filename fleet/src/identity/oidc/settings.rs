//! How people log in, as the operator of a fleet says it.

use std::path::PathBuf;

/// How people log in.
#[derive(Clone, Debug)]
pub struct OidcSettings {
    /// The issuer: an `https://` URL, or on this machine an `http://` one.
    pub issuer: String,
    /// What the provider calls this fleet.
    pub client_id: String,
    /// File with the secret that the provider gave to this fleet; read with each login.
    pub client_secret_file: Option<PathBuf>,
    /// The claim that names a person, such as `email` or a JSON pointer.
    pub name_claim: String,
    /// The claim that lists the groups of a person, such as `groups` or a JSON pointer.
    pub groups_claim: String,
    /// What is asked for beside `openid`, such as `email`. With `offline_access`, where the provider gives
    /// it, sessions are checked again without the browser.
    pub scopes: Vec<String>,
    /// Authorities to trust for the provider, PEM; without any those of the machine.
    pub ca: Option<PathBuf>,
}

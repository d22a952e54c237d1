//! Why a login fails.

use std::io;

use http::StatusCode;
use thiserror::Error;

use crate::jwt::KeysError;
use crate::outbound::FetchError;

/// Why a login fails.
#[derive(Debug, Error)]
pub enum OidcError {
    /// A setting is missing.
    #[error(
        "the id of this fleet at the identity provider is empty or not valid: see --oidc-client-id"
    )]
    NoClient,
    /// An address is not valid.
    #[error("the address `{url}` of the identity provider cannot be used")]
    Url {
        /// The address.
        url: String,
        /// Why not.
        #[source]
        source: FetchError,
    },
    /// The provider cannot be asked.
    #[error("the identity provider does not answer at `{url}`")]
    Fetch {
        /// What was asked.
        url: String,
        /// Why there is no answer.
        #[source]
        source: FetchError,
    },
    /// It could not be asked a moment ago, and is not asked again at once.
    #[error("the identity provider could not be asked a moment ago: {0}")]
    Away(String),
    /// Its description lacks something.
    #[error("`{0}` does not describe an identity provider with an authorization code and PKCE")]
    Metadata(String),
    /// Its description is that of another issuer.
    #[error("`{asked}` says that it is the issuer `{found}`: write the issuer as it calls itself")]
    Issuer {
        /// The issuer that was set.
        asked: String,
        /// The one that answered.
        found: String,
    },
    /// Its keys cannot be used.
    #[error("the keys of the identity provider cannot be used")]
    Keys(#[from] KeysError),
    /// The secret of this fleet cannot be read.
    #[error("the secret of this fleet at the identity provider cannot be read from `{path}`")]
    SecretFile {
        /// The file.
        path: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The secret of this fleet is empty.
    #[error("the file `{0}` with the secret of this fleet at the identity provider is empty")]
    NoSecret(String),
    /// The browser did not begin the login, or it took too long.
    #[error("this login was not begun in this browser, or more than ten minutes ago: begin again")]
    NoLogin,
    /// The answer says that it is of another issuer.
    #[error("the answer is that of another identity provider")]
    OtherIssuer,
    /// The provider refused the person.
    #[error("the identity provider refused the login: {0}")]
    Refused(String),
    /// The answer has no code.
    #[error("the answer of the identity provider has no code")]
    NoCode,
    /// The provider refused the code.
    #[error("the identity provider refused the code with the status {status}: {error}")]
    Exchange {
        /// The status.
        status: StatusCode,
        /// Its word for it.
        error: String,
    },
    /// The answer has no token.
    #[error("the answer of the identity provider has no token of a person")]
    Answer,
    /// The token cannot be believed.
    #[error("the token of the identity provider is not taken: {0}")]
    Token(String),
    /// The token is for another login.
    #[error("the token of the identity provider is for another login")]
    Nonce,
    /// The token is for another party.
    #[error("the token of the identity provider was given to another party")]
    Party,
    /// A renewed token is that of another person.
    #[error("the renewed token is that of another person")]
    OtherPerson,
    /// The token does not name the person.
    #[error(
        "the claim `{0}` of the token names nobody: it has to be a text of 1 to 128 bytes; see --oidc-name-claim and \
         --oidc-scope"
    )]
    Name(String),
    /// Anybody could say this address.
    #[error("the identity provider has not verified the address `{0}`")]
    Unverified(String),
    /// The groups cannot be read.
    #[error(
        "the claim `{0}` of the token is not a list of at most 1000 texts; see --oidc-groups-claim"
    )]
    Groups(String),
    /// The provider left the groups out.
    #[error(
        "the person has so many groups that the identity provider left them out of the token: have it send those of \
         this fleet alone"
    )]
    GroupsLeftOut,
}

// === impl OidcError ===

impl OidcError {
    /// Whether the provider does not want this person any more, rather than being away.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Exchange { status, .. } => status.is_client_error(),
            Self::Refused(_)
            | Self::Answer
            | Self::Token(_)
            | Self::Nonce
            | Self::Party
            | Self::OtherPerson
            | Self::Name(_)
            | Self::Unverified(_)
            | Self::Groups(_)
            | Self::GroupsLeftOut
            | Self::OtherIssuer
            | Self::NoLogin
            | Self::NoCode => true,
            Self::NoClient
            | Self::Url { .. }
            | Self::Fetch { .. }
            | Self::Away(_)
            | Self::Metadata(_)
            | Self::Issuer { .. }
            | Self::Keys(_)
            | Self::SecretFile { .. }
            | Self::NoSecret(_) => false,
        }
    }
}

/// A text of the provider for an error.
pub(super) fn shorten(text: &str) -> String {
    text.escape_debug().take(100).collect()
}

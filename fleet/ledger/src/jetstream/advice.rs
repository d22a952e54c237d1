//! What to change where no server takes a connection.

use std::io;
use std::path::Path;

use async_nats::{ConnectError, ConnectErrorKind};
use rustls::{AlertDescription, CertificateError, Error as TlsError};

use super::address::{Login, NatsAddress};

/// What to change, with the files and options that it is about. `prefix` stands before the options of the
/// login.
pub(super) fn advice(
    address: &NatsAddress,
    login: &Login,
    prefix: &str,
    error: &ConnectError,
) -> String {
    match (error.kind(), tls_error(error)) {
        (ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication, _) => {
            about_login(address, login, prefix)
        }
        (_, Some(error)) => about_tls(address, error),
        (ConnectErrorKind::Tls, None) => {
            "the files of `ca=`, `cert=` and `key=` of the address have to be PEM, and the key that of the certificate"
                .to_owned()
        }
        _ => "look whether the servers run, and whether the address names them".to_owned(),
    }
}

fn about_login(address: &NatsAddress, login: &Login, prefix: &str) -> String {
    let (option, file): (&str, &Path) = match login {
        Login::Nobody => {
            let shown = address.certificate.as_ref().map_or_else(String::new, |(file, _)| {
                format!(", and they do not know the certificate in `{}`", file.display())
            });
            return format!(
                "the servers want a login{shown}: name one with `{prefix}creds=FILE`, `{prefix}nkey=FILE`, or \
                 `{prefix}user=NAME&{prefix}password-file=FILE`"
            );
        }
        Login::Credentials(file) => ("creds", file),
        Login::Seed(file) => ("nkey", file),
        Login::Password(_, file) => ("password-file", file),
    };
    let file = file.display();
    format!(
        "the servers do not know the login of `{file}`: name that of a user of theirs with `{prefix}{option}=`"
    )
}

fn about_tls(address: &NatsAddress, error: &TlsError) -> String {
    // Two authorities of one name differ by their keys.
    let is_unknown = matches!(
        error,
        TlsError::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature
        )
    );
    match (error, &address.authority, &address.certificate) {
        (_, Some(authority), _) if is_unknown => {
            let file = authority.display();
            format!(
                "the servers' certificate is not from the authority in `{file}`: name the file of theirs with `ca=`"
            )
        }
        (_, None, _) if is_unknown => {
            "this machine does not trust the authority of the servers' certificate: name its file with `ca=FILE`"
                .to_owned()
        }
        (
            TlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ),
            ..,
        ) => "the servers' certificate is for other names: the address has to name the servers as it does"
            .to_owned(),
        (TlsError::InvalidCertificate(_), ..) => {
            "the servers' certificate is not valid: give them another one".to_owned()
        }
        (TlsError::AlertReceived(alert), _, Some((file, _))) if is_about_ours(*alert) => {
            let file = file.display();
            format!(
                "the servers do not take the certificate in `{file}`: name one of an authority of theirs with \
                 `cert=FILE&key=FILE`"
            )
        }
        (TlsError::AlertReceived(alert), _, None) if is_about_ours(*alert) => {
            "the servers want a certificate: name one with `cert=FILE&key=FILE`".to_owned()
        }
        (TlsError::InvalidMessage(_), ..) => {
            "the servers have no TLS: give them some, or write `nats://` where the network is yours"
                .to_owned()
        }
        _ => "look at `ca=`, `cert=` and `key=` of the address, and at the block `tls` of the servers"
            .to_owned(),
    }
}

/// Whether an alert is about the certificate that this program showed, or did not.
fn is_about_ours(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
    )
}

/// What went wrong with TLS, where that is the cause.
fn tls_error(error: &ConnectError) -> Option<&TlsError> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // What an I/O error holds is not its source, but the error itself.
        let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = held.map_or_else(|| error.source(), |held| Some(held));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(options: &str, prefix: &str, error: &ConnectError) -> String {
        let address: NatsAddress =
            format!("tls://a?monitor=a{options}").parse().expect("an address");
        advice(&address, &address.login, prefix, error)
    }

    fn tls(error: TlsError) -> ConnectError {
        let error = io::Error::new(io::ErrorKind::InvalidData, error);
        ConnectError::with_source(ConnectErrorKind::Io, error)
    }

    #[test]
    fn advice_names_the_file_and_the_option() {
        let issuer = || tls(TlsError::InvalidCertificate(CertificateError::UnknownIssuer));
        let required = || tls(TlsError::AlertReceived(AlertDescription::CertificateRequired));
        let unknown = || ConnectError::new(ConnectErrorKind::AuthorizationViolation);
        for (options, prefix, error, words) in [
            ("&ca=/f", "", issuer(), ["`/f`", "`ca=`"]),
            ("", "", issuer(), ["does not trust", "`ca=FILE`"]),
            ("", "", required(), ["want a certificate", "`cert=FILE&key=FILE`"]),
            ("&cert=/c&key=/k", "", required(), ["`/c`", "`cert=FILE&key=FILE`"]),
            ("&creds=/f", "", unknown(), ["`/f`", "`creds=`"]),
            ("&nkey=/f", "system-", unknown(), ["`/f`", "`system-nkey=`"]),
            ("&user=u&password-file=/f", "", unknown(), ["`/f`", "`password-file=`"]),
            ("", "", unknown(), ["want a login:", "`creds=FILE`"]),
            ("&cert=/c&key=/k", "", unknown(), ["`/c`", "`creds=FILE`"]),
            ("", "", ConnectError::new(ConnectErrorKind::Tls), ["PEM", "`key=`"]),
            ("", "", ConnectError::new(ConnectErrorKind::TimedOut), ["run", "address"]),
        ] {
            let text = said(options, prefix, &error);
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }
}

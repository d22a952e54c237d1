//! The options of `serve` that say how people log in to the console by an identity provider.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use guest_fleet::console::{CallbackUrl, Scheme};
use guest_fleet::identity::oidc::{Oidc, OidcSettings};
use guest_fleet::{Listen, tls};

use super::files::read_text;

/// Most bytes of all scopes.
const SCOPE_BYTES: usize = 1024;

/// How people log in.
#[derive(Args)]
#[group(skip)]
#[command(next_help_heading = "Logins of people")]
pub(crate) struct Options {
    /// Identity provider (OpenID Connect) by which people log in to the console: its issuer, such as
    /// `https://id.example/realms/ops`.
    #[arg(long, value_name = "URL", requires_all = ["oidc_client_id", "api_listen"])]
    oidc_issuer: Option<String>,
    /// What the provider calls this fleet.
    #[arg(long, value_name = "ID", requires = "oidc_issuer")]
    oidc_client_id: Option<String>,
    /// File with the secret that the provider gave to this fleet; read with each login. Without one the provider has
    /// to take this fleet as a public client.
    #[arg(long, value_name = "FILE", requires = "oidc_issuer")]
    oidc_client_secret_file: Option<PathBuf>,
    /// Authorities to trust for the provider, PEM, in place of those of this machine.
    #[arg(long, value_name = "FILE", requires = "oidc_issuer")]
    oidc_ca: Option<PathBuf>,
    /// Where the provider sends browsers back, as it has to know it. Without it
    /// `https://NAME:PORT/console/login/callback`, by the first `--api-name` and the port of `--api-listen`.
    #[arg(long, value_name = "URL", requires = "oidc_issuer")]
    oidc_redirect_url: Option<String>,
    /// Claim that names a person, as `access grant NAME` has it: a name such as `email` or `sub`, or a JSON pointer.
    #[arg(long, value_name = "CLAIM", default_value = "email", requires = "oidc_issuer")]
    oidc_name_claim: String,
    /// Claim that lists the groups of a person, as `access grant --group` has them: a name, or a JSON pointer such as
    /// `/realm_access/roles`.
    #[arg(long, value_name = "CLAIM", default_value = "groups", requires = "oidc_issuer")]
    oidc_groups_claim: String,
    /// What is asked for beside `openid`; may be given several times. With `offline_access`, where the provider
    /// has it, people need not log in again every 15 minutes.
    #[arg(
        long = "oidc-scope",
        value_name = "SCOPE",
        default_value = "email",
        requires = "oidc_issuer"
    )]
    oidc_scopes: Vec<String>,
}

/// Where browsers reach the console.
pub(crate) struct Reached<'a> {
    /// Where it listens.
    pub(super) listen: &'a Listen,
    /// Whether it has a certificate.
    pub(super) has_tls: bool,
    /// The names of `--api-name`.
    pub(super) names: &'a [String],
}

/// What follows from the options.
pub(crate) struct Provider {
    pub(super) oidc: Arc<Oidc>,
    pub(super) callback: CallbackUrl,
}

// === impl Options ===

impl Options {
    /// Checks the options, and reads what they name once, so that a mistake shows at the start. The provider itself
    /// is not asked.
    ///
    /// # Errors
    /// A value cannot be used, or the options do not fit together.
    pub(super) fn read(&self, reached: Option<&Reached<'_>>) -> anyhow::Result<Option<Provider>> {
        let (Some(issuer), Some(client_id), Some(reached)) =
            (&self.oidc_issuer, &self.oidc_client_id, reached)
        else {
            return Ok(None);
        };
        let callback = self.callback(reached)?;
        self.check_files()?;
        self.check_scopes()?;
        for (option, claim) in [
            ("--oidc-name-claim", &self.oidc_name_claim),
            ("--oidc-groups-claim", &self.oidc_groups_claim),
        ] {
            if claim.trim().is_empty() {
                bail!("{option} is empty: write the name of a claim, or leave the option out");
            }
        }
        let oidc = Oidc::new(OidcSettings {
            issuer: issuer.clone(),
            client_id: client_id.clone(),
            client_secret_file: self.oidc_client_secret_file.clone(),
            name_claim: self.oidc_name_claim.clone(),
            groups_claim: self.oidc_groups_claim.clone(),
            scopes: self.oidc_scopes.clone(),
            ca: self.oidc_ca.clone(),
        });
        let oidc = oidc.context("people cannot log in: see --oidc-issuer and --oidc-client-id")?;
        Ok(Some(Provider { oidc: Arc::new(oidc), callback }))
    }

    fn callback(&self, reached: &Reached<'_>) -> anyhow::Result<CallbackUrl> {
        if let Some(url) = &self.oidc_redirect_url {
            let read = CallbackUrl::parse(url, reached.names);
            let read = read.context("browsers cannot be sent back: see --oidc-redirect-url")?;
            if reached.has_tls && read.scheme() == Scheme::Http {
                bail!(
                    "`{url}` is without TLS, and the console has TLS: write https in --oidc-redirect-url"
                );
            }
            return Ok(read);
        }
        let Some(name) = reached.names.first() else {
            bail!(
                "it is not known where the identity provider sends browsers back: give the name of this machine with \
                 --api-name, or the whole address with --oidc-redirect-url"
            );
        };
        let port = match reached.listen {
            Listen::Tcp(at) if reached.has_tls && at.port() != 0 => at.port(),
            Listen::Tcp(_) | Listen::Unix(_) => bail!(
                "--api-name does not say where the identity provider sends browsers back, because --api-listen has \
                 no fixed port or no certificate: give the address that browsers use with --oidc-redirect-url"
            ),
        };
        CallbackUrl::of_name(name, port).context("--api-name is not the name of a machine")
    }

    fn check_files(&self) -> anyhow::Result<()> {
        if let Some(path) = &self.oidc_client_secret_file
            && read_text(path).context("see --oidc-client-secret-file")?.trim().is_empty()
        {
            bail!(
                "`{}` is empty: write the secret that the identity provider gave to this fleet into it; see \
                 --oidc-client-secret-file",
                path.display()
            );
        }
        if let Some(path) = &self.oidc_ca
            && tls::certificates(&read_text(path).context("see --oidc-ca")?).is_none()
        {
            bail!("`{}` holds no certificate in PEM; see --oidc-ca", path.display());
        }
        Ok(())
    }

    fn check_scopes(&self) -> anyhow::Result<()> {
        let is_scope = |scope: &String| {
            !scope.is_empty()
                && scope
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'))
        };
        if let Some(scope) = self.oidc_scopes.iter().find(|scope| !is_scope(scope)) {
            bail!("`{}` is no scope: give each with --oidc-scope of its own", scope.escape_debug());
        }
        if self.oidc_scopes.iter().map(String::len).sum::<usize>() > SCOPE_BYTES {
            bail!("the scopes are longer than {SCOPE_BYTES} bytes: give fewer with --oidc-scope");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// The options of the console, as `serve` has them.
    #[derive(Parser)]
    struct Command {
        #[arg(long)]
        api_listen: Option<Listen>,
        #[command(flatten)]
        people: Options,
    }

    fn read(words: &[&str], has_tls: bool, names: &[&str]) -> Result<CallbackUrl, String> {
        let all = ["serve", "--api-listen", "127.0.0.1:7444", "--oidc-client-id", "fleet"];
        let command = Command::try_parse_from(all.iter().chain(words));
        let command = command.map_err(|error| error.to_string())?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let listen = command.api_listen.expect("it was given");
        let reached = Reached { listen: &listen, has_tls, names: &names };
        let provider = command.people.read(Some(&reached)).map_err(|error| format!("{error:#}"))?;
        Ok(provider.expect("there is a provider").callback)
    }

    const ISSUER: [&str; 2] = ["--oidc-issuer", "https://id.example"];

    fn refused(words: &[&str], has_tls: bool, names: &[&str]) -> String {
        read(&[&ISSUER, words].concat(), has_tls, names).expect_err("it is refused")
    }

    #[test]
    fn browsers_come_back_to_the_first_name_or_where_it_is_said() {
        let url = |words: &[&str], has_tls, names: &[&str]| {
            read(&[&ISSUER, words].concat(), has_tls, names).map(|callback| callback.url())
        };
        let derived = "https://fleet.example:7444/console/login/callback".to_owned();
        assert_eq!(url(&[], true, &["fleet.example", "other.example"]), Ok(derived));
        let given = "https://fleet.example/console/login/callback";
        let behind_a_proxy = url(&["--oidc-redirect-url", given], false, &["fleet.example"]);
        assert_eq!(behind_a_proxy, Ok(given.to_owned()));
    }

    #[test]
    fn what_does_not_fit_together_names_the_option_and_what_to_do() {
        let text = refused(&[], true, &[]);
        assert!(text.contains("--api-name") && text.contains("--oidc-redirect-url"), "{text}");
        let text = refused(&[], false, &["fleet.example"]);
        assert!(text.contains("no certificate") && text.contains("--oidc-redirect-url"), "{text}");
        let url = "https://other.example/console/login/callback";
        let text = refused(&["--oidc-redirect-url", url], true, &["fleet.example"]);
        assert!(text.contains("other.example") && text.contains("--api-name"), "{text}");
        let url = "http://localhost:7444/console/login/callback";
        assert!(refused(&["--oidc-redirect-url", url], true, &[]).contains("write https"));
        let text = refused(&["--oidc-client-secret-file", "/nowhere/secret"], true, &["a.example"]);
        assert!(text.contains("--oidc-client-secret-file") && text.contains("/nowhere"), "{text}");
        let text = refused(&["--oidc-ca", "/dev/null"], true, &["a.example"]);
        assert!(text.contains("no certificate") && text.contains("--oidc-ca"), "{text}");
        let text = refused(&["--oidc-scope", "email groups"], true, &["a.example"]);
        assert!(text.contains("--oidc-scope"), "{text}");
        let text = refused(&["--oidc-groups-claim", ""], true, &["a.example"]);
        assert!(text.contains("--oidc-groups-claim"), "{text}");
        let text = read(&["--oidc-issuer", "http//id"], true, &["a.example"]).expect_err("refused");
        assert!(text.contains("--oidc-issuer") && text.contains("http//id"), "{text}");
        let without = read(&["--oidc-ca", "/dev/null"], true, &["a.example"]).expect_err("refused");
        assert!(without.contains("--oidc-issuer"), "{without}");
    }
}

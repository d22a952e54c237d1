//! HTTP with TLS, as scrapers, browsers and those who renew certificates meet it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use reqwest::{Client, StatusCode, redirect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::http::ask;
use crate::harness::{Bed, Builder, orders, signal};

const ADMIN: &str = "0123456789abcdef-admin";

/// An authority, and the folder of its certificates.
struct Authority {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
    own: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = params.self_signed(&key).unwrap().pem();
        Self { dir: tempfile::tempdir().unwrap(), issuer: Issuer::new(params, key), own }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces the certificate of these names and its key, one after the other, as programs do that
    /// renew them.
    fn issue(&self, until: i32) {
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        replace(&self.path("tls.crt"), &certificate.pem());
        replace(&self.path("tls.key"), &key.serialize_pem());
    }

    /// Puts the files of another authority in place of its own.
    fn take_from(&self, other: &Self) {
        for name in ["tls.crt", "tls.key"] {
            replace(&self.path(name), &fs::read_to_string(other.path(name)).unwrap());
        }
    }

    fn client(&self) -> Client {
        drop(rustls::crypto::ring::default_provider().install_default());
        Client::builder()
            .tls_certs_only([reqwest::Certificate::from_pem(self.own.as_bytes()).unwrap()])
            .redirect(redirect::Policy::none())
            .build()
            .unwrap()
    }

    /// A bed whose agent serves HTTP with a certificate of this authority.
    fn bed(&self) -> Builder {
        Bed::builder()
            .set("api.http_listen=127.0.0.1:0")
            .set(format!("api.http_tls_cert={}", self.path("tls.crt").display()))
            .set(format!("api.http_tls_key={}", self.path("tls.key").display()))
    }
}

fn replace(path: &Path, text: &str) {
    let fresh = path.with_extension("new");
    fs::write(&fresh, text).unwrap();
    fs::set_permissions(&fresh, PermissionsExt::from_mode(0o600)).unwrap();
    fs::rename(&fresh, path).unwrap();
}

impl Bed {
    /// Whether a client gets an answer.
    async fn is_trusted_by(&self, client: &Client) -> bool {
        let at = self.http().await;
        let reply = client.get(format!("https://{at}/healthz")).send().await;
        reply.is_ok_and(|reply| reply.status() == StatusCode::OK)
    }

    async fn trouble_with(&self, part: &str) -> String {
        self.until(&format!("a trouble says {part:?}"), async || {
            let troubles = self.try_status().await.ok()?.agent?.troubles;
            troubles.into_iter().find(|trouble| trouble.contains(part))
        })
        .await
    }
}

#[tokio::test]
async fn a_scraper_that_trusts_the_authority_gets_metrics_and_no_other() {
    let authority = Authority::new();
    authority.issue(2090);
    let bed = authority.bed().start().await;
    let at = bed.http().await;
    let client = authority.client();
    let page = client.get(format!("https://{at}/metrics")).send().await.unwrap();
    assert_eq!(page.status(), StatusCode::OK);
    assert!(!page.headers().contains_key("strict-transport-security"), "localhost has others");
    let page = page.text().await.unwrap();
    for sample in [
        "guest_agent_tls_certificate_expiry_timestamp_seconds{use=\"http\"} 3.7869120e9",
        "guest_agent_connections{listener=\"http\",places=\"usual\"} 1",
        "guest_agent_connections_limit{listener=\"http\",places=\"spare\"} 32",
        "guest_agent_connections_refused_total{listener=\"http\",places=\"usual\"} 0",
        "guest_agent_connections_shed_total{listener=\"http\",places=\"usual\"} 0",
        "guest_agent_connections_limit{listener=\"agent\",places=\"usual\"}",
        "guest_agent_connections_limit{listener=\"command\",places=\"usual\"}",
        "guest_agent_connections_limit{listener=\"host\",places=\"others\"}",
    ] {
        let name = sample.split(' ').next().unwrap();
        let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        let value = |text: &str| text.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok());
        let expected = sample.contains(' ').then(|| value(sample).unwrap());
        assert!(!line.is_empty(), "{sample} is missing in {page}");
        assert!(expected.is_none() || value(line) == expected, "{line}: not {sample}");
    }
    assert!(!bed.is_trusted_by(&Authority::new().client()).await);
    let plain = ask(at, "GET", "/metrics", &[]).await.unwrap();
    assert_eq!(plain.status, 400);
    assert!(plain.body.contains("begin the address with https://"), "{}", plain.body);
    let status: serde_json::Value =
        serde_json::from_str(&bed.cli(&["status", "--json"]).await.ok()).unwrap();
    assert_eq!(status["agent"]["http_tls"], true);
    assert_eq!(status["agent"]["http"], at.to_string());
    bed.finish().await;
}

#[tokio::test]
async fn a_renewed_certificate_is_served_without_a_signal_and_an_unusable_one_is_reported() {
    let (authority, next) = (Authority::new(), Authority::new());
    authority.issue(2090);
    next.issue(2091);
    let bed = authority.bed().start().await;
    let at = bed.http().await;
    let (former, renewed) = (authority.client(), next.client());
    let live = format!("https://{at}/console/live?page=overview");
    let mut followed = former.get(&live).send().await.unwrap();
    assert!(followed.chunk().await.unwrap().unwrap().starts_with(b"data: {"));

    authority.take_from(&next);
    bed.until("the new certificate is served", async || {
        bed.is_trusted_by(&renewed).await.then_some(())
    })
    .await;
    assert!(!bed.is_trusted_by(&authority.client()).await, "new connections have the new one");
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("a", "1", &echo).order()]).await;
    let more = tokio::time::timeout(crate::harness::PATIENCE, followed.chunk()).await;
    assert!(more.unwrap().unwrap().is_some(), "the connection from before lives");

    // A key that is not the certificate's, a torn file, and a certificate that is over.
    let good = fs::read_to_string(authority.path("tls.key")).unwrap();
    replace(&authority.path("tls.key"), &KeyPair::generate().unwrap().serialize_pem());
    signal(bed.agent_pid(), Signal::SIGHUP);
    let trouble = bed.trouble_with("does not belong to the certificate").await;
    assert!(trouble.contains("HTTP keeps its former certificate"), "{trouble}");
    assert!(bed.is_trusted_by(&next.client()).await);
    let config = bed.dir().join("agent.toml").display().to_string();
    let sets = ["tls_cert=tls.crt", "tls_key=tls.key"].map(|set| {
        let (key, file) = set.split_once('=').unwrap();
        format!("api.http_{key}={}", authority.path(file).display())
    });
    let doctor = ["doctor", "--config", &config, "--set", &sets[0], "--set", &sets[1]];
    let said = bed.cli(&doctor).await;
    assert_eq!(said.code, 1);
    assert!(said.stdout.contains("does not belong to the certificate"), "{said:?}");
    replace(&authority.path("tls.crt"), "torn");
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.trouble_with("holds no certificate").await;
    assert!(bed.is_trusted_by(&next.client()).await);
    next.issue(2002);
    authority.take_from(&next);
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.trouble_with("is valid from 2001-01-01T00:00:00Z to 2002-01-01T00:00:00Z").await;
    assert!(bed.is_trusted_by(&next.client()).await);

    // Right again.
    next.issue(2092);
    authority.take_from(&next);
    bed.until("there is no trouble any more", async || {
        bed.try_status().await.ok()?.agent?.troubles.is_empty().then_some(())
    })
    .await;
    assert!(bed.is_trusted_by(&next.client()).await);
    assert!(!bed.log().contains(good.lines().nth(1).unwrap()), "no key is in the log");
    bed.finish().await;
}

#[tokio::test]
async fn without_a_usable_certificate_nothing_is_served_in_the_clear() {
    let authority = Authority::new();
    let mut bed = authority.bed().build().await;
    bed.start_agent().await;
    let trouble = bed.trouble_with("HTTP is off").await;
    assert!(trouble.contains("cannot read") && trouble.contains("send SIGHUP"), "{trouble}");
    assert_eq!(bed.try_status().await.unwrap().agent.unwrap().http, "");
    authority.issue(2002);
    fs::set_permissions(authority.path("tls.key"), PermissionsExt::from_mode(0o644)).unwrap();
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.http().await;
    // There is no better one: a machine whose clock is wrong is not without metrics.
    bed.trouble_with("ended at 2002-01-01T00:00:00Z").await;
    bed.trouble_with("chmod 600").await;
    bed.finish().await;
}

#[tokio::test]
async fn slow_handshakes_keep_nobody_from_health_or_metrics() {
    let authority = Authority::new();
    authority.issue(2090);
    let bed = authority.bed().start().await;
    let at = bed.http().await;
    let mut slow = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(&[22, 3, 1, 0]).await.unwrap();
        slow.push(stream);
    }
    let client = authority.client();
    for path in ["/healthz", "/metrics"] {
        let reply = client.get(format!("https://{at}{path}")).send().await.unwrap();
        assert_eq!(reply.status(), StatusCode::OK, "{path}");
    }
    let mut bytes = Vec::new();
    let ended = slow.remove(199).read_to_end(&mut bytes).await;
    drop(ended);
    bed.finish().await;
}

#[tokio::test]
async fn people_log_in_over_tls_with_a_cookie_that_stays_there() {
    let authority = Authority::new();
    authority.issue(2090);
    fs::write(authority.path("admin"), ADMIN).unwrap();
    let token = format!("api.http_admin_token_file={}", authority.path("admin").display());
    let bed = authority.bed().set(token).start().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("web", "1", &echo).order()]).await;
    let before = bed.running("web", "1").await;
    let at = format!("https://{}", bed.http().await);
    let client = authority.client();
    let form = |path: &str, body: String| {
        let kind = "application/x-www-form-urlencoded";
        client.post(format!("{at}{path}")).header("content-type", kind).body(body)
    };
    let login = form("/console/login", format!("token={ADMIN}")).header("origin", &at);
    let reply = login.send().await.unwrap();
    assert_eq!(reply.status(), StatusCode::SEE_OTHER);
    let cookie = reply.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.starts_with("__Host-guest-agent-session="), "{cookie}");
    for attribute in ["Secure", "HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.split("; ").any(|part| part == attribute), "{attribute}: {cookie}");
    }
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let page = client.get(format!("{at}/console/plugins/web")).header("cookie", &cookie);
    let page = page.send().await.unwrap().text().await.unwrap();
    let csrf = page.split("name=\"csrf\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let restart = |origin: String| {
        let order = form("/console/plugins/web/restart", format!("csrf={csrf}"));
        order.header("cookie", &cookie).header("origin", origin)
    };
    let foreign = restart(at.replace("https:", "http:")).send().await.unwrap();
    assert_eq!(foreign.status(), StatusCode::FORBIDDEN);
    let own = restart(at.clone()).send().await.unwrap();
    assert_eq!(own.status(), StatusCode::SEE_OTHER);
    bed.running_again("web", &before).await;
    bed.finish().await;
}

#[tokio::test]
async fn the_end_of_the_certificate_for_the_control_plane_is_known_too() {
    let authority = Authority::new();
    authority.issue(2002);
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| authority.path(name));
    let mut bed = Bed::builder()
        .set("api.http_listen=127.0.0.1:0")
        .set("control_plane.endpoint=https://127.0.0.1:1")
        .set("control_plane.auth=mtls")
        .set(format!("control_plane.client_cert={}", certificate.display()))
        .set(format!("control_plane.client_key={}", key.display()))
        .build()
        .await;
    bed.spawn_agent();
    let sample = "guest_agent_tls_certificate_expiry_timestamp_seconds{use=\"control_plane\"}";
    bed.until("the metrics have its end", async || {
        bed.get("/metrics").await.body.contains(sample).then_some(())
    })
    .await;
    let trouble = bed.trouble_with("the control plane's client certificate").await;
    assert!(trouble.contains("ended at 2002-01-01T00:00:00Z"), "{trouble}");
    bed.finish().await;
}

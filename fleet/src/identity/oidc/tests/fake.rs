//! A provider on loopback that answers as a test says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::super::{Oidc, OidcSettings, seconds};
use crate::jwt::verify::tests::Issuer;
use crate::lock::lock;

pub(crate) const CLIENT: &str = "fleet";
pub(crate) const REDIRECT: &str = "https://fleet.example/callback?x=1";

/// What the provider does.
struct Manner {
    header: Value,
    claims: BTreeMap<String, Value>,
    description: BTreeMap<String, Value>,
    /// Whole answers by path; `None` for none at all.
    answers: BTreeMap<String, Option<String>>,
    refresh: Option<&'static str>,
    is_foreign: bool,
    /// The newest request by path.
    asked: BTreeMap<String, String>,
}

/// A provider.
pub(crate) struct Idp {
    pub(crate) issuer: String,
    manner: Arc<Mutex<Manner>>,
    directory: tempfile::TempDir,
}

/// An answer over HTTP.
pub(crate) fn answer(status: u16, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n\
         {body}"
    )
}

impl Idp {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let issuer = format!("http://{}", listener.local_addr().expect("an address"));
        let manner = Arc::new(Mutex::new(Manner::good()));
        let keys = Arc::new((Issuer::new(), Issuer::new()));
        let (shared, own) = (manner.clone(), issuer.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (manner, issuer, keys) = (shared.clone(), own.clone(), keys.clone());
                tokio::spawn(async move { serve(stream, &manner, &issuer, &keys).await });
            }
        });
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("secret"), "s/cret\n").expect("written");
        Self { issuer, manner, directory }
    }

    /// What logs in with it, and knows nothing of it yet.
    pub(crate) fn oidc(&self) -> Oidc {
        Oidc::new(OidcSettings {
            issuer: self.issuer.clone(),
            client_id: CLIENT.to_owned(),
            client_secret_file: Some(self.directory.path().join("secret")),
            name_claim: "email".to_owned(),
            groups_claim: "groups".to_owned(),
            scopes: vec!["email".to_owned(), "groups".to_owned()],
            ca: None,
        })
        .expect("settings")
    }

    pub(crate) fn is_good(&self) {
        *lock(&self.manner) = Manner::good();
    }

    pub(crate) fn says(&self, claim: &str, value: Value) {
        lock(&self.manner).claims.insert(claim.to_owned(), value);
    }

    pub(crate) fn describes(&self, name: &str, value: Value) {
        lock(&self.manner).description.insert(name.to_owned(), value);
    }

    pub(crate) fn signs_with(&self, header: Value) {
        lock(&self.manner).header = header;
    }

    pub(crate) fn signs_with_another_key(&self) {
        lock(&self.manner).is_foreign = true;
    }

    pub(crate) fn answers(&self, path: &str, answer: &str) {
        lock(&self.manner).answers.insert(path.to_owned(), Some(answer.to_owned()));
    }

    pub(crate) fn answers_well(&self, path: &str) {
        lock(&self.manner).answers.remove(path);
    }

    pub(crate) fn hangs(&self, path: &str) {
        lock(&self.manner).answers.insert(path.to_owned(), None);
    }

    pub(crate) fn gives_refresh_tokens(&self) {
        lock(&self.manner).refresh = Some("r3fresh");
    }

    /// The newest request for a path; empty where there was none.
    pub(crate) fn asked(&self, path: &str) -> String {
        lock(&self.manner).asked.get(path).cloned().unwrap_or_default()
    }
}

impl Manner {
    fn good() -> Self {
        Self {
            header: json!({ "alg": "ES256", "kid": "one" }),
            claims: BTreeMap::new(),
            description: BTreeMap::new(),
            answers: BTreeMap::new(),
            refresh: None,
            is_foreign: false,
            asked: BTreeMap::new(),
        }
    }

    fn answer(&self, path: &str, issuer: &str, keys: &(Issuer, Issuer)) -> String {
        let body = match path {
            "/.well-known/openid-configuration" => {
                let mut description = json!({
                    "issuer": issuer,
                    "authorization_endpoint": format!("{issuer}/authorize"),
                    "token_endpoint": format!("{issuer}/token"),
                    "jwks_uri": format!("{issuer}/keys"),
                });
                for (name, value) in &self.description {
                    description[name] = value.clone();
                }
                description.to_string()
            }
            "/keys" => keys.0.jwks(),
            "/token" => {
                let now = seconds(std::time::SystemTime::now());
                let mut claims = json!({
                    "iss": issuer, "aud": CLIENT, "sub": "7", "exp": now + 300, "iat": now,
                    "email": "alice@example.org", "email_verified": true,
                });
                for (name, value) in &self.claims {
                    claims[name] = value.clone();
                }
                let key = if self.is_foreign { &keys.1 } else { &keys.0 };
                let token = key.sign(&self.header, &claims);
                let mut answer =
                    json!({ "access_token": "x", "token_type": "Bearer", "id_token": token });
                if let Some(refresh) = self.refresh {
                    answer["refresh_token"] = json!(refresh);
                }
                answer.to_string()
            }
            _ => return answer(404, ""),
        };
        answer(200, &body)
    }
}

async fn serve(
    mut stream: TcpStream,
    manner: &Mutex<Manner>,
    issuer: &str,
    keys: &(Issuer, Issuer),
) {
    let mut request = Vec::new();
    let whole = |request: &[u8]| {
        let text = String::from_utf8_lossy(request).into_owned();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |it| it.trim().parse().expect("a length"));
        (body.len() >= length).then_some(text.clone())
    };
    let text = loop {
        if let Some(text) = whole(&request) {
            break text;
        }
        let mut part = [0; 4096];
        match stream.read(&mut part).await {
            Ok(read) if read > 0 => request.extend_from_slice(&part[..read]),
            _ => return,
        }
    };
    let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
    let answer = {
        let mut manner = lock(manner);
        manner.asked.insert(path.clone(), text);
        match manner.answers.get(&path) {
            Some(answer) => answer.clone(),
            None => Some(manner.answer(&path, issuer, keys)),
        }
    };
    let Some(answer) = answer else { return std::future::pending().await };
    drop(stream.write_all(answer.as_bytes()).await);
    drop(stream.shutdown().await);
}

//! Asks an agent for pages, as plainly as HTTP allows: what is sent is what a test says.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Bed, PATIENCE};

/// What a server said.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

/// Asks for a page with these headers; a `host` of the server's own address is added where none is
/// given.
pub(crate) async fn ask(
    at: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> std::io::Result<Reply> {
    let own = at.to_string();
    let own_host = [("host", own.as_str())];
    let host = if headers.iter().any(|(name, _)| *name == "host") { &[][..] } else { &own_host };
    let lines = host.iter().chain(headers).map(|(name, value)| format!("{name}: {value}\r\n"));
    let lines: String = lines.collect();
    let request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n{lines}\r\n");
    let asking = async {
        let mut stream = TcpStream::connect(at).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await?;
        Ok(bytes)
    };
    let bytes: Result<Vec<u8>, std::io::Error> =
        tokio::time::timeout(PATIENCE, asking).await.expect("an answer in time");
    let text = String::from_utf8(bytes?).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let header = |line: &str| {
        let (name, value) = line.split_once(':').expect("a header");
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    Ok(Reply {
        status: status.expect("a status"),
        headers: lines.map(header).collect(),
        body: body.to_owned(),
    })
}

// === impl Reply ===

impl Reply {
    /// The value of a header; empty when the reply has no such header.
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str()).unwrap_or_default()
    }
}

// === impl Bed: over HTTP ===

impl Bed {
    /// Where the agent serves HTTP; waits until it does.
    pub(crate) async fn http(&self) -> SocketAddr {
        self.until("the agent serves HTTP", async || {
            self.try_status().await.ok()?.agent?.http.parse().ok()
        })
        .await
    }

    /// Asks the agent for a page.
    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.get_with(path, &[]).await
    }

    /// Asks the agent for a page, with these headers.
    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let at = self.http().await;
        let reply = ask(at, "GET", path, headers).await;
        self.check("the agent answers over HTTP", reply)
    }
}

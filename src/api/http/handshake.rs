//! The TLS handshake of a connection, which has a place already: it has a deadline, holds nobody up,
//! and makes room for others like every connection that has sent no request.

use std::io;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use guest_agent_serve_kit::placed::Placed;
use guest_agent_serve_kit::write_timeout::WriteTimeout;
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The answer to a client that speaks HTTP without TLS.
const NOT_HTTP: &str = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
     connection: close\r\ncontent-length: 64\r\n\r\n\
     this port of the agent has TLS; begin the address with https://\n";

/// How long a client without TLS has to close its side after the answer.
const LINGER: Duration = Duration::from_secs(1);

/// A connection whose writes fail when nothing is read for some time.
type Bounded = WriteTimeout<Placed<TcpStream>>;

/// Secures a connection.
///
/// # Errors
/// The client does not speak TLS, or not in time.
pub(super) async fn secure(
    stream: Placed<TcpStream>,
    config: Arc<ServerConfig>,
    within: Duration,
    stall: Duration,
) -> io::Result<TlsStream<Bounded>> {
    let securing = async {
        let first = first_byte(&stream).await?;
        let mut stream = WriteTimeout::new(stream, stall);
        // The records of a handshake begin with 22, and methods of HTTP with a letter.
        if first.is_ascii_alphabetic() {
            stream.write_all(NOT_HTTP.as_bytes()).await?;
            stream.shutdown().await?;
            // What is left unread would break the connection under the answer.
            let mut rest = [0; 4096];
            let reading =
                async { while !matches!(stream.read(&mut rest).await, Ok(0) | Err(_)) {} };
            drop(tokio::time::timeout(LINGER, reading).await);
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it speaks HTTP without TLS"));
        }
        TlsAcceptor::from(config).accept(stream).await
    };
    tokio::time::timeout(within, securing)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The first byte that a client sends. It stays in the stream.
async fn first_byte(stream: &Placed<TcpStream>) -> io::Result<u8> {
    let mut byte = [0];
    let read = std::future::poll_fn(|cx| {
        let mut buffer = ReadBuf::new(&mut byte);
        let peeked = stream.stream().poll_peek(cx, &mut buffer);
        // Another connection may need the place.
        if peeked.is_pending() && stream.place().is_to_leave(cx) {
            return Poll::Ready(Ok(0));
        }
        Poll::Ready(ready!(peeked))
    });
    match read.await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(byte[0]),
    }
}

#[cfg(test)]
mod tests;

//! A unix listener that has the process of each connection judged when it is accepted: later that
//! process may have ended, or have become another program.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use guest_agent_serve_kit::accept::Listener;
use guest_agent_serve_kit::descriptors::{self, Open};
use guest_agent_serve_kit::placed::PlacedInfo;
use guest_agent_serve_kit::shares::{HasPeer, Peer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::server::Connected;
use tonic::{Request, Status};

use crate::os::{peer_groups, procfs, users};

/// Whether the peer may use the socket, or why not.
pub(crate) type PeerResult = Result<(), Arc<str>>;

/// Judges the process at the other end of a connection.
pub(crate) type Vet = Arc<dyn Fn(&UnixStream) -> BoxFuture<'static, PeerResult> + Send + Sync>;

/// A listener whose connections are judged.
pub(crate) struct VettingListener {
    listener: UnixListener,
    vet: Vet,
    /// Accepted, and not judged so far.
    accepted: Mutex<Option<UnixStream>>,
}

/// A connection with the result of its judgement.
#[derive(Debug)]
pub(crate) struct Vetted {
    stream: UnixStream,
    result: PeerResult,
    caller: Option<Caller>,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The user of the process.
    pub(crate) uid: u32,
    /// The group of the process.
    pub(crate) gid: u32,
    /// Its other groups. As its user and its group, those that it had when it connected.
    pub(crate) groups: Arc<[u32]>,
    /// The user who logged in, however the process became another one; `None` where nobody did.
    pub(crate) login: Option<u32>,
}

/// What a gRPC server knows of a connection.
#[derive(Clone, Debug)]
pub(crate) struct VettedInfo {
    result: PeerResult,
    caller: Option<Caller>,
}

// === impl VettingListener ===

impl VettingListener {
    pub(crate) fn new(listener: UnixListener, vet: Vet) -> Self {
        Self { listener, vet, accepted: Mutex::default() }
    }

    fn accepted(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for VettingListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VettingListener").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl Listener for VettingListener {
    type Stream = Vetted;

    async fn accept(&self) -> io::Result<Vetted> {
        loop {
            // One whose judgement was dropped before it was done is judged again.
            let judging = self.accepted().as_ref().map(|stream| (self.vet)(stream));
            let Some(judging) = judging else {
                let (stream, _) = self.listener.accept().await?;
                descriptors::check(&stream, open_to(&stream))?;
                *self.accepted() = Some(stream);
                continue;
            };
            let result = judging.await;
            if let Some(stream) = self.accepted().take() {
                let caller = Caller::of(&stream);
                return Ok(Vetted { stream, result, caller });
            }
        }
    }
}

/// Whose descriptors a connection takes: those of other users leave more for the agent's work.
fn open_to(stream: &UnixStream) -> Open {
    let own = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == 0 || peer.uid() == own => Open::ToOwner,
        Ok(_) | Err(_) => Open::ToAll,
    }
}

// === impl Caller ===

impl Caller {
    /// Who is at the other end; `None` when the kernel does not say.
    pub(crate) fn of(stream: &UnixStream) -> Option<Self> {
        let peer = stream.peer_cred().ok()?;
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
        // An older kernel does not know them, and then they let nobody in.
        let groups = peer_groups::of(stream).unwrap_or_default().into();
        let login = pid.and_then(procfs::login);
        Some(Self { uid: peer.uid(), gid: peer.gid(), groups, login })
    }

    /// Who that is, with the user who logged in where that is another one. Blocks.
    pub(crate) fn name(&self) -> String {
        self.named(users::name_of)
    }

    fn named(&self, name_of: impl Fn(u32) -> String) -> String {
        match self.login {
            Some(login) if login != self.uid => {
                format!("{} as {}", name_of(login), name_of(self.uid))
            }
            Some(_) | None => name_of(self.uid),
        }
    }
}

// === impl Vetted ===

impl Vetted {
    /// The stream itself.
    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Who is at the other end; `None` when the kernel does not say.
    pub(crate) fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }

    /// Whether its peer may use the socket.
    pub(crate) fn result(&self) -> &PeerResult {
        &self.result
    }
}

impl HasPeer for Vetted {
    fn peer(&self) -> Option<Peer> {
        self.stream.peer()
    }
}

impl Connected for Vetted {
    type ConnectInfo = VettedInfo;

    fn connect_info(&self) -> VettedInfo {
        VettedInfo { result: self.result.clone(), caller: self.caller.clone() }
    }
}

impl AsyncRead for Vetted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Vetted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Lets a call in whose peer may use the socket, notes that a complete request has come, and adds
/// the [`Caller`] to the call.
///
/// # Errors
/// PERMISSION_DENIED with the reason why the peer may not use the socket.
pub(crate) fn admit(mut request: Request<()>) -> Result<Request<()>, Status> {
    let connection = request.extensions().get::<PlacedInfo<VettedInfo>>();
    let connection =
        connection.ok_or_else(|| Status::internal("the connection of this call is unknown"))?;
    let VettedInfo { result, caller } = connection.info.clone();
    result.map_err(|why| Status::permission_denied(&*why))?;
    connection.note_request();
    if let Some(caller) = caller {
        request.extensions_mut().insert(caller);
    }
    Ok(request)
}

#[cfg(test)]
mod tests;

//! The listener on `api.http_socket`, for programs of this machine, whose users the kernel names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use guest_agent_actors::error::Chain;
use guest_agent_serve_kit::placed::Placed;
use guest_agent_serve_kit::write_timeout::WriteTimeout;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::connections::{Limits, Places, Server};
use super::listening::Listening;
use super::scheme::Scheme;
use super::shared::{Shared, router};
use super::site::Reach;
use super::socket_peer::SocketUsers;
use crate::api::peers;
use crate::config::Config;
use crate::net::socket::{self, Access};
use crate::net::vetted::{Vetted, VettingListener};

/// The listener on a unix socket.
pub(super) struct Unix<'a>(pub(super) &'a Shared);

/// A socket that is served.
pub(super) struct Opened {
    listener: UnixListener,
    path: PathBuf,
    users: SocketUsers,
}

/// Deletes the socket when it is not served any more.
struct Served<'a>(&'a Path);

impl Listening for Unix<'_> {
    type Wanted = (PathBuf, Access);
    type Opened = Opened;

    fn wanted(&self, config: &Config) -> Option<Self::Wanted> {
        let api = &config.api;
        let path = Some(&api.http_socket).filter(|path| !path.is_empty())?;
        let access =
            Access { mode: api.http_socket_mode.bits(), group: api.http_socket_group.clone() };
        Some((path.into(), access))
    }

    async fn open(
        &self,
        (path, access): &Self::Wanted,
        _: &Config,
    ) -> Result<Self::Opened, String> {
        let off = |why: String| {
            format!(
                "the HTTP socket is off: {why}; the agent tries again, and takes another \
                 api.http_socket at SIGHUP"
            )
        };
        let bound = socket::bind(path, access).await;
        let listener = bound.map_err(|error| off(Chain(&error).to_string()))?;
        let gid = socket::group(path).map_err(|error| off(error.to_string()))?;
        let users = SocketUsers { levels: self.0.levels.clone(), mode: access.mode, gid };
        Ok(Opened { listener, path: path.clone(), users })
    }

    async fn serve(
        &self,
        Opened { listener, path, users }: Opened,
        _: watch::Receiver<Arc<Config>>,
        ending: CancellationToken,
    ) {
        let _served = Served(&path);
        self.0.health.send_modify(|health| {
            health.socket = Some(path.clone());
            health.socket_trouble = None;
        });
        info!(socket = %path.display(), "serves HTTP");
        let site = self.0.site(Reach::Socket, Scheme::Http, ending.clone());
        let limits = Limits::default();
        let server = Server { pages: router(site), limits, ending };
        let places = Places::new(limits, &self.0.counters, "http_socket");
        let vet = peers::judge("the HTTP socket", self.0.launcher.clone());
        let converse = |server: Server, stream: Placed<Vetted>, service| {
            let (requested, vetted) = (stream.requested(), stream.stream());
            let peer = (users.judge(vetted), vetted.caller().cloned());
            let stream = WriteTimeout::new(stream, limits.stall);
            server.converse(stream, requested, service, Some(peer))
        };
        server.serve(VettingListener::new(listener, vet), places, converse).await;
    }

    fn closed(&self, trouble: Option<String>) {
        self.0.health.send_modify(|health| {
            health.socket = None;
            health.socket_trouble = trouble;
        });
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        drop(std::fs::remove_file(self.0));
    }
}

//! Who may use the sockets that are for people and scripts of this machine.

use std::sync::Arc;

use crate::net::vetted::Vet;
use crate::process::launch::ProcessLauncher;

/// Judges the processes that connect to a socket, which is named in the log.
pub(crate) fn judge(socket: &'static str, launcher: Arc<ProcessLauncher>) -> Vet {
    Arc::new(move |stream| {
        let caller = stream.peer_cred().ok();
        let judging = launcher.judge_peer(stream);
        Box::pin(async move {
            judging.await.map_err(|refused| {
                let (uid, pid) = caller.map_or((None, None), |it| (Some(it.uid()), it.pid()));
                tracing::warn!(socket, ?uid, ?pid, reason = %refused, "refuses a caller");
                refused.to_string().into()
            })
        })
    })
}

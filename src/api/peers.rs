//! Who may use the sockets that are for people and scripts of this machine.

use std::sync::Arc;

use crate::net::levels::{Level, Levels};
use crate::net::vetted::{Caller, Vet};
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

/// The same for a socket that only users with a level may use.
pub(crate) fn judge_levels(
    socket: &'static str,
    launcher: Arc<ProcessLauncher>,
    levels: Arc<Levels>,
) -> Vet {
    let vet = judge(socket, launcher);
    Arc::new(move |stream| {
        let caller = Caller::of(stream);
        let refused = match &caller {
            Some(caller) if levels.of(caller).is_some() => None,
            Some(caller) => Some(levels.refusal(caller, Level::Look)),
            None => Some("the kernel does not say who calls; try again".to_owned()),
        };
        let judging = vet(stream);
        Box::pin(async move {
            if let Some(why) = refused {
                let uid = caller.map(|caller| caller.uid);
                tracing::warn!(socket, ?uid, reason = why, "refuses a caller");
                return Err(why.into());
            }
            judging.await
        })
    })
}

//! Registers and withdraws what plugins offer. The gate has found out which plugin calls.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use guest_agent_actors::error::Chain;
use guest_agent_actors::messages::{Deregister, NotRegistered, Register};
use guest_agent_actors::ports::Prober;
use guest_agent_actors::registry::RegistryActor;
use guest_agent_actors::registry::entry::{Key, Offer, Registrant};
use guest_agent_proto::host;
use guest_agent_proto::host::registrar_server::Registrar;
use tonic::{Request, Response, Status};

use super::prober::{SocketProber, User};
use crate::api::registry::Caller;
use crate::api::registry::convert::{entry, not_registered, parse, raw_offer};

/// Longest that a change may take to become durable. What takes longer may become so all the same.
const CHANGE_WAIT: Duration = Duration::from_secs(10);

/// The user that may vouch for anybody's socket.
const ROOT: u32 = 0;

/// Serves `Registrar`.
#[derive(Debug)]
pub(super) struct RegistrarService {
    pub(super) registry: Addr<RegistryActor>,
    pub(super) prober: Arc<SocketProber>,
}

#[tonic::async_trait]
impl Registrar for RegistrarService {
    async fn register(
        &self,
        request: Request<host::RegisterRequest>,
    ) -> Result<Response<host::RegisterResponse>, Status> {
        let caller = caller(&request)?;
        let offer = request.into_inner().offer.unwrap_or_default();
        let offer = Offer::parse(raw_offer(offer), &caller.plugin)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let uid = vet(&self.prober, offer.socket(), &caller).await?;
        let Caller { plugin, process, .. } = caller;
        let by = Registrant { plugin, process, uid };
        let entry = entry(&*in_time(self.registry.send(Register { by, offer })).await?);
        Ok(Response::new(host::RegisterResponse { entry: Some(entry) }))
    }

    async fn deregister(
        &self,
        request: Request<host::DeregisterRequest>,
    ) -> Result<Response<host::DeregisterResponse>, Status> {
        let Caller { plugin, process, uid, .. } = caller(&request)?;
        let host::DeregisterRequest { r#type, name, instance } = request.into_inner();
        let instance = if instance.is_empty() { plugin.as_str() } else { &instance };
        let key = Key { kind: parse(&r#type)?, name: parse(&name)?, instance: parse(instance)? };
        let by = Registrant { plugin, process, uid };
        in_time(self.registry.send(Deregister { by, key })).await?;
        Ok(Response::new(host::DeregisterResponse {}))
    }
}

/// The user that listens on the socket, who has to be the one that calls: a plugin offers only what
/// is its own. Root may offer what it started under another user.
///
/// Another caller gets one and the same answer whatever is at the path, and the path is looked up
/// with its own rights: otherwise it would learn of files in folders that it may not enter.
async fn vet(prober: &SocketProber, socket: &str, caller: &Caller) -> Result<u32, Status> {
    let fix = "listen on the socket first, under the user that registers it";
    if caller.uid == ROOT {
        let found = prober.probe(socket).await;
        return found
            .map_err(|error| Status::failed_precondition(format!("{}; {fix}", Chain(&error))));
    }
    let user = User { uid: caller.uid, gid: caller.gid };
    match prober.probe_as(socket, user).await {
        Ok(found) if found == caller.uid => Ok(found),
        Ok(_) | Err(_) => {
            let uid = caller.uid;
            let why = format!("no process of user {uid} accepts connections on {socket}; {fix}");
            Err(Status::failed_precondition(why))
        }
    }
}

fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Status::unauthenticated("no ticket was shown"))
}

async fn in_time<T>(
    change: impl Future<Output = Result<Result<T, NotRegistered>, actix::MailboxError>>,
) -> Result<T, Status> {
    match tokio::time::timeout(CHANGE_WAIT, change).await {
        Ok(Ok(Ok(done))) => Ok(done),
        Ok(Ok(Err(error))) => Err(not_registered(&error)),
        Ok(Err(_)) => Err(Status::unavailable("the agent is stopping")),
        Err(_) => Err(Status::deadline_exceeded(
            "the disk is too slow; the registration may be written later, so try again",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::Stdio;

    use guest_agent_actors::model::id::{BootId, Process};
    use tokio::io::AsyncReadExt;

    use super::*;

    fn caller(uid: u32) -> Caller {
        let process = Process { pid: 1, start_ticks: 1, boot: BootId("boot".into()) };
        Caller { plugin: "a".parse().expect("a name"), process, uid, gid: uid }
    }

    /// What a caller is answered about a path.
    async fn answer(uid: u32, path: &Path) -> Result<u32, String> {
        let prober = SocketProber::default();
        let vetted = vet(&prober, path.to_str().expect("text"), &caller(uid)).await;
        vetted.map_err(|status| status.message().replace(path.to_str().expect("text"), "PATH"))
    }

    #[tokio::test]
    async fn a_caller_that_is_not_root_learns_nothing_of_a_path_that_is_not_its_own() {
        const STRANGER: u32 = 12_345;
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can look something up as another user");
            return;
        }
        let folder = tempfile::Builder::new().prefix("ga-").tempdir_in("/tmp").expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let open = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
        };
        open(folder.path(), 0o755);
        std::fs::create_dir(at("closed")).expect("made");
        open(&at("closed"), 0o700);
        let sockets = ["closed/socket", "roots.sock"].map(|name| {
            let listener = std::os::unix::net::UnixListener::bind(at(name)).expect("a socket");
            open(&at(name), 0o777);
            listener
        });
        std::fs::write(at("closed/file"), "").expect("written");
        std::fs::write(at("file"), "").expect("written");
        let paths =
            ["closed/socket", "closed/file", "closed/nothing", "nothing", "file", "roots.sock"];
        let mut answers = std::collections::BTreeSet::new();
        for path in paths {
            answers.insert(answer(STRANGER, &at(path)).await.expect_err(path));
        }
        assert_eq!(answers.len(), 1, "{answers:#?}");
        let none = answers.pop_first().expect("one");
        assert!(none.starts_with("no process of user 12345 accepts"), "{none}");
        // Root gets the reason, and may offer what another user listens on.
        assert_eq!(answer(ROOT, &at("closed/socket")).await, Ok(ROOT));
        assert!(answer(ROOT, &at("nothing")).await.expect_err("nothing").contains("No such file"));
        drop(sockets);
    }

    #[tokio::test]
    async fn a_caller_offers_what_it_listens_on_itself() {
        const STRANGER: u32 = 12_345;
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can start a process of another user");
            return;
        }
        let folder = tempfile::Builder::new().prefix("ga-").tempdir_in("/tmp").expect("a folder");
        std::os::unix::fs::chown(folder.path(), Some(STRANGER), Some(STRANGER)).expect("given");
        let path = folder.path().join("own.sock");
        let script = "import socket, sys\n\
                      own = socket.socket(socket.AF_UNIX)\n\
                      own.bind(sys.argv[1]); own.listen(); print(flush=True); sys.stdin.read()";
        let mut command = tokio::process::Command::new("python3");
        command.args(["-c", script]).arg(&path).uid(STRANGER).gid(STRANGER).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut listening) = command.spawn() else {
            eprintln!("SKIPPED: no python3 that would listen");
            return;
        };
        let mut line = [0];
        let output = listening.stdout.as_mut().expect("a pipe");
        output.read_exact(&mut line).await.expect("it listens");
        assert_eq!(answer(STRANGER, &path).await, Ok(STRANGER));
        assert!(answer(STRANGER + 1, &path).await.is_err());
        // This thread has the rights that it had.
        assert!(std::fs::read_dir("/root").is_ok());
    }
}

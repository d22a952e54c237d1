//! Authentication of callers, and processes from start to end, without the core.

use std::os::unix::fs::PermissionsExt;

use actix::Actor;
use guest_agent_actors::admission::{AdmissionActor, Gate};
use guest_agent_actors::ports::{Clock, NoCounters};
use guest_agent_proto::cipd::plugin::admissions_client::AdmissionsClient;
use guest_agent_proto::cipd::plugin::host_client::HostClient;
use guest_agent_proto::cipd::plugin::{ListAdmissionsRequest, LogRequest, ResolveAdmissionRequest};
use tonic::transport::Channel;
use tonic::{Code, Request};

use super::*;
use crate::hostinfo::SystemClock;

fn command(parts: &[&str]) -> AdmissionCommand {
    let parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
    AdmissionCommand::new(&parts).expect("a program")
}

fn queue(host: &PluginHost) -> QueueRecipients {
    let service_url = host.shared.service_url.clone();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let host = Arc::new(host.clone());
    let actor =
        AdmissionActor::new(host, (clock, Arc::new(NoCounters)), service_url, Gate::default())
            .start();
    QueueRecipients {
        list: actor.clone().recipient(),
        resolve: actor.clone().recipient(),
        hung_up: actor.clone().recipient(),
        describe: actor.recipient(),
    }
}

fn host(others: TicketOwner) -> PluginHost {
    PluginHost::new(watch::channel("https://control".into()).1, others, Default::default())
}

fn with<T>(message: T, ticket: Option<&str>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(ticket) = ticket {
        let ticket = ticket.parse().expect("ASCII");
        request.metadata_mut().insert("x-plugin-ticket", ticket);
    }
    request
}

fn code<T>(answer: Result<T, tonic::Status>) -> Code {
    answer.err().map_or(Code::Ok, |status| status.code())
}

#[actix_rt::test]
async fn which_services_may_be_called_depends_on_the_kind_of_plugin() {
    let host = host(Arc::new(|ticket| {
        (ticket == "of-a-plugin").then(|| "ordinary".parse().expect("a name"))
    }));
    let port = host.port().await.expect("a port");
    let queue = queue(&host);
    let caller = Caller::Admission { life: ProcessRun(1), name: "guard".into(), queue };
    let ticket = host.shared.door.issue(ProcessRun(1), caller).expect("random bytes");
    assert_eq!(ticket.len(), 86);
    let channel = Channel::from_shared(format!("http://127.0.0.1:{port}")).expect("a URL");
    let channel = channel.connect().await.expect("the host listens");
    let (mut log, mut admissions) =
        (HostClient::new(channel.clone()), AdmissionsClient::new(channel.clone()));
    let mut unknown =
        guest_agent_proto::plugin_comm::guest_agent_plugin_client::GuestAgentPluginClient::new(
            channel,
        );
    // Ticket, then the codes of Log, ResolveAdmission, ListAdmissions, and a service that is not
    // there.
    let never = Code::PermissionDenied;
    let long = "x".repeat(1000);
    let cases = [
        (None, [Code::Unauthenticated; 4]),
        (Some("AAAA"), [never; 4]),
        (Some(long.as_str()), [never; 4]),
        (
            Some("of-a-plugin"),
            [Code::Ok, Code::Unimplemented, Code::Unimplemented, Code::Unimplemented],
        ),
        // The core does not know the run that has this ticket.
        (Some(&*ticket), [Code::Ok, Code::Ok, Code::FailedPrecondition, Code::Unimplemented]),
    ];
    for (ticket, codes) in cases {
        let seen = [
            code(log.log(with(LogRequest::default(), ticket)).await),
            code(
                admissions
                    .resolve_admission(with(ResolveAdmissionRequest::default(), ticket))
                    .await,
            ),
            code(admissions.list_admissions(with(ListAdmissionsRequest::default(), ticket)).await),
            code(unknown.get_status(with(Default::default(), ticket)).await),
        ];
        assert_eq!(seen, codes, "{ticket:?}");
    }
    host.shared.door.revoke(ProcessRun(1));
    let expired = log.log(with(LogRequest::default(), Some(&ticket))).await;
    assert_eq!(code(expired), Code::PermissionDenied);
}

#[actix_rt::test]
async fn a_process_gets_one_line_and_goes_when_its_input_ends() {
    let host = host(Arc::new(|_| None));
    let script = "read line; echo \"$line\" | tr -d '\\n' | wc -c; cat; exit 3";
    let run = host.run(ProcessRun(1), command(&["/bin/sh", "-c", script]), queue(&host));
    let end = async {
        // The end reaches the process whether it was started before or is about to be.
        tokio::time::sleep(Duration::from_millis(200)).await;
        host.end(ProcessRun(1));
    };
    let (how, ()) = tokio::join!(run, end);
    assert!(how.starts_with("it exited with code 3; its last output: 1"), "{how}");
    host.close().await;
}

#[actix_rt::test]
async fn why_a_program_cannot_be_executed_is_said() {
    let host = host(Arc::new(|_| None));
    let missing = host.run(ProcessRun(1), command(&["/no/such/program"]), queue(&host)).await;
    assert!(missing.contains("correct admission.command"), "{missing}");
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    std::fs::write(&program, "#!/bin/sh\n").expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o777)).expect("set");
    let program = program.to_str().expect("UTF-8");
    let untrusted = host.run(ProcessRun(2), command(&[program]), queue(&host)).await;
    assert!(untrusted.contains("may be written by others"), "{untrusted}");
}

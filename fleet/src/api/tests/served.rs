//! The API over real sockets, on a ledger of SQLite: the same answer by gRPC and by HTTP, with TLS and without.

use guest_agent_proto::fleet_api as pb;
use guest_agent_proto::fleet_api::fleet_client::FleetClient;
use http::header::AUTHORIZATION;
use prost::Message;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use super::super::listener::{ApiListener, ListenerError};
use super::super::router;
use super::{api, fleet, get};
use crate::gateway::Listen;
use crate::ledger::SqliteLedger;

fn local() -> Listen {
    "127.0.0.1:0".parse().expect("an address")
}

fn with<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let header = format!("Bearer {token}").parse().expect("a header");
    request.metadata_mut().insert(AUTHORIZATION.as_str(), header);
    request
}

#[tokio::test]
async fn grpc_and_http_answer_the_same_from_a_ledger_of_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = SqliteLedger::open(&folder.path().join("ledger.db")).expect("it opens");
    let api = api(fleet::on(ledger).await);
    let listener =
        ApiListener::start(&local(), None, router(api.clone())).await.expect("it listens");
    let endpoint: Endpoint = listener.endpoint().to_owned().try_into().expect("an endpoint");
    let channel: Channel = endpoint.connect().await.expect("it answers");
    let mut client = FleetClient::new(channel);

    let status = client.get_status(with("admin", pb::GetStatusRequest {})).await.expect("a status");
    let status = status.into_inner();
    assert_eq!(status.agents.as_ref().map(|agents| agents.present), Some(2), "{status:?}");
    let (code, json) = get(&api, "/v1/status", "admin").await;
    assert_eq!((code.as_u16(), &json["agents"]["present"]), (200, &"2".into()), "{json}");

    let request = pb::ListAgentsRequest { page_size: 1, ..pb::ListAgentsRequest::default() };
    let page = client.list_agents(with("admin", request.clone())).await.expect("a page");
    let page = page.into_inner();
    assert_eq!((page.agents.len(), page.next.as_deref()), (1, Some("prodagent")), "{page:?}");
    let next = pb::ListAgentsRequest { cursor: "prodagent".to_owned(), ..request };
    let page = client.list_agents(with("admin", next)).await.expect("a page").into_inner();
    assert_eq!(page.agents.first().map(|it| it.id.as_str()), Some("testagent"), "{page:?}");
    assert_eq!(page.next, None);

    let absent = pb::GetAgentRequest { id: "prodagent".to_owned() };
    let refused = client.get_agent(with("test", absent.clone())).await.expect_err("not its scope");
    assert_eq!(refused.code(), Code::NotFound);
    let details = guest_agent_proto::rpc::Status::decode(refused.details()).expect("a status");
    let error = details.details.first().expect("our error");
    let error = pb::Error::decode(error.value.as_slice()).expect("our error");
    assert_eq!((error.code.as_str(), error.fix.is_empty()), ("NOT_FOUND", false), "{error:?}");
    let refused = client.get_agent(Request::new(absent)).await.expect_err("without a token");
    assert_eq!(refused.code(), Code::Unauthenticated);
    listener.shutdown().await;
}

#[tokio::test]
async fn without_tls_nothing_is_served_to_other_machines() {
    let ledger = std::sync::Arc::new(crate::ledger::MemoryLedger::new());
    let everywhere: Listen = "0.0.0.0:0".parse().expect("an address");
    let refused = ApiListener::start(&everywhere, None, router(api(ledger))).await.err();
    assert!(matches!(refused, Some(ListenerError::PlaintextOffLoopback(_))), "{refused:?}");
}

#[tokio::test]
async fn a_watch_is_told_over_grpc_and_as_server_sent_events() {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    let api = api(fleet::in_memory().await);
    let listener = ApiListener::start(&local(), None, router(api)).await.expect("it listens");
    let endpoint: Endpoint = listener.endpoint().to_owned().try_into().expect("an endpoint");
    let mut client = FleetClient::new(endpoint.connect().await.expect("it answers"));
    let events = client.watch(with("admin", pb::WatchRequest::default())).await.expect("a stream");
    let first = events.into_inner().message().await.expect("an event").expect("an event");
    assert_eq!(first.changed.len(), 5, "{first:?}");
    assert_eq!(first.rollouts.len(), 2, "{first:?}");

    let address = listener.address().expect("an address");
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("it answers");
    let head = "GET /v1/watch?parts=PART_ROLLOUTS HTTP/1.1\r\nhost: x\r\nauthorization: Bearer admin\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("it is sent");
    let mut lines = BufReader::new(stream).lines();
    let mut found = Vec::new();
    while found.len() < 3 {
        let line = lines.next_line().await.expect("a line").expect("a line");
        let is_event = ["event: change", "id: ", "data: "].iter().any(|it| line.starts_with(it));
        found.extend(is_event.then_some(line));
    }
    assert!(found[2].contains("testrollout"), "{found:?}");
    listener.shutdown().await;
}

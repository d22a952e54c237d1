use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// Longest that anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

async fn server() -> MetadataServer {
    let server = MetadataServer::start_writable((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    server.set_machine("12", "us-a", "345");
    server.set("instance/attributes/some-key", "value");
    server
}

/// The status line, the headers in lower case, and the body.
async fn ask(server: &MetadataServer, method: &str, path: &str) -> (u16, String, String) {
    ask_with(server, method, path, "Metadata-Flavor: Google\r\n", "").await
}

async fn ask_with(
    server: &MetadataServer,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, String, String) {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let request = format!(
        "{method} /computeMetadata/v1/{path} HTTP/1.1\r\nHost: metadata\r\nConnection: close\r\n\
         Content-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

fn etag_of(head: &str) -> String {
    head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned()
}

#[tokio::test]
async fn values_and_directories_are_read_with_the_flavor_only() {
    let server = server().await;
    let (status, head, body) = ask(&server, "GET", "instance/zone").await;
    assert_eq!((status, &*body), (200, "projects/12/zones/us-a"));
    assert!(head.contains("metadata-flavor: google"), "{head}");
    assert_eq!(ask(&server, "GET", "instance/").await.2, "attributes/\nid\nmachine-type\nzone\n");
    assert_eq!(ask(&server, "GET", "instance/nothing").await.0, 404);
    assert_eq!(ask_with(&server, "GET", "instance/id", "", "").await.0, 403);
    assert_eq!(server.asked(), ["instance/zone", "instance/", "instance/nothing"]);
}

#[tokio::test]
async fn json_has_camel_case_but_for_attributes() {
    let server = server().await;
    let (_, _, body) = ask(&server, "GET", "?alt=json&recursive=true").await;
    let json: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(json["instance"]["id"], 345);
    assert_eq!(json["instance"]["machineType"], "projects/12/machineTypes/dev");
    assert_eq!(json["instance"]["attributes"]["some-key"], "value");
    assert_eq!(json["project"]["numericProjectId"], 12);
}

#[tokio::test]
async fn a_change_is_waited_for_and_told() {
    let server = server().await;
    let path = "?alt=json&recursive=true";
    let known = etag_of(&ask(&server, "GET", path).await.1);
    let wait = format!("{path}&wait_for_change=true&last_etag={known}&timeout_sec=60");
    let waiting = {
        let (server, wait) = (server.clone(), wait.clone());
        tokio::spawn(async move { ask(&server, "GET", &wait).await })
    };
    while server.asked().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.set("instance/attributes/some-key", "other");
    let (_, head, body) = waiting.await.unwrap();
    assert!(body.contains("other"), "{body}");
    assert_ne!(etag_of(&head), known);
    // A change that was missed is answered at once.
    assert!(ask(&server, "GET", &wait).await.2.contains("other"));
}

#[tokio::test]
async fn without_a_change_the_same_is_told_in_the_end() {
    let server = server().await;
    let known = etag_of(&ask(&server, "GET", "instance/id").await.1);
    let wait = format!("instance/id?wait_for_change=true&last_etag={known}&timeout_sec=1");
    let (status, head, body) = ask(&server, "GET", &wait).await;
    assert_eq!((status, &*body, etag_of(&head)), (200, "345", known));
}

#[tokio::test]
async fn an_identity_token_has_an_audience_and_three_parts() {
    let server = server().await;
    let path = "instance/service-accounts/default/identity";
    assert_eq!(ask(&server, "GET", path).await.0, 400);
    let first = ask(&server, "GET", &format!("{path}?audience=a.example&format=full")).await.2;
    let second = ask(&server, "GET", &format!("{path}?audience=a.example&format=full")).await.2;
    assert_eq!(first.split('.').count(), 3);
    assert_ne!(first, second);
    assert_eq!(server.tokens_asked(), 3);
}

#[tokio::test]
async fn values_are_set_from_outside_where_that_is_wanted() {
    let server = server().await;
    let flavor = "Metadata-Flavor: Google\r\n";
    let path = "instance/attributes/role";
    assert_eq!(ask_with(&server, "PUT", path, flavor, "web").await.0, 200);
    assert_eq!(ask(&server, "GET", path).await.2, "web");
    assert_eq!(ask(&server, "DELETE", path).await.0, 200);
    assert_eq!(ask(&server, "DELETE", path).await.0, 404);
    assert_eq!(ask_with(&server, "PUT", path, "", "web").await.0, 403);

    let closed = MetadataServer::start((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    assert_eq!(ask_with(&closed, "PUT", path, flavor, "web").await.0, 405);
}

#[tokio::test]
async fn faults_are_as_they_are_said() {
    let server = server().await;
    server.set_faults(MetadataFaults { status: Some(503), ..MetadataFaults::default() });
    assert_eq!(ask(&server, "GET", "instance/id").await.0, 503);
    let huge = MetadataFaults { huge: Some(100_000), ..MetadataFaults::default() };
    server.set_faults(huge);
    assert_eq!(ask(&server, "GET", "instance/id").await.2.len(), 100_000);
    let faults =
        MetadataFaults { without_flavor: true, without_etag: true, ..MetadataFaults::default() };
    server.set_faults(faults);
    let head = ask(&server, "GET", "instance/id").await.1;
    assert!(!head.contains("google") && !head.contains("etag"), "{head}");
}

#[tokio::test]
async fn a_server_that_stops_cuts_off_who_waits_and_comes_back_where_it_was() {
    let server = server().await;
    let known = etag_of(&ask(&server, "GET", "instance/id").await.1);
    let wait = format!("instance/id?wait_for_change=true&last_etag={known}&timeout_sec=300");
    let waiting = {
        let server = server.clone();
        tokio::spawn(async move { ask(&server, "GET", &wait).await })
    };
    while server.asked().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.shutdown().await;
    assert_eq!(waiting.await.unwrap().0, 503);
    MetadataServer::start(server.address()).await.unwrap();
    let off = MetadataServer::start(([192, 0, 2, 1], 0).into()).await;
    assert!(matches!(off, Err(MetadataStartError::OffLoopback(_))));
}

#[test]
fn paths_that_make_no_sense_are_survived() {
    let mut tree = Tree::default();
    assert!(!tree.set("///", "x") && !tree.set(&"x".repeat(600), "x"));
    assert!(tree.set("a", "1") && tree.set("a/b", "2"));
    assert!(tree.json("").is_some());
    assert!(tree.remove("a") && tree == Tree::default());
}

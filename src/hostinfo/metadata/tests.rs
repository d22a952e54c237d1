use std::net::Ipv4Addr;

use guest_agent_lab::metadata::{MetadataFaults, MetadataServer};

use std::time::Duration;

use super::client::TREE_MAX;
use super::*;
use crate::net::token::TokenSource as _;

async fn server() -> (MetadataServer, Client) {
    let server = MetadataServer::start((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    server.set_machine("12", "us-a", "345");
    let client = Client::new(server.url().parse().unwrap()).unwrap();
    (server, client)
}

#[tokio::test]
async fn a_place_is_asked_for() {
    let (server, client) = server().await;
    let place = Location::ask(&client).await.unwrap();
    assert_eq!(place.resource(), "projects/12/zones/us-a/instances/345");
    assert_eq!(place.universe, "googleapis.com");
    for (universe, taken) in
        [("apis.example", "apis.example"), ("", "googleapis.com"), ("a b", "googleapis.com")]
    {
        server.set("universe/universe-domain", universe);
        assert_eq!(Location::ask(&client).await.unwrap().universe, taken);
    }
    server.set("instance/id", "../etc");
    assert!(matches!(Location::ask(&client).await, Err(MetadataError::Value { .. })));
}

#[tokio::test]
async fn an_answer_that_cannot_be_one_is_an_error_that_says_why() {
    let (server, client) = server().await;
    assert!(matches!(client.text("instance/nothing").await, Err(MetadataError::NotThere)));
    let with = |faults| server.set_faults(faults);
    with(MetadataFaults { status: Some(503), ..MetadataFaults::default() });
    let error = client.text("instance/id").await.unwrap_err();
    assert!(matches!(error, MetadataError::Status { status: 503 }), "{error}");
    // The client does not follow the redirection.
    with(MetadataFaults { status: Some(302), ..MetadataFaults::default() });
    let error = client.text("instance/id").await.unwrap_err();
    assert!(matches!(error, MetadataError::Status { status: 302 }), "{error}");
    with(MetadataFaults { without_flavor: true, ..MetadataFaults::default() });
    assert!(matches!(client.text("instance/id").await, Err(MetadataError::NotOne)));
    with(MetadataFaults { huge: Some(TREE_MAX + 1), ..MetadataFaults::default() });
    assert!(matches!(client.text("instance/id").await, Err(MetadataError::TooLarge { .. })));
    assert!(matches!(client.tree(None).await, Err(MetadataError::TooLarge { .. })));
    with(MetadataFaults { garbage: Some("<html>".to_owned()), ..MetadataFaults::default() });
    assert!(matches!(client.tree(None).await, Err(MetadataError::Tree(TreeError::NotJson))));
    server.shutdown().await;
    assert!(matches!(client.text("instance/id").await, Err(MetadataError::Unreachable { .. })));
}

#[tokio::test]
async fn a_token_is_kept_until_it_is_refused_or_nearly_over() {
    let (server, client) = server().await;
    let tokens = IdentityToken::new(client);
    let first = tokens.token().await.unwrap().unwrap();
    assert_eq!(tokens.token().await.unwrap().unwrap(), first);
    assert_eq!(server.tokens_asked(), 1);
    tokens.refused();
    let second = tokens.token().await.unwrap().unwrap();
    assert_ne!(second, first);
    // A token that is refused again at once is kept: a server that refuses every token must not
    // cause endless requests.
    tokens.refused();
    assert_eq!(tokens.token().await.unwrap().unwrap(), second);
    assert_eq!(server.tokens_asked(), 2);
}

#[tokio::test]
async fn questions_for_a_token_at_the_same_time_are_one() {
    let (server, client) = server().await;
    server.set_faults(MetadataFaults {
        delay: Duration::from_millis(100),
        ..MetadataFaults::default()
    });
    let tokens = IdentityToken::new(client);
    let (a, b, c) = tokio::join!(tokens.token(), tokens.token(), tokens.token());
    assert_eq!(a.unwrap(), b.unwrap());
    assert!(c.unwrap().is_some());
    assert_eq!(server.tokens_asked(), 1);
}

#[tokio::test]
async fn a_token_that_no_header_may_have_is_refused_without_being_quoted() {
    let (server, client) = server().await;
    let tokens = IdentityToken::new(client);
    for garbage in ["", "sec\nret", "sec ret"] {
        let faults =
            MetadataFaults { garbage: Some(garbage.to_owned()), ..MetadataFaults::default() };
        server.set_faults(faults);
        let error = tokens.token().await.unwrap_err();
        assert!(!format!("{error:?}").contains("sec"), "{error:?}");
    }
}

#[tokio::test]
async fn a_change_of_an_attribute_is_seen() {
    let (server, client) = server().await;
    server.set("instance/attributes/role", "db");
    let watcher = Watcher::new(std::sync::Arc::new(client));
    let mut state = watcher.state();
    let task = tokio::spawn(watcher.run());
    for role in ["db", "web"] {
        server.set("instance/attributes/role", role);
        let has = |state: &State| {
            let State::Present { tree, .. } = state else { return false };
            let guest_agent_actors::model::facts::Attributes::Known(all) = tree.custom() else {
                return false;
            };
            all.get("role") == Some(&guest_agent_actors::model::facts::Value::text(role))
        };
        tokio::time::timeout(Duration::from_secs(20), state.wait_for(has))
            .await
            .unwrap_or_else(|_| panic!("never {role}"))
            .unwrap();
    }
    task.abort();
}

#[test]
fn marks_go_back_into_a_url_only_if_they_are_plain() {
    assert!(Etag::new("2a6fb1f2d6fbbcbb").is_some() && Etag::new("\"q\"").is_some());
    for bad in ["", "a&b=c", "a b", "%41", &"x".repeat(65)] {
        assert!(Etag::new(bad).is_none(), "{bad}");
    }
}

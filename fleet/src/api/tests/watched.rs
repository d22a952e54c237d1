//! Watches: what they say, to whom, and from where they go on.

use std::time::Duration;

use guest_agent_proto::fleet_api as pb;
use serde_json::json;
use tokio::sync::mpsc;

use super::super::Api;
use super::super::error::ApiError;
use super::{api, fleet, post, principal};
use crate::identity::Role;

type Events = mpsc::Receiver<Result<pb::WatchEvent, ApiError>>;

fn begin(api: &Api, scope: &str, token: &str, cursor: &str) -> Events {
    let who = principal("token/one", &[(Role::Viewer, scope)]);
    let request = pb::WatchRequest { cursor: cursor.to_owned(), parts: Vec::new() };
    api.watch(who, token.to_owned(), request).expect("it begins")
}

/// The next event that says something, within a minute.
async fn next(events: &mut Events) -> Option<pb::WatchEvent> {
    let waiting = async {
        loop {
            let event = events.recv().await.expect("it goes on").expect("no error");
            if !event.changed.is_empty() {
                return event;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(25), waiting).await.ok()
}

async fn pause(api: &Api, rollout: &str) {
    let path = format!("/v1/rollouts/{rollout}/pause");
    let (status, answer) = post(api, &path, "admin", &json!({})).await;
    assert!(status.is_success(), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_what_changed_and_goes_on_from_its_cursor() {
    let api = api(fleet::in_memory().await);
    let mut events = begin(&api, "all", "admin", "");
    let first = next(&mut events).await.expect("everything");
    assert_eq!(first.changed.len(), 5, "{first:?}");
    assert_eq!(next(&mut events).await, None, "nothing changed");
    pause(&api, "testrollout").await;
    let second = next(&mut events).await.expect("the rollout");
    assert!(second.changed().any(|part| part == pb::Part::Rollouts), "{second:?}");
    assert!(second.rollouts.iter().any(|it| it.state == "paused"), "{second:?}");
    drop(events);
    // Who was away meanwhile learns what it missed, and nothing else.
    let mut same = begin(&api, "all", "admin", &second.cursor);
    assert_eq!(next(&mut same).await, None);
    let mut missed = begin(&api, "all", "admin", &first.cursor);
    let told = next(&mut missed).await.expect("what it missed");
    assert!(told.changed().all(|part| part != pb::Part::Status), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_change_outside_of_a_scope_is_not_told() {
    let api = api(fleet::in_memory().await);
    let mut events = begin(&api, "env = test", "test", "");
    let first = next(&mut events).await.expect("what it sees");
    assert!(!format!("{first:?}").contains("prod"), "{first:?}");
    pause(&api, "prodrollout").await;
    assert_eq!(next(&mut events).await, None);
    pause(&api, "testrollout").await;
    assert!(next(&mut events).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_its_token_does() {
    let api = api(fleet::in_memory().await);
    // A token that was known when the watch began, and is not any more.
    let mut events = begin(&api, "all", "revoked", "");
    let ended = async {
        while let Some(event) = events.recv().await {
            if let Err(error) = event {
                return Some(error);
            }
        }
        None
    };
    let ended = tokio::time::timeout(Duration::from_secs(120), ended).await.expect("it ends");
    assert_eq!(ended.map(|error| error.code), Some(tonic::Code::Unauthenticated));
}

#[tokio::test(start_paused = true)]
async fn there_are_at_most_so_many_watches_and_one_that_ends_makes_room() {
    let api = api(fleet::in_memory().await);
    let who = principal("token/one", &[(Role::Viewer, "all")]);
    let another = || api.watch(who.clone(), "admin".to_owned(), pb::WatchRequest::default());
    let mut all = Vec::new();
    let refused = loop {
        match another() {
            Ok(events) => all.push(events),
            Err(error) => break error,
        }
    };
    assert_eq!((all.len(), refused.code), (256, tonic::Code::ResourceExhausted));
    all.clear();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(another().is_ok());
}

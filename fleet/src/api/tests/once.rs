//! A change with an idempotency key happens once.

use serde_json::json;

use super::{api, fleet, get, post};

#[tokio::test(start_paused = true)]
async fn a_change_with_a_key_happens_once_and_is_answered_the_same_again() {
    let api = api(fleet::in_memory().await);
    let pause = json!({ "reason": "look", "idempotencyKey": "one" });
    let (status, first) = post(&api, "/v1/rollouts/testrollout/pause", "admin", &pause).await;
    assert_eq!(status, 200, "{first}");
    let (_, again) = post(&api, "/v1/rollouts/testrollout/pause", "admin", &pause).await;
    assert_eq!(again, first);
    // Also when it went on since then: what was asked was done.
    let resume = json!({ "reason": "seen" });
    let (status, answer) = post(&api, "/v1/rollouts/testrollout/resume", "admin", &resume).await;
    assert_eq!(status, 200, "{answer}");
    let (_, later) = post(&api, "/v1/rollouts/testrollout/pause", "admin", &pause).await;
    assert_eq!(later, first);
    let (_, rollout) = get(&api, "/v1/rollouts/testrollout", "admin").await;
    assert_eq!(rollout["state"], "running", "{rollout}");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_used_for_something_else_is_refused() {
    let api = api(fleet::in_memory().await);
    let hold = |reason: &str| json!({ "name": "one", "select": "all", "reason": reason, "idempotencyKey": "two" });
    let (status, answer) = post(&api, "/v1/holds", "admin", &hold("first")).await;
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = post(&api, "/v1/holds", "admin", &hold("second")).await;
    assert_eq!((status.as_u16(), &answer["fields"][0]["field"]), (400, &json!("idempotency_key")));
    let (status, answer) =
        post(&api, "/v1/holds", "admin", &json!({ "idempotencyKey": "a b" })).await;
    assert_eq!((status.as_u16(), &answer["fields"][0]["field"]), (400, &json!("idempotency_key")));
}

#[tokio::test(start_paused = true)]
async fn labels_that_others_changed_since_are_not_set_again() {
    let api = api(fleet::in_memory().await);
    let label = |value: &str, key: &str| json!({ "set": { "rack": value }, "idempotencyKey": key });
    let path = "/v1/agents/testagent/label";
    let (status, first) = post(&api, path, "admin", &label("a", "1")).await;
    assert_eq!(status, 200, "{first}");
    let (_, again) = post(&api, path, "admin", &label("a", "1")).await;
    assert_eq!(again, first);
    let (status, _) = post(&api, path, "admin", &label("b", "2")).await;
    assert_eq!(status, 200);
    let (_, late) = post(&api, path, "admin", &label("a", "1")).await;
    assert_eq!(late, first);
    let (_, agent) = get(&api, "/v1/agents/testagent", "admin").await;
    assert_eq!(agent["agent"]["labels"]["rack"], "b", "{agent}");
    let (_, audit) = get(&api, "/v1/audit?limit=500", "admin").await;
    let labels = audit["entries"].as_array().expect("entries").iter();
    assert_eq!(labels.filter(|entry| entry["what"] == "agent label").count(), 2, "{audit}");
}

#[tokio::test(start_paused = true)]
async fn the_secret_of_a_token_is_told_once() {
    let api = api(fleet::in_memory().await);
    let token = json!({ "name": "image", "idempotencyKey": "three" });
    let (status, made) = post(&api, "/v1/tokens", "admin", &token).await;
    assert_eq!(status, 200, "{made}");
    let secret = made["token"].as_str().expect("its text").to_owned();
    let (status, again) = post(&api, "/v1/tokens", "admin", &token).await;
    assert_eq!((status.as_u16(), &again["code"]), (409, &json!("ALREADY_EXISTS")));
    let (_, audit) = get(&api, "/v1/audit?limit=500", "admin").await;
    assert!(!audit.to_string().contains(&secret), "{audit}");
}

#[tokio::test(start_paused = true)]
async fn the_same_request_twice_at_one_time_happens_once() {
    let api = api(fleet::in_memory().await);
    let hold = json!({ "name": "both", "select": "all", "reason": "r", "idempotencyKey": "four" });
    let (one, two) = tokio::join!(
        post(&api, "/v1/holds", "admin", &hold),
        post(&api, "/v1/holds", "admin", &hold),
    );
    assert_eq!((one.0.as_u16(), two.0.as_u16()), (200, 200), "{} {}", one.1, two.1);
    let (_, audit) = get(&api, "/v1/audit?limit=500", "admin").await;
    let holds = audit["entries"].as_array().expect("entries").iter();
    assert_eq!(holds.filter(|entry| entry["what"] == "hold").count(), 1, "{audit}");
}

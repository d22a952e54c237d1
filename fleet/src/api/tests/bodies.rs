//! What comes from outside is hostile: no body panics, and what is no request is refused as one.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::calls::{CALLS, Method};
use super::{api, fleet, get, post, send};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
}

fn anything() -> impl Strategy<Value = Value> {
    let names = ["name", "id", "select", "selector", "waves", "files", "until", "set", "budget"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, move |inner| {
        let name = prop_oneof![
            Just(names.to_vec()).prop_shuffle().prop_map(|all| all[0].to_owned()),
            "\\PC{0,6}"
        ];
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((name, inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn law_bytes_that_are_no_request_are_refused(body in vec(any::<u8>(), 1..200)) {
        prop_assume!(serde_json::from_slice::<Value>(&body).is_err());
        prop_assume!(!body.iter().all(u8::is_ascii_whitespace));
        runtime().block_on(async {
            let api = api(fleet::in_memory().await);
            for call in CALLS.iter().filter(|call| call.method == Method::Post) {
                let path = call.path.replace("{id}", "x").replace("{name}", "x");
                let (status, answer) = send(&api, "POST", &path, "admin", &body).await;
                assert_eq!(status, 400, "{path}: {answer}");
                assert!(answer["reason"].as_str().is_some_and(|it| it.len() < 1000), "{answer}");
            }
        });
    }

    #[test]
    fn law_no_json_panics_or_is_a_mistake_of_the_server(body in anything()) {
        runtime().block_on(async {
            let api = api(fleet::in_memory().await);
            for call in CALLS.iter().filter(|call| call.method == Method::Post) {
                let path = call.path.replace("{id}", "testagent").replace("{name}", "testrollout");
                let (status, answer) = post(&api, &path, "admin", &body).await;
                assert!(status.is_success() || status.is_client_error(), "{path}: {status} {answer}");
                assert!(body.is_object() || status == 400, "{path}: {status} {answer}");
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_valid_names_its_field_and_the_fix() {
    let api = api(fleet::in_memory().await);
    let hold = json!({ "name": "x", "select": "env =", "reason": "r" });
    for (path, body, field) in [
        ("/v1/holds", hold, "select"),
        ("/v1/rollouts", json!({ "name": "x", "waves": ["0%"] }), "waves"),
        ("/v1/rollouts/a/pause", json!({ "name": "b" }), "name"),
        ("/v1/agents/testagent/label", json!({ "remove": ["a=b"] }), "remove"),
        ("/v1/agents/testagent/label", json!({ "set": { "self.a": "b" } }), "set"),
        ("/v1/declarations/apply", json!({ "files": [{ "name": "x.md" }] }), "files"),
    ] {
        let (status, answer) = post(&api, path, "admin", &body).await;
        assert_eq!(
            (status.as_u16(), &answer["code"]),
            (400, &json!("INVALID_ARGUMENT")),
            "{answer}"
        );
        assert_eq!(answer["fields"][0]["field"], field, "{answer}");
        assert!(answer["fields"][0]["fix"].as_str().is_some_and(|fix| !fix.is_empty()), "{answer}");
    }
    let (status, answer) = get(&api, "/v1/agents?nonsense=1", "admin").await;
    assert_eq!((status.as_u16(), &answer["fields"][0]["field"]), (400, &json!("nonsense")));
}

#[tokio::test(start_paused = true)]
async fn who_has_no_token_learns_nothing() {
    let api = api(fleet::in_memory().await);
    for call in CALLS {
        let path = call.path.replace("{id}", "testagent").replace("{name}", "testrollout");
        let path = path.replace("{agent}", "testagent").replace("{plugin}", "testplugin");
        let method = if call.method == Method::Get { "GET" } else { "POST" };
        for token in ["", "unknown"] {
            let (status, answer) = send(&api, method, &path, token, b"nonsense").await;
            assert_eq!(status, 401, "{path}: {answer}");
            assert!(!answer.to_string().contains("testagent"), "{answer}");
        }
    }
    let (status, _) = get(&api, "/v1/watch", "").await;
    assert_eq!(status, 401);
    let (status, answer) = get(&api, "/v1/nowhere", "admin").await;
    assert_eq!((status.as_u16(), &answer["code"]), (404, &json!("NOT_FOUND")));
    let (status, _) = send(&api, "PUT", "/v1/agents", "admin", b"").await;
    assert_eq!(status, 405);
}

#[tokio::test(start_paused = true)]
async fn what_is_beyond_a_bound_of_the_api_is_refused() {
    let api = api(fleet::in_memory().await);
    let long = "x".repeat(9 << 10);
    let body = json!({ "reason": "x".repeat(8 << 20) });
    let (status, answer) = post(&api, "/v1/rollouts/testrollout/pause", "admin", &body).await;
    assert_eq!(status, 400, "{answer}");
    let (status, answer) =
        get(&api, &format!("/v1/agents?plugin={}", long.repeat(2)), "admin").await;
    assert_eq!(status, 400, "{answer}");
    for (path, body, field) in [
        ("/v1/rollouts/testrollout/pause", json!({ "reason": long }), "reason"),
        ("/v1/holds/testhold/end", json!({ "idempotencyKey": "k".repeat(129) }), "idempotency_key"),
    ] {
        let (status, answer) = post(&api, path, "admin", &body).await;
        assert_eq!((status.as_u16(), &answer["fields"][0]["field"]), (400, &json!(field)));
    }
    let cursor = format!("/v1/watch?cursor={}", "x".repeat(513));
    let (status, answer) = get(&api, &cursor, "admin").await;
    assert_eq!((status.as_u16(), &answer["fields"][0]["field"]), (400, &json!("cursor")));
}

#[tokio::test(start_paused = true)]
async fn a_page_has_at_most_so_many_agents_whatever_is_asked_for() {
    let ledger = fleet::in_memory().await;
    fleet::more(&ledger, 520).await;
    let api = api(ledger);
    let (_, usual) = get(&api, "/v1/agents", "admin").await;
    assert_eq!(usual["agents"].as_array().map(Vec::len), Some(50));
    let (_, most) = get(&api, "/v1/agents?pageSize=4000000000", "admin").await;
    assert_eq!(most["agents"].as_array().map(Vec::len), Some(500));
    let next = most["next"].as_str().expect("there is more");
    let (_, rest) = get(&api, &format!("/v1/agents?pageSize=500&cursor={next}"), "admin").await;
    assert_eq!(rest["agents"].as_array().map(Vec::len), Some(22), "{}", rest["next"]);
}

//! Each way alone, and two on one listener.

use std::sync::Arc;

use guest_agent_serve_kit::front::PeerInfo;
use tonic::Code;

use super::{Admission, Bearer, Either, Local, Peer};

fn info(address: Option<&str>) -> PeerInfo {
    PeerInfo { address: address.map(|it| it.parse().expect("an address")), certificate: None }
}

async fn code(admission: &dyn Admission, info: &PeerInfo, bearer: Option<&str>) -> Code {
    match admission.admit(&Peer { info, bearer }, "vm-1").await {
        Ok(admitted) => {
            assert_eq!(admitted.agent, "vm-1");
            Code::Ok
        }
        Err(status) => status.code(),
    }
}

#[tokio::test]
async fn without_identities_only_the_machine_itself_is_admitted() {
    for address in [None, Some("127.0.0.1:1"), Some("[::1]:1"), Some("[::ffff:127.0.0.1]:1")] {
        assert_eq!(code(&Local, &info(address), None).await, Code::Ok, "{address:?}");
    }
    for address in ["192.0.2.1:1", "[2001:db8::1]:1", "[::ffff:192.0.2.1]:1"] {
        assert_eq!(code(&Local, &info(Some(address)), None).await, Code::PermissionDenied);
    }
}

#[tokio::test]
async fn a_shared_token_is_compared() {
    let bearer = Bearer::new("secret");
    for (token, expected) in [
        (Some("secret"), Code::Ok),
        (Some("Secret"), Code::Unauthenticated),
        (Some(""), Code::Unauthenticated),
        (None, Code::Unauthenticated),
    ] {
        assert_eq!(code(&bearer, &info(None), token).await, expected, "{token:?}");
    }
}

#[tokio::test]
async fn a_certificate_or_a_token_admits_where_both_are_taken() {
    let either =
        Either::new(Arc::new(Bearer::new("certificates")), Arc::new(Bearer::new("tokens")));
    let with = PeerInfo { certificate: Some(Arc::new(vec![1].into())), ..info(None) };
    // What is shown first counts: a certificate that is not good is not made up for by a token.
    assert_eq!(code(&either, &with, Some("tokens")).await, Code::Unauthenticated);
    assert_eq!(code(&either, &with, Some("certificates")).await, Code::Ok);
    assert_eq!(code(&either, &info(None), Some("tokens")).await, Code::Ok);
    let nothing = either.admit(&Peer { info: &info(None), bearer: None }, "vm-1").await;
    let nothing = nothing.expect_err("nothing was shown");
    assert!(nothing.message().contains("neither"), "{nothing}");
}

//! What the API says of a call that did nothing, as one line.

use guest_agent_proto::fleet_api::Error;
use prost::Message;
use tonic::Status;

/// Why a call did nothing, with what to try where the API says it.
pub(super) fn reason(status: &Status) -> String {
    let details = guest_agent_proto::rpc::Status::decode(status.details()).unwrap_or_default();
    let told = details.details.iter().find_map(|any| Error::decode(any.value.as_slice()).ok());
    let told = told
        .filter(|told| !told.reason.is_empty())
        .unwrap_or_else(|| Error { reason: status.message().to_owned(), ..Error::default() });
    let mut text = told.reason;
    for part in told.causes.iter().chain(Some(&told.fix)).filter(|part| !part.is_empty()) {
        text.push_str(": ");
        text.push_str(part);
    }
    text
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a_refusal_is_told_with_its_causes_and_what_to_try() {
        assert_eq!(reason(&Status::not_found("no such agent")), "no such agent");
        let error = Error {
            reason: "no such rollout".to_owned(),
            causes: vec!["it ended".to_owned()],
            fix: "see `guest-fleet rollout list`".to_owned(),
            ..Error::default()
        };
        let details = guest_agent_proto::rpc::Status {
            details: vec![prost_types::Any { value: error.encode_to_vec(), ..Default::default() }],
            ..Default::default()
        };
        let bytes = details.encode_to_vec().into();
        let status = Status::with_details(Code::NotFound, "no such rollout", bytes);
        let told = "no such rollout: it ended: see `guest-fleet rollout list`";
        assert_eq!(reason(&status), told);
    }
}

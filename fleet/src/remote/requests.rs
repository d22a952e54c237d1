//! Options of verbs as requests.

use clap::ValueEnum;
use guest_agent_proto::fleet_api as pb;
use jiff::{SpanRelativeTo, Timestamp};

use crate::cli::failure::Failure;
use crate::cli::hold::HoldOptions;
use crate::cli::rollout::{CreateOptions, SteerOptions};
use crate::cli::standing::State;
use crate::cli::token::Create;
use crate::cli::{agents, identity, label};

/// Names a request, so that it happens once however often it is sent.
pub(super) fn key() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Most agents of a page.
const PAGE: u32 = 500;

/// Asks for a page of agents after a cursor, of at most so many.
pub(super) fn agents(
    options: &agents::Options,
    cursor: Option<&str>,
    left: u32,
) -> pb::ListAgentsRequest {
    let selector = options.selector.as_ref().or(options.select.as_ref());
    pb::ListAgentsRequest {
        selector: selector.map(ToString::to_string).unwrap_or_default(),
        plugin: options.plugin.clone().unwrap_or_default(),
        state: options.state.map_or(pb::Standing::Unspecified, standing).into(),
        archived: options.archived,
        cursor: cursor.unwrap_or_default().to_owned(),
        page_size: left.min(PAGE),
    }
}

/// A state as the API has it.
fn standing(state: State) -> pb::Standing {
    let word = state.to_possible_value().map(|value| value.get_name().to_uppercase());
    let name = format!("STANDING_{}", word.unwrap_or_default().replace('-', "_"));
    pb::Standing::from_str_name(&name).unwrap_or(pb::Standing::Unspecified)
}

pub(super) fn label(options: &label::Options) -> pb::LabelAgentRequest {
    let mut request = pb::LabelAgentRequest {
        id: options.id.clone(),
        reason: options.reason.clone(),
        idempotency_key: key(),
        ..pb::LabelAgentRequest::default()
    };
    // The last wish about a key counts, as over a ledger.
    for wish in &options.labels {
        request.remove.retain(|key| key != wish.key());
        match wish.set() {
            Some((key, value)) => drop(request.set.insert(key.to_owned(), value.to_owned())),
            None => {
                request.set.remove(wish.key());
                request.remove.push(wish.key().to_owned());
            }
        }
    }
    request
}

pub(super) fn agent(options: &identity::Options) -> pb::ActOnAgentRequest {
    pb::ActOnAgentRequest {
        id: options.id.to_string(),
        reason: options.reason.clone(),
        idempotency_key: key(),
    }
}

pub(super) fn hold(options: &HoldOptions, now: Timestamp) -> Result<pb::SetHoldRequest, Failure> {
    let until = match (options.until, &options.r#for) {
        (Some(until), _) => Some(until),
        (None, Some(span)) => {
            let length = span.to_duration(SpanRelativeTo::days_are_24_hours());
            let until = length.and_then(|length| now.checked_add(length));
            Some(until.map_err(|error| {
                Failure::usage(format_args!("--for: {error}"))
                    .hint("write a duration such as 30m, 4h or 7d")
            })?)
        }
        (None, None) => None,
    };
    Ok(pb::SetHoldRequest {
        name: options.name.clone(),
        select: options.select.clone(),
        own_labels: options.own_labels,
        plugins: options.plugins.clone(),
        until: until.map(|until| prost_types::Timestamp {
            seconds: until.as_second(),
            nanos: until.subsec_nanosecond(),
        }),
        reason: options.reason.clone(),
        idempotency_key: key(),
    })
}

pub(super) fn rollout(options: &CreateOptions) -> Result<pb::CreateRolloutRequest, Failure> {
    if options.four_eyes {
        return Err(Failure::failed("--four-eyes: no API token approves such a rollout").hint(
            "make it on the machine of the ledger; another person approves its waves there",
        ));
    }
    if options.soak.is_zero() && options.waves.is_empty() {
        // The API has the usual value in its place.
        return Err(Failure::usage(
            "--soak: waves that are not given are watched for at least a second",
        )
        .hint("give the waves with --wave, or --soak 1s"));
    }
    Ok(pb::CreateRolloutRequest {
        name: options.name.clone(),
        assignment: options.assignment.clone(),
        to: options.to.clone(),
        waves: options.waves.iter().map(|wave| wave.words(options.soak)).collect(),
        soak_seconds: options.soak.as_secs(),
        budget: options.budget.unwrap_or(0),
        draft: options.draft,
        replace: options.replace,
        reason: options.reason.clone(),
        idempotency_key: key(),
    })
}

pub(super) fn steer(options: &SteerOptions) -> pb::SteerRolloutRequest {
    pb::SteerRolloutRequest {
        name: options.name.clone(),
        reason: options.reason.clone(),
        idempotency_key: key(),
    }
}

pub(super) fn token(options: &Create) -> Result<pb::CreateTokenRequest, Failure> {
    // The API has a usual value in their place.
    if options.uses == 0 || options.expires.is_zero() {
        return Err(Failure::usage(
            "a token enrols at least one machine, within at least a second",
        )
        .hint("leave --uses or --expires out, or give more than 0"));
    }
    let labels = options.labels.iter().map(|wish| {
        let (key, value) = wish.set().ok_or_else(|| {
            Failure::usage("a token gives labels and takes none away").hint("write `key=value`")
        })?;
        Ok((key.to_owned(), value.to_owned()))
    });
    Ok(pb::CreateTokenRequest {
        name: options.name.clone(),
        uses: options.uses,
        expires_seconds: options.expires.as_secs(),
        labels: labels.collect::<Result<_, Failure>>()?,
        ephemeral: options.ephemeral,
        agent: options.agent.as_ref().map(ToString::to_string).unwrap_or_default(),
        reason: options.reason.clone(),
        idempotency_key: key(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_of_the_command_line_is_one_of_the_api() {
        for state in State::value_variants() {
            let name = standing(*state).as_str_name();
            let word = state.to_possible_value().expect("a word").get_name().to_uppercase();
            assert_eq!(name, format!("STANDING_{}", word.replace('-', "_")));
        }
    }
}

//! The id of an agent by the claims of its token: text with places for claims.

use std::str::FromStr;

use serde_json::Value;
use thiserror::Error;

/// Text and places, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// A JSON pointer.
    Claim(String),
}

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TemplateError {
    /// A bracket is missing.
    #[error("a `{{` has no `}}`, or the other way round")]
    Brackets,
    /// There is nothing between the brackets.
    #[error("a claim between `{{` and `}}` has no name")]
    Empty,
    /// Every agent would have the same id.
    #[error("it names no claim: write one such as `{{sub}}`")]
    NoClaim,
}

/// Why claims give no id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum FillError {
    #[error("the token has no claim `{0}` that is a text or a whole number")]
    Missing(String),
    #[error("the claim `{0}` of the token is empty or has a `/`, and cannot be a part of an id")]
    Slash(String),
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (before, after) = rest.split_once('{').unwrap_or((rest, ""));
            if before.contains('}') {
                return Err(TemplateError::Brackets);
            }
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            if before.len() == rest.len() {
                break;
            }
            let (claim, after) = after.split_once('}').ok_or(TemplateError::Brackets)?;
            if claim.contains('{') {
                return Err(TemplateError::Brackets);
            }
            if claim.is_empty() {
                return Err(TemplateError::Empty);
            }
            pieces.push(Piece::Claim(pointer(claim)));
            rest = after;
        }
        if !pieces.iter().any(|piece| matches!(piece, Piece::Claim(_))) {
            return Err(TemplateError::NoClaim);
        }
        Ok(Self(pieces))
    }
}

impl Template {
    /// The id by these claims.
    pub(super) fn fill(&self, claims: &Value) -> Result<String, FillError> {
        let is_whole = self.0.len() == 1;
        let mut id = String::new();
        for piece in &self.0 {
            let pointer = match piece {
                Piece::Text(text) => {
                    id.push_str(text);
                    continue;
                }
                Piece::Claim(pointer) => pointer,
            };
            let value =
                claimed(claims, pointer).ok_or_else(|| FillError::Missing(pointer.clone()))?;
            // Otherwise the claim could stand for the parts beside it.
            if value.is_empty() || (!is_whole && value.contains('/')) {
                return Err(FillError::Slash(pointer.clone()));
            }
            id.push_str(&value);
        }
        Ok(id)
    }
}

/// The JSON pointer of a claim: a name without a slash is a claim of the first level.
pub(super) fn pointer(claim: &str) -> String {
    match claim.starts_with('/') {
        true => claim.to_owned(),
        false => format!("/{}", claim.replace('~', "~0")),
    }
}

/// A claim as text, where it is a text or a whole number.
pub(super) fn claimed(claims: &Value, pointer: &str) -> Option<String> {
    match claims.pointer(pointer) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) if number.is_u64() => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fill(template: &str, claims: &Value) -> Result<String, FillError> {
        template.parse::<Template>().expect("a template").fill(claims)
    }

    #[test]
    fn an_id_is_made_of_claims() {
        let claims = json!({
            "sub": "system:x/y", "google": { "compute_engine": { "zone": "z", "instance_id": 7 } }
        });
        assert_eq!(fill("{sub}", &claims).as_deref(), Ok("system:x/y"));
        let deep =
            "zones/{/google/compute_engine/zone}/instances/{/google/compute_engine/instance_id}";
        assert_eq!(fill(deep, &claims).as_deref(), Ok("zones/z/instances/7"));
    }

    #[test]
    fn claims_that_are_missing_or_reach_beyond_their_place_give_no_id() {
        let claims = json!({ "a": "x/y", "b": "", "c": [1], "d": -1, "e": null });
        for template in ["v/{a}", "{b}", "{c}", "{d}", "{e}", "{f}"] {
            assert!(fill(template, &claims).is_err(), "{template}");
        }
    }

    #[test]
    fn a_text_without_a_claim_or_with_half_a_bracket_is_no_template() {
        for text in ["", "same", "{", "}", "{a", "a}", "{}", "{a{b}}", "{a}}"] {
            assert!(text.parse::<Template>().is_err(), "{text}");
        }
    }
}

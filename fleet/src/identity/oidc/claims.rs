//! What a token says of a person. Pure; the signature was checked before.

use serde_json::Value;

use super::super::bindings::NAME_BYTES;
use super::super::directory::GROUPS;
use super::error::{OidcError, shorten};
use super::settings::OidcSettings;

/// Longest id of a person at a provider, in bytes.
const SUBJECT_BYTES: usize = 255;

/// A person, as the provider knows it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Person {
    pub(super) name: String,
    pub(super) groups: Vec<String>,
    pub(super) subject: String,
}

/// Checks that the token was given to this fleet, where it is for several parties.
pub(super) fn is_for(claims: &Value, client: &str) -> Result<(), OidcError> {
    let is_for_several = claims["aud"].as_array().is_some_and(|all| all.len() > 1);
    match &claims["azp"] {
        Value::Null if !is_for_several => Ok(()),
        Value::String(party) if party == client => Ok(()),
        _ => Err(OidcError::Party),
    }
}

/// Reads who it is.
pub(super) fn person(claims: &Value, settings: &OidcSettings) -> Result<Person, OidcError> {
    let subject = claims["sub"].as_str().filter(|it| (1..=SUBJECT_BYTES).contains(&it.len()));
    let subject = subject.ok_or_else(|| OidcError::Name("sub".to_owned()))?;
    let name = claim(claims, &settings.name_claim).as_str().filter(|name| is_name(name));
    let name = name.ok_or_else(|| OidcError::Name(settings.name_claim.clone()))?;
    let is_verified = &claims["email_verified"];
    if settings.name_claim == "email" && (*is_verified == false || *is_verified == "false") {
        return Err(OidcError::Unverified(shorten(name)));
    }
    Ok(Person {
        name: name.to_owned(),
        groups: groups(claims, &settings.groups_claim)?,
        subject: subject.to_owned(),
    })
}

/// Whether somebody may be called so: the audit record has API tokens as `token/NAME`.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES
        && name.trim() == name
        && !name.starts_with("token/")
        && !name.chars().any(char::is_control)
}

fn groups(claims: &Value, name: &str) -> Result<Vec<String>, OidcError> {
    let wrong = || OidcError::Groups(name.to_owned());
    match claim(claims, name) {
        Value::Null if claims["_claim_names"].get(name).is_some() => Err(OidcError::GroupsLeftOut),
        Value::Null => Ok(Vec::new()),
        Value::String(one) => Ok(vec![one.clone()]),
        Value::Array(all) if all.len() <= GROUPS => {
            all.iter().map(|one| one.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
        }
        _ => Err(wrong()),
    }
}

/// A claim by its name, or by a JSON pointer.
fn claim<'a>(claims: &'a Value, name: &str) -> &'a Value {
    const NOTHING: &Value = &Value::Null;
    let found = if name.starts_with('/') { claims.pointer(name) } else { claims.get(name) };
    found.unwrap_or(NOTHING)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(name: &str, groups: &str) -> OidcSettings {
        OidcSettings {
            issuer: "https://idp.example".to_owned(),
            client_id: "fleet".to_owned(),
            client_secret_file: None,
            name_claim: name.to_owned(),
            groups_claim: groups.to_owned(),
            scopes: Vec::new(),
            ca: None,
        }
    }

    fn read(claims: &Value) -> Result<Person, OidcError> {
        person(claims, &settings("email", "groups"))
    }

    #[test]
    fn a_person_has_the_name_and_the_groups_of_the_claims_that_were_set() {
        let claims = json!({
            "sub": "7", "email": "alice@example.org", "email_verified": true, "groups": ["web", "db"],
            "realm": { "roles": "ops" }, "https://example.org/name": "alice",
        });
        let alice = read(&claims).expect("a person");
        assert_eq!((alice.name.as_str(), alice.subject.as_str()), ("alice@example.org", "7"));
        assert_eq!(alice.groups, ["web", "db"]);
        let other = settings("https://example.org/name", "/realm/roles");
        let alice = person(&claims, &other).expect("a person");
        assert_eq!(
            (alice.name.as_str(), alice.groups.as_slice()),
            ("alice", &["ops".to_owned()][..])
        );
        let without = read(&json!({ "sub": "7", "email": "a@b" })).expect("a person");
        assert!(without.groups.is_empty());
    }

    #[test]
    fn who_has_no_name_a_foreign_one_or_one_that_nobody_verified_is_nobody() {
        let long = "x".repeat(NAME_BYTES + 1);
        for name in [
            json!(null),
            json!(7),
            json!(""),
            json!(" a"),
            json!("a\nb"),
            json!("token/ci"),
            json!(long),
        ] {
            let read = read(&json!({ "sub": "7", "email": name }));
            assert!(matches!(read, Err(OidcError::Name(_))), "{name}: {read:?}");
        }
        for no in [json!(false), json!("false")] {
            let read = read(&json!({ "sub": "7", "email": "a@b", "email_verified": no }));
            assert!(matches!(read, Err(OidcError::Unverified(_))), "{read:?}");
        }
        assert!(matches!(read(&json!({ "email": "a@b" })), Err(OidcError::Name(_))));
    }

    #[test]
    fn groups_that_are_no_list_or_were_left_out_are_an_error() {
        let with = |groups: Value| read(&json!({ "sub": "7", "email": "a@b", "groups": groups }));
        for odd in [json!({}), json!(7), json!([7]), json!(vec!["g"; GROUPS + 1])] {
            assert!(matches!(with(odd), Err(OidcError::Groups(_))));
        }
        assert_eq!(with(json!(vec!["g"; GROUPS])).expect("a person").groups.len(), GROUPS);
        let left = json!({ "sub": "7", "email": "a@b", "_claim_names": { "groups": "src1" } });
        assert!(matches!(read(&left), Err(OidcError::GroupsLeftOut)));
    }

    #[test]
    fn a_token_for_several_parties_says_that_it_was_given_to_this_one() {
        for (claims, is_ours) in [
            (json!({ "aud": "fleet" }), true),
            (json!({ "aud": ["fleet"] }), true),
            (json!({ "aud": ["fleet", "other"] }), false),
            (json!({ "aud": ["fleet", "other"], "azp": "fleet" }), true),
            (json!({ "aud": "fleet", "azp": "other" }), false),
            (json!({ "aud": "fleet", "azp": 7 }), false),
        ] {
            assert_eq!(is_for(&claims, "fleet").is_ok(), is_ours, "{claims}");
        }
    }
}

//! Values that several kinds of declarations have: names, selectors, plugins, times.

use std::collections::BTreeSet;

use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::Plugins;
use jiff::Timestamp;

use super::fields::{Context, Fields, shown};
use super::problem::Place;

/// Longest name of an assignment, a hold or a window.
const NAME_BYTES: usize = 63;
/// Longest name of a plugin that agents take.
const PLUGIN_BYTES: usize = 63;
/// Longest revision that agents take.
const REVISION_BYTES: usize = 128;
/// Longest reason of a hold, in bytes.
const REASON_BYTES: usize = 1024;

/// Whether a text can be the name of an assignment, a hold or a window; else why not.
///
/// # Errors
/// Says what a name is made of.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_outer = |byte: Option<&u8>| byte.is_some_and(|byte| is_inner(*byte) && *byte != b'-');
    let bytes = name.as_bytes();
    if bytes.len() <= NAME_BYTES
        && is_outer(bytes.first())
        && is_outer(bytes.last())
        && bytes.iter().all(|byte| is_inner(*byte))
    {
        return Ok(());
    }
    Err(format!("{} is not a name", shown(name)))
}

/// What puts a bad name right.
pub const NAME_FIX: &str = "use 1 to 63 lower-case letters, digits and hyphens, with no hyphen at the beginning or the end";

/// Whether agents take a text as the name of a plugin; else why not.
///
/// # Errors
/// Says why not.
pub fn check_plugin(name: &str) -> Result<(), String> {
    is_id(name, PLUGIN_BYTES)
        .then_some(())
        .ok_or_else(|| format!("{} is not a name that agents take for a plugin", shown(name)))
}

/// Reads the time at which a hold ends.
///
/// # Errors
/// The text is not a time after 1970.
pub fn check_until(text: &str) -> Result<Seconds, String> {
    let at: Timestamp =
        text.parse().map_err(|_| format!("{} is not a time of RFC 3339", shown(text)))?;
    u64::try_from(at.as_second())
        .ok()
        .filter(|seconds| *seconds > 0)
        .map(Seconds)
        .ok_or_else(|| format!("{} is not after 1970", shown(text)))
}

/// Whether a text can be why a hold is there; else why not.
///
/// # Errors
/// It is empty, too long, or has control characters.
pub fn check_reason(text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err("it says nothing".to_owned());
    }
    if text.len() > REASON_BYTES {
        return Err(format!("it is longer than {REASON_BYTES} bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err("it has control characters".to_owned());
    }
    Ok(())
}

/// Reads a selector, and refuses labels that machines claim themselves where they are not trusted.
///
/// # Errors
/// Says the reason and the fix.
pub fn check_selector(text: &str, own: OwnLabels) -> Result<Selector, (String, String)> {
    let selector = Selector::parse(text).map_err(|error| {
        let example = "such as `env = prod and zone in (eu-1, eu-2)`, or `all`";
        (format!("it is not a selector: {error}"), format!("write a selector {example}"))
    })?;
    if own == OwnLabels::Ignored && selector.names_own_labels() {
        return Err((
            "it names a label that machines claim themselves (`self.`), so it would select nothing: \
             a machine could choose what it gets"
                .to_owned(),
            "select by labels that operators or join tokens give, or add `own_labels = true` if every \
             machine may claim this"
                .to_owned(),
        ));
    }
    Ok(selector)
}

fn is_id(text: &str, bytes: usize) -> bool {
    text.len() <= bytes
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// The name of a declaration, from the key `name`.
pub(crate) fn name(context: &mut Context<'_>, fields: &Fields<'_>) -> Option<(String, Place)> {
    let (text, place) = fields.required_text(context, "name")?;
    match check_name(text) {
        Ok(()) => Some((text.to_owned(), place)),
        Err(reason) => {
            context.problem(place, &fields.key("name"), reason, NAME_FIX);
            None
        }
    }
}

/// The name of a plugin, from the key `plugin`.
pub(crate) fn plugin(context: &mut Context<'_>, fields: &Fields<'_>) -> Option<String> {
    let (text, place) = fields.required_text(context, "plugin")?;
    plugin_name(context, text, place, &fields.key("plugin"))
}

fn plugin_name(context: &mut Context<'_>, text: &str, at: Place, key: &str) -> Option<String> {
    match check_plugin(text) {
        Ok(()) => Some(text.to_owned()),
        Err(reason) => {
            let fix = "use 1 to 63 letters, digits and `._-`, with a letter or a digit first";
            context.problem(at, key, reason, fix);
            None
        }
    }
}

/// A revision, from the key `revision`.
pub(crate) fn revision(
    context: &mut Context<'_>,
    text: &str,
    at: Place,
    key: &str,
) -> Option<String> {
    if text == "current" {
        let reason = "agents keep `current` for the link to what runs";
        context.problem(at, key, reason, "name the revision otherwise, such as `1.0`");
        return None;
    }
    if is_id(text, REVISION_BYTES) {
        return Some(text.to_owned());
    }
    let reason = format!("{} is not a revision that agents take", shown(text));
    let fix = "use 1 to 128 letters, digits and `._-`, with a letter or a digit first";
    context.problem(at, key, reason, fix);
    None
}

/// The selector, from the keys `select` and `own_labels`.
pub(crate) fn selector(
    context: &mut Context<'_>,
    fields: &Fields<'_>,
) -> Option<(Selector, OwnLabels)> {
    let own =
        if fields.flag(context, "own_labels") { OwnLabels::Trusted } else { OwnLabels::Ignored };
    let (text, place) = fields.required_text(context, "select")?;
    match check_selector(text, own) {
        Ok(selector) => Some((selector, own)),
        Err((reason, fix)) => {
            context.problem(place, &fields.key("select"), reason, fix);
            None
        }
    }
}

/// Plugins that a hold or a window is about, from the key `plugins`.
pub(crate) fn plugins(context: &mut Context<'_>, fields: &Fields<'_>) -> Plugins {
    let Some(node) = fields.get("plugins") else { return Plugins::All };
    let key = fields.key("plugins");
    let names: BTreeSet<String> = fields
        .texts(context, "plugins")
        .into_iter()
        .filter_map(|(text, place)| plugin_name(context, text, place, &key))
        .collect();
    if matches!(&node.value, super::tree::Value::List(items) if items.is_empty()) {
        let reason = "the list is empty, so nothing would be meant";
        context.problem(node.place, &key, reason, "name plugins, or leave the key out for all");
    }
    Plugins::Named(names)
}

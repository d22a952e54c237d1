//! A window: changes happen only while it, or another window of the same agent and plugin, is open.

use guest_fleet_core::view::Window;
use guest_fleet_core::window::Weekly;
use jiff::tz::TimeZone;

use super::fields::{Context, Fields, shown, suggestion};
use super::tree::{Node, Value};
use super::values;

const ALLOWED: [&str; 8] =
    ["name", "select", "own_labels", "plugins", "days", "from", "to", "zone"];

/// The keys that say when.
pub(crate) const HOURS: [&str; 4] = ["days", "from", "to", "zone"];

const HINTS: [(&str, &str); 3] = [
    ("plugin", "write `plugins = [\"…\"]`"),
    ("timezone", "write `zone`"),
    ("until", "write `to = \"04:00\"`"),
];

/// The days of a week as they are written, Monday first.
pub const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

const DAY_MINUTES: u16 = 24 * 60;

/// Reads one window; `None` when it has a problem.
pub(crate) fn read(context: &mut Context<'_>, node: &Node) -> Option<(String, Window)> {
    let fields = Fields::new(context, node, "window", &ALLOWED, &HINTS)?;
    let name = values::name(context, &fields);
    let selector = values::selector(context, &fields);
    let plugins = values::plugins(context, &fields);
    let weekly = weekly(context, &fields);
    let (selector, own_labels) = selector?;
    Some((name?.0, Window { selector, own_labels, plugins, weekly: weekly? }))
}

/// Reads when something is open; `None` when that has a problem.
pub(crate) fn weekly(context: &mut Context<'_>, fields: &Fields<'_>) -> Option<Weekly> {
    let days = days(context, fields);
    let times = times(context, fields);
    let zone = zone(context, fields);
    let (opens, minutes) = times?;
    Some(Weekly { days: days?, opens, minutes, zone: zone? })
}

fn days(context: &mut Context<'_>, fields: &Fields<'_>) -> Option<[bool; 7]> {
    let key = fields.key("days");
    let node = fields.required(context, "days")?;
    let mut days = [false; 7];
    let mut is_whole = true;
    for (text, place) in fields.texts(context, "days") {
        match DAYS.iter().zip(&mut days).find(|(name, _)| **name == text) {
            Some((_, day)) => *day = true,
            None => {
                is_whole = false;
                let short: String = text.to_lowercase().chars().take(3).collect();
                let fix = match DAYS.iter().find(|name| **name == short) {
                    Some(name) => format!("write \"{name}\""),
                    None => format!("write some of \"{}\"", DAYS.join("\", \"")),
                };
                context.problem(place, &key, format!("{} is not a day", shown(text)), fix);
            }
        }
    }
    let is_list = matches!(node.value, Value::List(_));
    if is_whole && is_list && !days.contains(&true) {
        let fix = format!("write some of \"{}\"", DAYS.join("\", \""));
        context.problem(node.place, &key, "it names no day, so the window would never open", fix);
        return None;
    }
    (is_whole && is_list).then_some(days)
}

/// When it opens, in minutes of the day, and for how many minutes.
fn times(context: &mut Context<'_>, fields: &Fields<'_>) -> Option<(u16, u16)> {
    let from = time(context, fields, "from");
    let to = time(context, fields, "to");
    let (from, to) = (from?, to?);
    if from == DAY_MINUTES {
        let fix = "write \"00:00\", and the days on which that is";
        context.problem(fields.place(), &fields.key("from"), "no day begins at 24:00", fix);
        return None;
    }
    if from == to {
        let reason = "it closes when it opens";
        let fix = "write another time; a whole day is `from = \"00:00\"`, `to = \"24:00\"`";
        context.problem(fields.place(), &fields.key("to"), reason, fix);
        return None;
    }
    // It may pass midnight.
    Some((from, if to > from { to - from } else { to + DAY_MINUTES - from }))
}

fn time(context: &mut Context<'_>, fields: &Fields<'_>, name: &str) -> Option<u16> {
    let node = fields.required(context, name)?;
    let text = match &node.value {
        // A time of TOML: `from = 02:00:00`.
        Value::Date(text) => text.strip_suffix(":00").unwrap_or(text),
        _ => context.text(node, &fields.key(name))?,
    };
    let minutes = minutes(text);
    if minutes.is_none() {
        let reason = format!("{} is not a time of day", shown(text));
        context.problem(node.place, &fields.key(name), reason, "write it as \"02:30\"");
    }
    minutes
}

fn minutes(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let two = |digits: &str| {
        let are_digits = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        are_digits.then(|| digits.parse::<u16>().ok()).flatten()
    };
    let (hour, minute) = (two(hour)?, two(minute)?);
    let minutes = hour.checked_mul(60)?.checked_add(minute)?;
    (minute < 60 && minutes <= DAY_MINUTES).then_some(minutes)
}

/// The zone in the spelling of the database.
fn zone(context: &mut Context<'_>, fields: &Fields<'_>) -> Option<String> {
    let (text, place) = fields.required_text(context, "zone")?;
    let zone = TimeZone::get(text).ok();
    if let Some(name) = zone.as_ref().and_then(TimeZone::iana_name) {
        return Some(name.to_owned());
    }
    let names: Vec<String> = jiff::tz::db().available().map(|name| name.to_string()).collect();
    let nearest = names
        .iter()
        .filter(|name| strsim::damerau_levenshtein(name, text) <= 1 + text.len() / 6)
        .min_by_key(|name| strsim::damerau_levenshtein(name, text));
    let fix = match nearest {
        Some(name) => format!("did you mean `{name}`?"),
        None => suggestion(text, &["Europe/Zurich", "America/New_York", "UTC"])
            .replace("allowed are", "write a name of the IANA database, such as"),
    };
    let reason = format!("{} is not a time zone that is known here", shown(text));
    context.problem(place, &fields.key("zone"), reason, fix);
    None
}

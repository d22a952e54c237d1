//! Makes policies from the layers of the configuration.
//!
//! A layer gives settings, each with its source; [`fold`] goes through them in the order of the
//! layers, so that later ones win key by key, and names every mistake with its source.

use std::collections::BTreeMap;
use std::path::{Component, PathBuf};
use std::time::Duration;

use super::values::nearest;
use super::{
    Account, Capabilities, DEFAULTS, LIMITS, Limit, LimitName, Policies, Policy, Seccomp, Umask,
};
use crate::config::Problem;
use crate::config::duration::{format_duration, parse_duration};
use crate::config::value::{Table, Value};

/// The section that has the tables of policies.
const SECTION: &str = "plugins";

/// The key whose value is a table of limits.
const RLIMITS: &str = "rlimits";

/// All keys of a policy but the limits.
pub(in crate::config) const KEYS: [&str; 13] = [
    "user",
    "group",
    "no_new_privileges",
    "capabilities",
    "read_only_paths",
    "read_write_paths",
    "private_tmp",
    "seccomp",
    "umask",
    "oom_score_adj",
    "agent_socket",
    "stop_grace",
    "required",
];

/// Longest time to exit after an answer to Stop; the same bound as that of `plugins.stop_grace`.
const GRACE_MAX: Duration = Duration::from_secs(3600);

/// Most paths in one list, and the longest of them in bytes.
const PATHS_MAX: usize = 64;
const PATH_MAX: usize = 4096;

/// One key of one policy, as one layer has it.
#[derive(Clone, Debug)]
pub(in crate::config) struct Setting {
    /// A plugin's name, or that of the defaults. Not checked.
    owner: String,
    /// `user`, or `rlimits.nofile`. Not checked.
    key: String,
    value: Value,
    origin: String,
}

/// Takes the tables out of a layer's `[plugins]`, and leaves the other values.
pub(in crate::config) fn take_tables(values: &mut Table, origin: &str) -> Vec<Setting> {
    let Some(Value::Table(section)) = values.get_mut(SECTION) else { return Vec::new() };
    let owners: Vec<String> = section
        .iter()
        .filter(|(_, value)| matches!(value, Value::Table(_)))
        .map(|(owner, _)| owner.clone())
        .collect();
    let mut settings = Vec::new();
    for owner in owners {
        let Some(Value::Table(keys)) = section.remove(&owner) else { continue };
        for (key, value) in keys {
            let setting = |key: String, value: Value| Setting {
                owner: owner.clone(),
                key,
                value,
                origin: origin.to_owned(),
            };
            match value {
                Value::Table(limits) if key == RLIMITS => {
                    let limits = limits.into_iter();
                    settings
                        .extend(limits.map(|(name, v)| setting(format!("{RLIMITS}.{name}"), v)));
                }
                value => settings.push(setting(key, value)),
            }
        }
    }
    settings
}

/// A setting from a flag or a variable, `plugins.NAME.key` with `separator` between its parts.
/// `None` when it is not a key of a policy, but one of `[plugins]` or of another section.
pub(in crate::config) fn setting_of_text(
    key: &str,
    separator: &str,
    text: &str,
    origin: &str,
) -> Option<Setting> {
    let rest = key.strip_prefix(SECTION)?.strip_prefix('.')?;
    let (owner, last) = rest.rsplit_once(separator)?;
    // Names of plugins may contain dots, keys do not.
    let (owner, key) = match owner.rsplit_once(separator) {
        Some((owner, RLIMITS)) => (owner, format!("{RLIMITS}.{last}")),
        _ => (owner, last.to_owned()),
    };
    Some(Setting {
        owner: owner.trim_matches('"').to_owned(),
        value: typed(&key, text),
        key,
        origin: origin.to_owned(),
    })
}

/// The text as the type of the key, where it can be read so; its value is checked later.
fn typed(key: &str, text: &str) -> Value {
    let as_toml = match key {
        "user" | "group" | "seccomp" | "umask" | "stop_grace" => false,
        _ => !key.starts_with(RLIMITS),
    };
    let read = || {
        let mut table = toml::from_str::<Table>(&format!("a = {text}")).ok()?;
        table.remove("a")
    };
    let read = if as_toml { read() } else { None };
    read.unwrap_or_else(|| Value::from(text))
}

/// Merges all settings, later ones over earlier ones, and returns the source of each key that
/// counts.
pub(in crate::config) fn fold(
    settings: Vec<Setting>,
    problems: &mut Vec<Problem>,
) -> (Policies, BTreeMap<String, String>) {
    let mut policies = Policies::default();
    let mut origins = BTreeMap::new();
    for Setting { owner, key, value, origin } in settings {
        let mut wrong = |reason| {
            let key = format!("{SECTION}.{owner}.{key}");
            problems.push(Problem { key, origin: origin.clone(), reason });
        };
        let policy = if owner == DEFAULTS {
            &mut policies.defaults
        } else {
            match owner.parse() {
                Ok(name) => policies.named.entry(name).or_default(),
                Err(error) => {
                    wrong(format!("{error}; a table below [{SECTION}] has the name of a plugin"));
                    continue;
                }
            }
        };
        match set(policy, &key, &value) {
            Ok(()) => {
                let whole = format!("{SECTION}.{}.{key}", super::quoted(&owner));
                origins.insert(whole, origin);
            }
            Err(reason) => wrong(reason),
        }
    }
    (policies, origins)
}

fn set(policy: &mut Policy, key: &str, value: &Value) -> Result<(), String> {
    match key {
        "user" => policy.user = Some(account(value)?),
        "group" => policy.group = Some(account(value)?),
        "no_new_privileges" => policy.no_new_privileges = Some(yes_or_no(value)?),
        "capabilities" => {
            let names = texts(value, "[\"CAP_NET_ADMIN\"]")?;
            let names = names.iter().map(String::as_str);
            policy.capabilities = Some(Capabilities::parse(names)?);
        }
        "read_only_paths" => policy.read_only_paths = Some(paths(value)?),
        "read_write_paths" => policy.read_write_paths = Some(paths(value)?),
        "private_tmp" => policy.private_tmp = Some(yes_or_no(value)?),
        "seccomp" => policy.seccomp = Some(Seccomp::parse(text(value)?)?),
        "umask" => policy.umask = Some(Umask::parse(text(value)?)?),
        "oom_score_adj" => {
            let number = number(value).filter(|number| (-1000..=1000).contains(number));
            let number = number.and_then(|number| i32::try_from(number).ok());
            policy.oom_score_adj =
                Some(number.ok_or("a whole number from -1000 to 1000 is expected")?);
        }
        "agent_socket" => policy.agent_socket = Some(yes_or_no(value)?),
        "stop_grace" => policy.stop_grace = Some(grace(text(value)?)?),
        "required" => policy.required = Some(yes_or_no(value)?),
        RLIMITS => return Err("a table is expected, such as { nofile = 1024 }".to_owned()),
        _ => {
            let limit = key.strip_prefix(RLIMITS).and_then(|rest| rest.strip_prefix('.'));
            let Some(name) = limit else { return Err(unknown(key, &KEYS, "")) };
            let known = LIMITS.map(|(name, _)| name);
            let name = LimitName::parse(name)
                .ok_or_else(|| unknown(name, &known, &format!("{RLIMITS}.")))?;
            policy.rlimits.insert(name, limit_of(value)?);
        }
    }
    Ok(())
}

fn grace(text: &str) -> Result<Duration, String> {
    let grace = parse_duration(text).map_err(|wrong| wrong.to_string())?;
    if grace > GRACE_MAX {
        return Err(format!("{text} is too long; use at most {}", format_duration(GRACE_MAX)));
    }
    Ok(grace)
}

fn unknown(key: &str, known: &[&str], prefix: &str) -> String {
    match nearest(key, known.iter().copied()) {
        Some(near) => format!("the key is unknown; did you mean {prefix}{near}?"),
        None => format!("the key is unknown; the known keys are {prefix}{{{}}}", known.join(", ")),
    }
}

fn account(value: &Value) -> Result<Account, String> {
    match number(value) {
        Some(id) => Account::of_number(id),
        None => Account::parse(text(value)?),
    }
}

fn limit_of(value: &Value) -> Result<Limit, String> {
    match number(value) {
        Some(number) => Limit::of_number(number),
        None => Limit::parse(text(value)?),
    }
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Signed(number) => Some(*number),
        Value::Unsigned(number) => i64::try_from(*number).ok(),
        _ => None,
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_text().ok_or_else(|| "a text is expected".to_owned())
}

fn yes_or_no(value: &Value) -> Result<bool, String> {
    match value {
        Value::Bool(yes) => Ok(*yes),
        _ => Err("true or false is expected".to_owned()),
    }
}

fn texts(value: &Value, example: &str) -> Result<Vec<String>, String> {
    let wrong = || format!("a list of texts is expected, such as {example}");
    let Value::List(items) = value else { return Err(wrong()) };
    items.iter().map(|item| item.as_text().map(str::to_owned).ok_or_else(wrong)).collect()
}

fn paths(value: &Value) -> Result<Vec<PathBuf>, String> {
    let texts = texts(value, "[\"/srv/data\"]")?;
    if texts.len() > PATHS_MAX {
        return Err(format!("{} paths are too many; use at most {PATHS_MAX}", texts.len()));
    }
    texts.into_iter().map(|text| path(&text)).collect()
}

fn path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if !path.is_absolute() {
        return Err(format!("{text:?} is not an absolute path; start it with a slash"));
    }
    let up = path.components().any(|part| part == Component::ParentDir);
    if up || text.len() > PATH_MAX || text.contains(char::is_control) {
        return Err(format!(
            "{text:?} cannot be used; write a path without \"..\" and control characters, of at most \
             {PATH_MAX} bytes"
        ));
    }
    Ok(path)
}

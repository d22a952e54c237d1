//! Merges the layers of the configuration, and remembers which layer set each value.
//!
//! Every layer is checked by itself before it is merged, so that an unknown key is reported with
//! the file or variable that has it. The defaults are the schema, too: a key is known when it has a
//! default, and a text from a variable or a flag is read as the type of that default.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::value::{Layer, Merged, Mismatch, Table, Value};
use super::{Config, ConfigError, Environment, Loaded, Problem, policy, validate};

/// Most bytes of a configuration file that are read.
const FILE_MAX: u64 = 1 << 20;

const VARIABLE_PREFIX: &str = "GUEST_AGENT__";

/// Has `HOST` or `HOST:PORT` of the metadata server.
const METADATA_HOST: &str = "GCE_METADATA_HOST";

/// The flags of the command line that concern the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// The file to read instead of the default one; it must exist.
    pub file: Option<PathBuf>,
    /// Settings of the form `section.key=value`; later ones win.
    pub set: Vec<String>,
}

/// Reads all layers and checks the result.
///
/// # Errors
/// Names every file that cannot be read, and every key that is unknown or has an invalid value,
/// with its source.
pub fn load(environment: &dyn Environment, sources: &Sources) -> Result<Loaded, ConfigError> {
    let defaults = Schema::new();
    let mut layers = Vec::new();
    read_files(environment, sources, &mut layers)?;
    let mut problems = Vec::new();
    let mut of_policies = Vec::new();
    for layer in &mut layers {
        of_policies.extend(policy::take_tables(&mut layer.values, &layer.origin));
        defaults.check(layer, &mut problems);
    }
    for (name, text) in environment.variables() {
        let Some(key) = name.strip_prefix(VARIABLE_PREFIX) else { continue };
        let key = key.to_lowercase().replacen("__", ".", 1);
        let origin = format!("environment variable {name}");
        if let Some(setting) = policy::setting_of_text(&key, "__", &text, &origin) {
            of_policies.push(setting);
            continue;
        }
        layers.extend(defaults.layer_of_text(&key, &text, origin, &mut problems));
    }
    for setting in &sources.set {
        let Some((key, text)) = setting.split_once('=') else {
            return Err(ConfigError::Set { text: setting.clone() });
        };
        let key = key.trim();
        let origin = format!("--set {key}");
        if let Some(setting) = policy::setting_of_text(key, ".", text, &origin) {
            of_policies.push(setting);
            continue;
        }
        layers.extend(defaults.layer_of_text(key, text, origin, &mut problems));
    }
    let (policies, of_policies) = policy::fold(of_policies, &mut problems);
    if !problems.is_empty() {
        return Err(ConfigError::Problems(problems));
    }

    let base = Layer { origin: DEFAULTS.to_owned(), values: defaults.values.clone() };
    let mut merged = Merged::new(base);
    for layer in layers {
        merged.put(layer);
    }
    let mut config = extract(&merged)?;
    // The variable that metadata clients have in common is used where the setting is not given.
    if config.instance.metadata_url.is_empty()
        && let Some(host) = environment.variable(METADATA_HOST)
    {
        let url = format!("http://{}", host.strip_prefix("http://").unwrap_or(&host));
        let origin = format!("environment variable {METADATA_HOST}");
        if let Some(layer) =
            defaults.layer_of_text("instance.metadata_url", &url, origin, &mut problems)
        {
            merged.put(layer);
        }
        config = extract(&merged)?;
    }
    let origin_of = |key: &str| {
        let path: Vec<&str> = key.split('.').collect();
        merged.origin(&path).unwrap_or(DEFAULTS).to_owned()
    };
    let problems = validate::check(&config, &origin_of);
    if !problems.is_empty() {
        return Err(ConfigError::Problems(problems));
    }
    let mut origins: BTreeMap<String, String> = defaults
        .keys()
        .map(|key| (key.clone(), origin_of(&key)))
        .filter(|(_, origin)| origin != DEFAULTS)
        .collect();
    origins.extend(config.labels.keys().map(|label| {
        let key = format!("{LABELS}.{label}");
        let origin = origin_of(&key);
        (key, origin)
    }));
    origins.extend(of_policies);
    config.policies = policies;
    Ok(Loaded { config, origins })
}

const DEFAULTS: &str = "the defaults";

/// The section whose keys people choose.
const LABELS: &str = "labels";

/// The key whose value is a list of tables.
const WINDOWS: &str = "maintenance.window";

/// What a label is: a text.
static LABEL: Value = Value::Text(String::new());

/// The defaults, which list all keys and their types.
struct Schema {
    values: Table,
}

// === impl Schema ===

impl Schema {
    fn new() -> Self {
        Self { values: Value::sections(&Config::default()) }
    }

    fn keys(&self) -> impl Iterator<Item = String> {
        self.values.iter().flat_map(|(section, keys)| {
            let keys = keys.as_table().into_iter().flat_map(Table::keys);
            keys.map(move |key| format!("{section}.{key}"))
        })
    }

    fn default_of(&self, key: &str) -> Option<&Value> {
        let (section, key) = key.split_once('.')?;
        self.values.get(section)?.as_table()?.get(key)
    }

    fn check(&self, layer: &Layer, problems: &mut Vec<Problem>) {
        for (section, value) in &layer.values {
            match value.as_table() {
                Some(keys) if self.values.contains_key(section) => {
                    for key in keys.keys().filter(|_| section != LABELS) {
                        let key = format!("{section}.{key}");
                        if self.default_of(&key).is_none() {
                            problems.push(self.unknown(&key, &layer.origin));
                        }
                    }
                }
                Some(_) => problems.push(Problem {
                    key: section.clone(),
                    origin: layer.origin.clone(),
                    reason: format!("the section is unknown{}", self.nearest_section(section)),
                }),
                None => problems.push(self.unknown(section, &layer.origin)),
            }
        }
    }

    /// A layer with one value, read as the type of the key's default.
    fn layer_of_text(
        &self,
        key: &str,
        text: &str,
        origin: String,
        problems: &mut Vec<Problem>,
    ) -> Option<Layer> {
        let label = || key.starts_with("labels.").then_some(&LABEL);
        let Some(default) = self.default_of(key).or_else(label) else {
            problems.push(self.unknown(key, &origin));
            return None;
        };
        let read = match default {
            Value::Bool(_) => text.parse().map(Value::Bool).ok(),
            Value::Unsigned(_) | Value::Signed(_) | Value::Float(_) => {
                text.parse().map(Value::Unsigned).ok()
            }
            Value::List(_) if key == WINDOWS => {
                toml::from_str::<BTreeMap<String, Vec<Table>>>(&format!("a = {text}"))
                    .ok()
                    .and_then(|mut table| table.remove("a"))
                    .map(|items| Value::List(items.into_iter().map(Value::Table).collect()))
            }
            Value::List(_) => {
                toml::from_str::<BTreeMap<String, Vec<String>>>(&format!("a = {text}"))
                    .ok()
                    .and_then(|mut table| table.remove("a"))
                    .map(|items| Value::List(items.into_iter().map(Value::Text).collect()))
            }
            Value::Text(_) | Value::Table(_) => Some(Value::from(text)),
        };
        let expected = match default {
            Value::Bool(_) => "true or false",
            Value::Unsigned(_) | Value::Signed(_) | Value::Float(_) => "a whole number",
            Value::List(_) if key == WINDOWS => {
                "a list of windows, such as [{days = [\"sun\"], from = \"02:00\", to = \"04:00\", zone = \
                 \"UTC\"}]"
            }
            _ => "a list of texts, such as [\"/usr/bin/program\", \"--flag\"]",
        };
        let Some(value) = read else {
            let reason = format!("{expected} is expected");
            problems.push(Problem { key: key.to_owned(), origin, reason });
            return None;
        };
        let (section, key) = key.split_once('.')?;
        let section = (section.to_owned(), Value::Table(Table::from([(key.to_owned(), value)])));
        Some(Layer { origin, values: Table::from([section]) })
    }

    fn unknown(&self, key: &str, origin: &str) -> Problem {
        let name = key.rsplit('.').next().unwrap_or_default();
        // A key in the wrong section is as likely as a misspelt one.
        let nearest = self
            .keys()
            .map(|known| {
                let whole = strsim::jaro_winkler(key, &known);
                let last = known.rsplit('.').next().unwrap_or_default();
                let score = if last == name { whole.max(0.99) } else { whole };
                (score, known)
            })
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .filter(|(score, _)| *score > 0.7);
        let reason = match nearest {
            Some((_, known)) => format!("the key is unknown; did you mean {known}?"),
            None => "the key is unknown".to_owned(),
        };
        Problem { key: key.to_owned(), origin: origin.to_owned(), reason }
    }

    fn nearest_section(&self, section: &str) -> String {
        self.values
            .keys()
            .map(|known| (strsim::jaro_winkler(section, known), known))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .filter(|(score, _)| *score > 0.7)
            .map_or_else(String::new, |(_, known)| format!("; did you mean [{known}]?"))
    }
}

fn read_files(
    environment: &dyn Environment,
    sources: &Sources,
    layers: &mut Vec<Layer>,
) -> Result<(), ConfigError> {
    let file = sources.file.as_deref().unwrap_or_else(|| environment.default_file());
    match read_file(file)? {
        Some(layer) => layers.push(layer),
        None if sources.file.is_some() => {
            return Err(ConfigError::Missing { path: file.to_owned() });
        }
        None => {}
    }
    let Some(folder) = file.parent().filter(|_| !file.as_os_str().is_empty()) else {
        return Ok(());
    };
    let folder = folder.join("conf.d");
    let failed = |source| ConfigError::Read { path: folder.clone(), source };
    let members = match std::fs::read_dir(&folder) {
        Ok(members) => members,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(());
        }
        Err(error) => return Err(failed(error)),
    };
    let mut paths = Vec::new();
    for member in members {
        let path = member.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    for path in paths {
        // A file that was deleted since the directory was listed counts as one that never existed.
        layers.extend(read_file(&path)?);
    }
    Ok(())
}

fn read_file(path: &Path) -> Result<Option<Layer>, ConfigError> {
    use std::io::Read;

    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(FILE_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_MAX {
        let reason = format!("it is larger than {FILE_MAX} bytes");
        return Err(ConfigError::Syntax { path: path.to_owned(), reason });
    }
    let values = toml::from_str(&text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| {
            1 + text.bytes().take(span.start).filter(|byte| *byte == b'\n').count()
        });
        let reason = format!("line {line}: {}", error.message().replace('\n', " "));
        ConfigError::Syntax { path: path.to_owned(), reason }
    })?;
    Ok(Some(Layer { origin: path.display().to_string(), values }))
}

fn extract(merged: &Merged) -> Result<Config, ConfigError> {
    merged.extract().map_err(|wrong| ConfigError::Problems(vec![problem_of(wrong, merged)]))
}

fn problem_of(wrong: Mismatch, merged: &Merged) -> Problem {
    let path: Vec<&str> = wrong.path.iter().map(String::as_str).collect();
    let origin = merged.origin(&path).unwrap_or(DEFAULTS).to_owned();
    let key = wrong.path.join(".");
    let reason = if key.starts_with("admission.command") {
        // The reason quotes the value, and arguments of the admission plugin may be tokens.
        "a list of texts is expected, such as [\"/usr/bin/program\", \"--flag\"]".to_owned()
    } else {
        wrong.reason
    };
    Problem { key, origin, reason }
}

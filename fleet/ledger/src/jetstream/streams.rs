//! The streams of a ledger: made where they are missing, and refused where they are set otherwise.

use std::time::Duration;

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::api::{Api, CallError, Patience, code};
use super::names::Prefix;
use crate::{Bucket, EngineError, Log, bounds};

/// Copies of each stream, on as many servers.
const REPLICAS: u64 = 3;

/// How long the making of a stream has.
const MAKE: Duration = Duration::from_secs(15);

/// How long a server has to return that the others know and do not hear. A cluster that just began, or has much
/// to do, misses servers for a moment.
const RETURN: Duration = Duration::from_secs(10);

/// No two servers make or find it so by chance (`server/errors.json` of nats-server).
const NAME_IN_USE: u64 = 10058;
const NO_PEERS: u64 = 10005;
const NOT_CLUSTERED: u64 = 10074;
const NOT_ENABLED: [u64; 3] = [10039, 10076, 10008];

/// Why the streams cannot be used.
#[derive(Debug, Error)]
pub enum StreamError {
    /// A stream is set otherwise.
    #[error(
        "the stream `{stream}` has `{setting}: {found}` instead of {wanted}, which a ledger cannot use: name another \
         prefix in the address (`prefix=`), or correct it with `nats stream edit {stream}`"
    )]
    Settings {
        /// Name of the stream.
        stream: String,
        /// Name of the setting.
        setting: &'static str,
        /// What it is, as JSON.
        found: String,
        /// What it has to be, as JSON.
        wanted: String,
    },
    /// There are too few servers for all copies.
    #[error(
        "the stream `{stream}` cannot have {REPLICAS} replicas: {description}; the ledger needs three servers with JetStream \
         in one cluster that are up"
    )]
    Replicas {
        /// Name of the stream.
        stream: String,
        /// What the server says.
        description: String,
    },
    /// The account may not use JetStream, or no server offers it.
    #[error(
        "JetStream is not there for this login: {description}; turn it on in the servers (`jetstream {{ … }}`) and for the \
         account"
    )]
    Off {
        /// What the server says.
        description: String,
    },
    /// A restore is under way, or broke off.
    #[error(
        "the ledger is being restored, or a restore broke off: wait until it ends; where it broke off, delete the streams \
         `{prefix}-…` with `nats stream rm` and restore again"
    )]
    BeingRestored {
        /// The prefix of the names of the streams.
        prefix: String,
    },
    /// Something is in the ledger already.
    #[error(
        "the stream `{stream}` has content, and a backup is restored into an empty ledger alone: name another prefix in the \
         address (`prefix=`), or delete the streams with `nats stream rm`"
    )]
    NotEmpty {
        /// Name of the stream.
        stream: String,
    },
    /// A request failed.
    #[error("the stream `{stream}` cannot be looked at or made")]
    Call {
        /// Name of the stream.
        stream: String,
        /// What failed.
        source: EngineError,
    },
}

/// A stream as it has to be.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) name: String,
    config: Map<String, Value>,
}

// === impl Wanted ===

impl Wanted {
    /// All streams of a ledger.
    pub(super) fn all(prefix: &Prefix) -> Vec<Self> {
        let buckets = Bucket::ALL.map(|bucket| Self::of_bucket(prefix, bucket));
        let logs = Log::ALL.map(|log| Self::of_log(prefix, log));
        buckets.into_iter().chain(logs).collect()
    }

    pub(super) fn of_bucket(prefix: &Prefix, bucket: Bucket) -> Self {
        // One message of each subject is the newest state of each key.
        let name = prefix.stream_of_bucket(bucket);
        Self::new(name, &prefix.subjects_of_bucket(bucket), 1, Duration::ZERO)
    }

    pub(super) fn of_log(prefix: &Prefix, log: Log) -> Self {
        let name = prefix.stream_of_log(log);
        Self::new(name, &prefix.subjects_of_log(log), bounds::ENTRIES, bounds::ENTRY_AGE)
    }

    /// The stream that is there while a restore is under way.
    pub(super) fn restoring(prefix: &Prefix) -> Self {
        Self::new(prefix.restoring(), &prefix.restoring(), 1, Duration::ZERO)
    }

    fn new(name: String, subjects: &str, of_subject: u64, age: Duration) -> Self {
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        let config = json!({
            "subjects": [format!("{subjects}.>")],
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "max_msgs": -1,
            "max_bytes": -1,
            "max_msg_size": -1,
            "max_age": age,
            "max_msgs_per_subject": of_subject,
            "allow_direct": true,
            "allow_atomic": true,
        });
        let config = config.as_object().cloned().unwrap_or_default();
        Self { name, config }
    }

    /// Compares what a stream is set to.
    fn compare(&self, config: &Value) -> Result<(), StreamError> {
        // What has to be absent, or false, or empty: each makes another thing of a stream.
        const NEVER: [&str; 10] = [
            "allow_msg_counter",
            "deny_delete",
            "discard_new_per_subject",
            "mirror",
            "no_ack",
            "republish",
            "sealed",
            "sources",
            "subject_delete_marker_ttl",
            "subject_transform",
        ];
        let differs = |setting, found: &Value, wanted: String| StreamError::Settings {
            stream: self.name.clone(),
            setting,
            found: found.to_string().chars().take(200).collect(),
            wanted,
        };
        for setting in [
            "subjects",
            "retention",
            "storage",
            "discard",
            "max_msgs",
            "max_bytes",
            "max_msg_size",
            "max_age",
            "max_msgs_per_subject",
            "allow_direct",
            "allow_atomic",
        ] {
            let (found, wanted) = (&config[setting], &self.config[setting]);
            let is_default = found.is_null() && *wanted == json!(0);
            if found != wanted && !is_default {
                return Err(differs(setting, found, wanted.to_string()));
            }
        }
        for setting in NEVER {
            let found = &config[setting];
            let is_off = match found {
                Value::Null => true,
                Value::Bool(is_on) => !is_on,
                Value::Array(all) => all.is_empty(),
                Value::Number(number) => number.as_u64() == Some(0),
                Value::String(text) => text.is_empty(),
                Value::Object(_) => false,
            };
            if !is_off {
                return Err(differs(setting, found, "nothing".to_owned()));
            }
        }
        let mode = &config["persist_mode"];
        if !mode.is_null() && *mode != json!("default") {
            return Err(differs("persist_mode", mode, "\"default\"".to_owned()));
        }
        let replicas = &config["num_replicas"];
        if replicas.as_u64().is_none_or(|replicas| replicas < REPLICAS) {
            return Err(differs("num_replicas", replicas, format!("{REPLICAS} or more")));
        }
        Ok(())
    }

    /// What JetStream says of the stream, or `None` where it does not exist.
    pub(super) async fn find(&self, api: &Api) -> Result<Option<Value>, StreamError> {
        match api.info(&self.name).await {
            Ok(info) => Ok(Some(info)),
            Err(CallError::Refused { code: code::STREAM_NOT_FOUND, .. }) => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Finds the stream and compares it, or makes it with this first sequence. Returns what JetStream
    /// says of it.
    pub(super) async fn ensure(&self, api: &Api, first: u64) -> Result<Value, StreamError> {
        if self.find(api).await?.is_none() {
            let mut config = self.config.clone();
            config.insert("name".to_owned(), self.name.clone().into());
            config.insert("num_replicas".to_owned(), REPLICAS.into());
            config.insert("first_seq".to_owned(), first.into());
            let subject = format!("STREAM.CREATE.{}", self.name);
            let config = config.into();
            let mut patience = Patience::new(RETURN);
            loop {
                let made = api.ask("that a stream is made", &subject, &config, MAKE).await;
                match made {
                    // Another process was faster; what it made is compared.
                    Ok(_) | Err(CallError::Refused { code: NAME_IN_USE, .. }) => break,
                    Err(error) if is_away(&error) && patience.wait().await => {}
                    Err(error) => return Err(self.failed(error)),
                }
            }
        }
        let info = api.info(&self.name).await.map_err(|error| self.failed(error))?;
        self.compare(&info["config"])?;
        Ok(info)
    }

    /// Deletes the stream. One that does not exist is no error.
    pub(super) async fn remove(&self, api: &Api) -> Result<(), StreamError> {
        let subject = format!("STREAM.DELETE.{}", self.name);
        match api.ask("that a stream is deleted", &subject, &Value::Null, MAKE).await {
            Ok(_) | Err(CallError::Refused { code: code::STREAM_NOT_FOUND, .. }) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: CallError) -> StreamError {
        let stream = self.name.clone();
        match error {
            CallError::Refused { code: NO_PEERS | NOT_CLUSTERED, description, .. } => {
                StreamError::Replicas { stream, description }
            }
            CallError::Refused { code, description, .. } if NOT_ENABLED.contains(&code) => {
                StreamError::Off { description }
            }
            CallError::Nobody { .. } => {
                StreamError::Off { description: "no server answers for it".to_owned() }
            }
            error => StreamError::Call { stream, source: Box::new(error) },
        }
    }
}

/// Whether a stream has no place because a server that is known is not heard.
fn is_away(error: &CallError) -> bool {
    let CallError::Refused { code: NO_PEERS, description, .. } = error else { return false };
    description.contains("peer offline")
}

/// Refuses a ledger that is being restored.
pub(super) async fn refuse_restoring(api: &Api, prefix: &Prefix) -> Result<(), StreamError> {
    match Wanted::restoring(prefix).find(api).await? {
        None => Ok(()),
        Some(_) => {
            let prefix = prefix.restoring().trim_end_matches("-restoring").to_owned();
            Err(StreamError::BeingRestored { prefix })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> (Wanted, Value) {
        let prefix = Prefix::new("p").expect("a prefix");
        let wanted = Wanted::of_log(&prefix, Log::Events);
        let mut config = Value::Object(wanted.config.clone());
        config["num_replicas"] = 3.into();
        config["metadata"] = json!({ "_nats.ver": "2.15.2" });
        (wanted, config)
    }

    #[test]
    fn only_a_server_that_is_known_may_return() {
        let refused = |code, description: &str| CallError::Refused {
            what: "that a stream is made",
            code,
            description: description.to_owned(),
        };
        assert!(is_away(&refused(NO_PEERS, "no suitable peers for placement, peer offline")));
        assert!(!is_away(&refused(NO_PEERS, "no suitable peers for placement")));
        assert!(!is_away(&refused(NOT_CLUSTERED, "peer offline")));
        assert!(!is_away(&CallError::Busy));
    }

    #[test]
    fn a_stream_with_other_settings_is_refused_with_their_names() {
        let (wanted, right) = config();
        wanted.compare(&right).expect("it is right");
        for (setting, value) in [
            ("num_replicas", json!(1)),
            ("max_msgs_per_subject", json!(1)),
            ("max_age", json!(0)),
            ("storage", json!("memory")),
            ("discard", json!("new")),
            ("max_msgs", json!(1000)),
            ("retention", json!("workqueue")),
            ("subjects", json!(["other.>"])),
            ("allow_atomic", Value::Null),
            ("allow_direct", json!(false)),
            ("mirror", json!({ "name": "other" })),
            ("sealed", json!(true)),
            ("no_ack", json!(true)),
            ("persist_mode", json!("async")),
        ] {
            let mut config = right.clone();
            config[setting] = value;
            let error = wanted.compare(&config).expect_err(setting).to_string();
            assert!(
                error.contains(&format!("`{setting}: ")) && error.contains("prefix="),
                "{error}"
            );
        }
    }

    #[test]
    fn more_replicas_are_taken() {
        let (wanted, mut config) = config();
        config["num_replicas"] = 5.into();
        wanted.compare(&config).expect("more is better");
    }
}

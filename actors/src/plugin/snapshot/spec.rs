//! The durable form of a spec. A record is not trusted: what an order may not say, it may not
//! either.

use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::record as rec;
use prost_types::value::Kind as AnyKind;

use super::error::SnapshotError;
use crate::model::facts::{Number, Scope, Value};
use crate::model::id::Sha256Digest;
use crate::model::spec::{
    Artifact, ArtifactUrl, Boot, Config, EXECUTION_TIMEOUT, Enablement, EntryPoint, Execution,
    Kind, Limits, LocalFiles, MatchPolicy, MetricsPolicy, OneShot, Operator, PluginSpec, Rule,
    Rules, Source, Tries, Triggers,
};

/// No order has a longer timeout, so no record has one; longer ones could overflow when added up.
const DURATION_MAX: Duration = Duration::from_secs(24 * 3600);

/// No order repeats a plugin less often.
const INTERVAL_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// No order asks for more samples.
pub(super) const POINTS_MAX: usize = 10_000;

pub(super) fn spec_record(spec: &PluginSpec) -> rec::Spec {
    let (url, folder) = match &spec.source {
        Source::Archive(artifact) => (artifact.url.expose(), ""),
        Source::Local(files) => ("", &*files.folder),
    };
    rec::Spec {
        name: spec.name.to_string(),
        revision: spec.revision.to_string(),
        url: url.to_owned(),
        sha256: spec.source.sha256().as_bytes().to_vec(),
        entry_point: spec.entry_point.as_str().to_owned(),
        arguments: spec.arguments.clone(),
        memory_bytes: spec.limits.memory_bytes,
        cpu_percent: spec.limits.cpu_percent,
        download_attempts: spec.download.attempts,
        download_timeout: duration_record(spec.download.timeout),
        start_attempts: spec.start.attempts,
        start_timeout: duration_record(spec.start.timeout),
        stop_timeout: duration_record(spec.stop_timeout),
        metrics_interval: duration_record(spec.metrics.interval),
        metrics_points: u64::try_from(spec.metrics.points).unwrap_or(u64::MAX),
        backoff_factor: spec.backoff_factor,
        config: spec.config.as_ref().map(config_record),
        execution: Some(execution_record(&spec.execution)),
        local_folder: folder.to_owned(),
        order_digest: spec
            .order_digest
            .map(|digest| digest.as_bytes().to_vec())
            .unwrap_or_default(),
    }
}

pub(super) fn spec_of(record: Option<rec::Spec>) -> Result<Arc<PluginSpec>, SnapshotError> {
    let record = record.ok_or(SnapshotError::Missing("spec"))?;
    let sha256: [u8; 32] =
        record.sha256.try_into().map_err(|_| SnapshotError::Range("checksum"))?;
    let sha256 = Sha256Digest::from_bytes(sha256);
    let (source, entry_point) = if record.local_folder.is_empty() {
        let artifact = Artifact { url: ArtifactUrl::new(&record.url), sha256 };
        (Source::Archive(artifact), EntryPoint::parse(&record.entry_point))
    } else {
        let files = LocalFiles { folder: record.local_folder.into(), sha256 };
        (Source::Local(files), EntryPoint::parse_local(&record.entry_point))
    };
    Ok(Arc::new(PluginSpec {
        name: record.name.parse().map_err(SnapshotError::Id)?,
        revision: record.revision.parse().map_err(SnapshotError::Id)?,
        source,
        entry_point: entry_point.map_err(SnapshotError::EntryPoint)?,
        arguments: record.arguments,
        limits: Limits {
            memory_bytes: record.memory_bytes,
            cpu_percent: record.cpu_percent,
            tasks: None,
        },
        download: Tries {
            attempts: record.download_attempts.max(1),
            timeout: duration_of(record.download_timeout, "download timeout")?,
        },
        start: Tries {
            attempts: record.start_attempts.max(1),
            timeout: duration_of(record.start_timeout, "start timeout")?,
        },
        stop_timeout: duration_of(record.stop_timeout, "stop timeout")?,
        metrics: MetricsPolicy {
            interval: duration_of(record.metrics_interval, "metrics interval")?,
            points: usize::try_from(record.metrics_points)
                .ok()
                .filter(|points| *points <= POINTS_MAX)
                .ok_or(SnapshotError::Range("number of metrics"))?,
        },
        backoff_factor: record.backoff_factor,
        config: record.config.and_then(config_of),
        execution: execution_of(record.execution)?,
        order_digest: order_digest_of(record.order_digest)?,
    }))
}

fn order_digest_of(record: Vec<u8>) -> Result<Option<Sha256Digest>, SnapshotError> {
    if record.is_empty() {
        return Ok(None);
    }
    let digest: [u8; 32] = record.try_into().map_err(|_| SnapshotError::Range("order digest"))?;
    Ok(Some(Sha256Digest::from_bytes(digest)))
}

pub(super) fn config_record(config: &Config) -> rec::Config {
    let form = match config {
        Config::Text(text) => rec::config::Form::Text(text.to_string()),
        Config::Struct(bytes) => rec::config::Form::Struct(bytes.to_vec()),
    };
    rec::Config { form: Some(form) }
}

pub(super) fn config_of(record: rec::Config) -> Option<Config> {
    record.form.map(|form| match form {
        rec::config::Form::Text(text) => Config::Text(text.into()),
        rec::config::Form::Struct(bytes) => Config::Struct(bytes.into()),
    })
}

// === Execution ===

fn execution_record(execution: &Execution) -> rec::Execution {
    let rules = &*execution.rules;
    rec::Execution {
        one_shot: execution.one_shot().map(|one_shot| rec::execution::OneShot {
            startup: one_shot.triggers.startup,
            firstboot: one_shot.triggers.firstboot,
            interval: one_shot.triggers.interval.and_then(duration_record),
            timeout: duration_record(one_shot.timeout),
        }),
        boot_critical: execution.boot == Boot::Critical,
        rules: Some(rec::execution::Rules {
            disabled_by_default: rules.on_default == Enablement::Disabled,
            disabled_on_match: rules.on_match == Enablement::Disabled,
            any: rules.policy == MatchPolicy::Any,
            rules: rules.all.iter().map(rule_record).collect(),
        }),
    }
}

fn execution_of(record: Option<rec::Execution>) -> Result<Execution, SnapshotError> {
    // Records of before there were execution models have none.
    let record = record.unwrap_or_default();
    let kind = match record.one_shot {
        None => Kind::Daemon,
        Some(one_shot) => Kind::OneShot(one_shot_of(one_shot)?),
    };
    let boot = if record.boot_critical { Boot::Critical } else { Boot::Ordinary };
    let rules = record.rules.unwrap_or_default();
    let enablement = |disabled| if disabled { Enablement::Disabled } else { Enablement::Enabled };
    let rules = Rules {
        on_default: enablement(rules.disabled_by_default),
        on_match: enablement(rules.disabled_on_match),
        policy: if rules.any { MatchPolicy::Any } else { MatchPolicy::All },
        all: rules.rules.into_iter().map(rule_of).collect::<Result<_, _>>()?,
    };
    Ok(Execution { kind, rules: Arc::new(rules), boot })
}

fn one_shot_of(record: rec::execution::OneShot) -> Result<OneShot, SnapshotError> {
    let interval = record.interval.map(|interval| {
        let interval = Duration::try_from(interval).ok();
        interval
            .filter(|interval| !interval.is_zero() && *interval <= INTERVAL_MAX)
            .ok_or(SnapshotError::Range("interval"))
    });
    let timeout = match record.timeout {
        None => EXECUTION_TIMEOUT,
        timeout => duration_of(timeout, "execution timeout")?,
    };
    let (startup, firstboot) = (record.startup, record.firstboot);
    let triggers = Triggers { startup, firstboot, interval: interval.transpose()? };
    Ok(OneShot { triggers, timeout })
}

fn rule_record(rule: &Rule) -> rec::execution::Rule {
    use rec::execution::rule as r;
    rec::execution::Rule {
        scope: match rule.scope {
            Scope::Os => r::Scope::Os,
            Scope::Instance => r::Scope::Instance,
            Scope::Metadata => r::Scope::Metadata,
        }
        .into(),
        attribute: rule.attribute.to_string(),
        operator: match rule.operator {
            Operator::Equal => r::Operator::Equal,
            Operator::NotEqual => r::Operator::NotEqual,
            Operator::Contains => r::Operator::Contains,
        }
        .into(),
        value: Some(value_record(&rule.value)),
    }
}

fn rule_of(record: rec::execution::Rule) -> Result<Rule, SnapshotError> {
    use rec::execution::rule as r;
    let scope = match r::Scope::try_from(record.scope) {
        Ok(r::Scope::Os) => Scope::Os,
        Ok(r::Scope::Instance) => Scope::Instance,
        Ok(r::Scope::Metadata) => Scope::Metadata,
        Ok(r::Scope::Unspecified) | Err(_) => return Err(SnapshotError::Range("scope of a rule")),
    };
    let operator = match r::Operator::try_from(record.operator) {
        Ok(r::Operator::Equal) => Operator::Equal,
        Ok(r::Operator::NotEqual) => Operator::NotEqual,
        Ok(r::Operator::Contains) => Operator::Contains,
        Ok(r::Operator::Unspecified) | Err(_) => {
            return Err(SnapshotError::Range("operator of a rule"));
        }
    };
    let value = record.value.map_or(Ok(Value::Null), value_of)?;
    Ok(Rule { scope, attribute: record.attribute.into(), operator, value })
}

fn value_record(value: &Value) -> prost_types::Value {
    let kind = match value {
        Value::Null => AnyKind::NullValue(0),
        Value::Number(number) => AnyKind::NumberValue(number.get()),
        Value::Text(text) => AnyKind::StringValue(text.to_string()),
        Value::Bool(yes) => AnyKind::BoolValue(*yes),
        Value::List(members) => AnyKind::ListValue(prost_types::ListValue {
            values: members.iter().map(value_record).collect(),
        }),
        Value::Struct(fields) => AnyKind::StructValue(prost_types::Struct {
            fields: fields.iter().map(|(k, v)| (k.to_string(), value_record(v))).collect(),
        }),
    };
    prost_types::Value { kind: Some(kind) }
}

/// Values in records are as deep as a protobuf message may be, which is not deep.
fn value_of(record: prost_types::Value) -> Result<Value, SnapshotError> {
    Ok(match record.kind {
        None | Some(AnyKind::NullValue(_)) => Value::Null,
        Some(AnyKind::NumberValue(number)) => {
            Value::Number(Number::new(number).ok_or(SnapshotError::Range("number of a rule"))?)
        }
        Some(AnyKind::StringValue(text)) => Value::Text(text.into()),
        Some(AnyKind::BoolValue(yes)) => Value::Bool(yes),
        Some(AnyKind::ListValue(list)) => {
            Value::List(list.values.into_iter().map(value_of).collect::<Result<_, _>>()?)
        }
        Some(AnyKind::StructValue(fields)) => {
            let fields = fields.fields.into_iter();
            let fields = fields.map(|(key, value)| Ok((key.into(), value_of(value)?)));
            Value::Struct(fields.collect::<Result<_, SnapshotError>>()?)
        }
    })
}

// === Durations ===

fn duration_record(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}

fn duration_of(
    record: Option<prost_types::Duration>,
    what: &'static str,
) -> Result<Duration, SnapshotError> {
    let duration = Duration::try_from(record.ok_or(SnapshotError::Missing(what))?);
    duration.ok().filter(|d| *d <= DURATION_MAX).ok_or(SnapshotError::Range(what))
}

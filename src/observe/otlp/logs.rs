//! Sends log records to the collector, a message at a time. Who sends them keeps what the collector
//! has not taken; nothing waits here.

use guest_agent_actors::model::id::BootId;
use guest_agent_observe_kit::otlp::{Collector, Connected, Dial, Refusal, beginning};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tonic::{Code, Status};

use super::collector::{self, scope};
use crate::config::Config;

/// Sends log records, over one connection that is made when it is needed.
pub(crate) struct LogExporter {
    collector: Collector,
    resource: Resource,
    connected: Option<Connected>,
}

/// What the collector refused of a message that it took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refused {
    /// How many records.
    pub(crate) records: u64,
    /// Why, in its words.
    pub(crate) why: String,
}

/// Why the collector has not taken a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogError {
    /// A later attempt may succeed, perhaps after somebody has corrected a setting.
    Later(String),
    /// The message itself is refused; no later attempt can succeed.
    Never(String),
}

// === impl LogExporter ===

impl LogExporter {
    /// Makes one; `None` where no collector is configured.
    pub(crate) fn new(config: &Config, instance_id: &str, boot: &BootId) -> Option<Self> {
        let collector = collector::configured(&config.telemetry)?;
        let resource = super::resource(&config.agent.name, instance_id, boot);
        Some(Self { collector, resource, connected: None })
    }

    /// Where the collector is.
    pub(crate) fn endpoint(&self) -> &dyn Dial {
        &*self.collector.dial
    }

    /// Sends one message, which takes `telemetry.timeout` at most.
    ///
    /// # Errors
    /// The collector has not taken the message.
    pub(crate) async fn export(&mut self, records: Vec<LogRecord>) -> Result<Refused, LogError> {
        let scope_logs =
            vec![ScopeLogs { scope: Some(scope()), log_records: records, ..ScopeLogs::default() }];
        let resource_logs = vec![ResourceLogs {
            resource: Some(self.resource.clone()),
            scope_logs,
            ..ResourceLogs::default()
        }];
        let request = ExportLogsServiceRequest { resource_logs };
        let export = |connected: Connected| async move {
            let request = connected.request(request);
            // An answer of whatever kind comes back as it is.
            Ok(LogsServiceClient::new(connected.connection).export(request).await)
        };
        let answer = self.collector.call(&mut self.connected, export).await;
        let answer = answer.map_err(|refusal| match refusal {
            Refusal::Later(why) | Refusal::Never(why) => LogError::Later(why),
        })?;
        let part = answer
            .map_err(|status| {
                // Headers and certificates are read again for the next connection.
                self.connected = None;
                failed(&status)
            })?
            .into_inner()
            .partial_success;
        let refused = part.filter(|part| part.rejected_log_records > 0).map(|part| Refused {
            records: u64::try_from(part.rejected_log_records).unwrap_or_default(),
            why: beginning(&part.error_message).to_string(),
        });
        Ok(refused.unwrap_or_default())
    }
}

/// The log keeps its lines, so only a message that the collector calls malformed is given up. That
/// it does not know the caller, or the service, can be corrected.
fn failed(status: &Status) -> LogError {
    let why = format!("{:?}: {}", status.code(), beginning(status.message()));
    if status.code() == Code::InvalidArgument { LogError::Never(why) } else { LogError::Later(why) }
}

/// A text as the body of a record.
pub(crate) fn body(text: String) -> AnyValue {
    AnyValue { value: Some(any_value::Value::StringValue(text)) }
}

//! Protobuf JSON to messages, by their descriptors: snake_case and camelCase names, durations as
//! `"10s"`, enums by name; an unknown field is an error.
//!
//! Orders on the command line and manifests of local plugins come this way.

use prost::Message;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage};
use serde::de::Error as _;
use serde_json::Value;

/// The full name of the message that is one order, and one manifest.
pub(crate) const CONFIGURE_PLUGIN: &str =
    "agent_controlplane.ConfigurePluginStates.ConfigurePlugin";

/// The encoded message that a JSON value stands for.
///
/// # Errors
/// Says what in the value the message has no place for. It may quote the value.
pub(crate) fn encode(message: &str, value: Value) -> Result<Vec<u8>, serde_json::Error> {
    let pool = DescriptorPool::decode(guest_agent_proto::FILE_DESCRIPTOR_SET)
        .expect("the descriptors are part of this program");
    let descriptor = pool.get_message_by_name(message).expect("the message is described");
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let dynamic = DynamicMessage::deserialize_with_options(descriptor, value, &options)?;
    Ok(dynamic.encode_to_vec())
}

/// The message that a JSON value stands for.
///
/// # Errors
/// As [`encode`], and when the value is nested deeper than a message may be.
pub(crate) fn decode<M: Message + Default>(
    message: &str,
    value: Value,
) -> Result<M, serde_json::Error> {
    M::decode(&*encode(message, value)?).map_err(serde_json::Error::custom)
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;

    use super::*;

    #[test]
    fn a_value_that_is_nested_too_deeply_is_refused() {
        let mut value = serde_json::json!({});
        for _ in 0..100 {
            value = serde_json::json!({ "a": value });
        }
        let order = serde_json::json!({ "manifest": { "structConfig": value } });
        assert!(decode::<ConfigurePlugin>(CONFIGURE_PLUGIN, order).is_err());
    }
}

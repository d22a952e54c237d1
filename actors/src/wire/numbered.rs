//! Reads the number that a fleet gave the order in a message.
//!
//! The number is a label, so that agents which know nothing of it echo or ignore it. It belongs to
//! one plugin, and so a message that has it has exactly one order.

use std::collections::BTreeMap;

use prost::Message;

use super::{Items, Skeleton};
use crate::model::id::{FleetGeneration, PluginName, Sha256Digest};

/// The label that has the number.
pub const FLEET_GENERATION: &str = "fleet-generation";

/// An order that a fleet numbered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetOrder {
    /// The plugin that it is for.
    pub name: PluginName,
    /// Its number among the fleet's orders for that plugin.
    pub generation: FleetGeneration,
    /// SHA-256 of the body of its message.
    pub body: Sha256Digest,
}

/// Reads how a fleet numbered the order in an encoded `ConfigurePluginStates`; `None` where it did
/// not, and where the order names no plugin and is refused for that.
///
/// # Errors
/// Says what is wrong with the number. None of the orders can be taken then.
pub fn fleet_order(
    labels: &BTreeMap<String, String>,
    bytes: &[u8],
) -> Result<Option<FleetOrder>, String> {
    let Some(label) = labels.get(FLEET_GENERATION) else { return Ok(None) };
    let generation: FleetGeneration =
        label.parse().map_err(|error| format!("the label is wrong: {error}"))?;
    let items = Items::decode(bytes).map(|orders| orders.items).unwrap_or_default();
    let [item] = items.as_slice() else {
        return Err(format!(
            "the label {FLEET_GENERATION} numbers the order for one plugin, and the message has {} \
             orders; send each in a message of its own",
            items.len()
        ));
    };
    let plugin = Skeleton::decode(item.as_slice()).ok().and_then(|item| item.plugin);
    let name = plugin.unwrap_or_default().name.parse().ok();
    Ok(name.map(|name| FleetOrder { name, generation, body: Sha256Digest::of(bytes) }))
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::agent_controlplane as pb;
    use guest_agent_proto::agent_controlplane::configure_plugin_states as cfg;

    use super::*;

    fn orders(names: &[&str]) -> Vec<u8> {
        let order = |name: &&str| cfg::ConfigurePlugin {
            plugin: Some(cfg::Plugin { name: (*name).to_owned(), ..Default::default() }),
            ..Default::default()
        };
        let configure_plugins = names.iter().map(order).collect();
        pb::ConfigurePluginStates { configure_plugins }.encode_to_vec()
    }

    fn read(label: &str, body: &[u8]) -> Result<Option<FleetOrder>, String> {
        fleet_order(&BTreeMap::from([(FLEET_GENERATION.to_owned(), label.to_owned())]), body)
    }

    #[test]
    fn the_order_for_one_plugin_has_the_number_of_its_label() {
        let body = orders(&["web"]);
        let order = read("18446744073709551615", &body).expect("a number").expect("a plugin");
        assert_eq!((order.name.as_str(), order.generation.get()), ("web", u64::MAX));
        assert_eq!(order.body, Sha256Digest::of(&body));
    }

    #[test]
    fn orders_without_the_label_have_no_number() {
        assert_eq!(fleet_order(&BTreeMap::new(), &orders(&["a", "b"])), Ok(None));
    }

    #[test]
    fn a_number_that_is_none_is_named_with_what_it_should_be() {
        let bad = ["", "0", "00", "07", "+7", "-1", "1.0", " 1", "1 ", "0x1", "١", "seven"];
        for label in bad.into_iter().chain(["18446744073709551616", &"9".repeat(9_999)]) {
            let why = read(label, &orders(&["web"])).expect_err(label);
            assert!(why.contains("fleet-generation") && why.contains("between 1 and"), "{why}");
            assert!(why.len() < 300, "{why}");
        }
    }

    #[test]
    fn a_message_with_a_number_has_exactly_one_order() {
        for names in [&[][..], &["a", "b"][..], &["a", "a"][..]] {
            let why = read("7", &orders(names)).expect_err("no plugin is meant");
            assert!(why.contains(&format!("{} orders", names.len())), "{why}");
        }
    }

    #[test]
    fn an_order_for_no_possible_plugin_is_left_to_those_who_refuse_it() {
        assert_eq!(read("7", &orders(&["../web"])), Ok(None));
        assert_eq!(read("7", &[0x0a, 2, 0xff, 0xff]), Ok(None));
    }
}

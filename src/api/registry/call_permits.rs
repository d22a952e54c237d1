//! How many waits and watches may be open at a time: limited per plugin, so that a plugin with too
//! many watches cannot use up the permits of others, and limited in all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use guest_agent_actors::model::id::PluginName;
use tonic::Status;

/// Most waits and watches of one plugin, and of the agent's own socket together.
pub(crate) const PLUGIN_PLACES: usize = 256;

/// Most of all.
pub(crate) const PLACES: usize = 2048;

/// The permits in use, by plugin. `None` stands for callers on the local socket.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallPermits(Arc<Mutex<HashMap<Option<PluginName>, usize>>>);

/// A permit for one open call; dropping it frees the permit.
#[derive(Debug)]
pub(crate) struct CallPermit {
    permits: CallPermits,
    of: Option<PluginName>,
}

impl CallPermits {
    /// Takes a permit.
    pub(crate) fn take(&self, of: Option<PluginName>) -> Result<CallPermit, Status> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.values().sum();
        let own = taken.get(&of).copied().unwrap_or_default();
        if own >= PLUGIN_PLACES || all >= PLACES {
            return Err(Status::resource_exhausted(format!(
                "{own} of {PLUGIN_PLACES} waits and watches of this plugin are open, and {all} of \
                 {PLACES} in all; end some first, or watch more with one"
            )));
        }
        taken.insert(of.clone(), own + 1);
        drop(taken);
        Ok(CallPermit { permits: self.clone(), of })
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let mut taken = self.permits.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.of) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_plugin_cannot_take_the_places_of_others_and_they_come_free_again() {
        let permits = CallPermits::default();
        let plugin = |name: &str| Some(name.parse::<PluginName>().expect("a name"));
        let greedy: Vec<_> = (0..PLUGIN_PLACES).map(|_| permits.take(plugin("a"))).collect();
        assert!(greedy.iter().all(Result::is_ok));
        let error = permits.take(plugin("a")).expect_err("it has all that it may have");
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
        assert!(permits.take(plugin("b")).is_ok() && permits.take(None).is_ok());
        drop(greedy);
        assert!(permits.take(plugin("a")).is_ok());
        assert!(permits.0.lock().expect("whole").is_empty());
    }

    #[test]
    fn all_together_are_bounded_as_well() {
        let permits = CallPermits::default();
        let mut taken = Vec::new();
        for plugin in 0..=PLACES / PLUGIN_PLACES {
            let name: PluginName = format!("p{plugin}").parse().expect("a name");
            taken.extend((0..PLUGIN_PLACES).map_while(|_| permits.take(Some(name.clone())).ok()));
        }
        assert_eq!(taken.len(), PLACES);
    }
}

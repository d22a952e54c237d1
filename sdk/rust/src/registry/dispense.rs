//! Typed clients of offered instances: a [`Kind`] makes a client of a connection.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Channel, Entry, Inner, Registry, RegistryError, channel_to};

/// A type of the registry, and the client of its instances.
///
/// ```
/// use guest_agent_plugin::registry::{Channel, Connection, Kind};
///
/// struct CsiNode;
///
/// impl Kind for CsiNode {
///     const TYPE: &'static str = "csi-node";
///     // Most often a client that tonic generates: `NodeClient<Channel>`.
///     type Client = Channel;
///
///     fn client(connection: Connection) -> Channel {
///         connection.channel()
///     }
/// }
/// ```
pub trait Kind: 'static {
    /// The type in the registry.
    const TYPE: &'static str;

    /// The client of an instance.
    type Client: Clone + Send + Sync + 'static;

    /// Makes a client of a connection.
    fn client(connection: Connection) -> Self::Client;
}

/// The socket of an instance.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The entry of the instance.
    pub entry: Entry,
    channel: Channel,
}

/// Clients for a registry without an agent, by type and name.
#[derive(Clone, Default)]
pub struct Stub {
    clients: Arc<HashMap<(TypeId, String), Arc<dyn Any + Send + Sync>>>,
}

/// A client of the current instance of a name, which stays current while providers change, restart
/// or are upgraded. It watches the registry until it is dropped.
#[derive(Debug)]
pub struct Following<K: Kind> {
    current: watch::Receiver<Current<K::Client>>,
    task: Option<JoinHandle<()>>,
}

/// The state of a followed name.
#[derive(Clone, Debug)]
enum Current<C> {
    /// The agent has not answered yet, or no plugin offers the name.
    Nobody,
    /// The newest instance.
    Client(C),
    /// The agent refused the watch.
    Refused(RegistryError),
}

// === impl Registry ===

impl Registry {
    /// A client of the current instance of a name. Reports an unknown type before an unknown name.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`]; or the agent refuses, or cannot be reached for a while.
    pub async fn dispense<K: Kind>(&self, name: &str) -> Result<K::Client, RegistryError> {
        if let Inner::Stub(stub) = &*self.inner {
            return stub.client::<K>(name);
        }
        Ok(K::client(Connection::to(self.get(K::TYPE, name, None).await?)?))
    }

    /// Follows the current instance of a name.
    pub fn follow<K: Kind>(&self, name: &str) -> Following<K> {
        let (sender, current) = watch::channel(Current::Nobody);
        if let Inner::Stub(stub) = &*self.inner {
            sender.send_replace(match stub.client::<K>(name) {
                Ok(client) => Current::Client(client),
                Err(error) => Current::Refused(error),
            });
            return Following { current, task: None };
        }
        let mut watch = self.watch(Some(K::TYPE), Some(name));
        let task = tokio::spawn(async move {
            let mut shown: Option<Entry> = None;
            loop {
                if let Err(error) = watch.next().await {
                    sender.send_replace(Current::Refused(error));
                    return;
                }
                let newest = watch.current().cloned();
                if newest == shown {
                    continue;
                }
                let connection = newest.clone().map(Connection::to);
                sender.send_replace(match connection {
                    Some(Ok(connection)) => Current::Client(K::client(connection)),
                    Some(Err(error)) => Current::Refused(error),
                    None => Current::Nobody,
                });
                shown = newest;
            }
        });
        Following { current, task: Some(task) }
    }
}

// === impl Connection ===

impl Connection {
    fn to(entry: Entry) -> Result<Connection, RegistryError> {
        let channel = channel_to(&entry.socket_path)
            .map_err(|reason| RegistryError::Unusable("the socket of the entry", reason))?;
        Ok(Connection { entry, channel })
    }

    /// A gRPC channel to the instance, connected on first use.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }
}

// === impl Stub ===

impl Stub {
    /// A stub that dispenses nothing yet.
    pub fn new() -> Stub {
        Stub::default()
    }

    /// Dispenses this client for that name.
    #[must_use]
    pub fn with<K: Kind>(mut self, name: &str, client: K::Client) -> Stub {
        let clients = Arc::make_mut(&mut self.clients);
        clients.insert((TypeId::of::<K>(), name.to_owned()), Arc::new(client));
        self
    }

    fn client<K: Kind>(&self, name: &str) -> Result<K::Client, RegistryError> {
        let client = self.clients.get(&(TypeId::of::<K>(), name.to_owned()));
        let client = client.and_then(|client| client.downcast_ref::<K::Client>()).cloned();
        client.ok_or_else(|| RegistryError::Stubbed(format!("{} of the name {name}", K::TYPE)))
    }
}

impl fmt::Debug for Stub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stub").field("clients", &self.clients.len()).finish()
    }
}

// === impl Following ===

impl<K: Kind> Following<K> {
    /// A client of the current instance, waiting until a plugin offers one.
    ///
    /// # Errors
    /// [`RegistryError::TimedOut`]; or the agent refuses.
    pub async fn client(&self, timeout: Duration) -> Result<K::Client, RegistryError> {
        let mut current = self.current.clone();
        let there = current.wait_for(|current| !matches!(current, Current::Nobody));
        let late = || {
            let seconds = timeout.as_secs_f32();
            RegistryError::TimedOut(format!("no {} was offered within {seconds}s", K::TYPE))
        };
        match tokio::time::timeout(timeout, there).await {
            Ok(Ok(there)) => match &*there {
                Current::Client(client) => Ok(client.clone()),
                Current::Refused(error) => Err(error.clone()),
                Current::Nobody => Err(late()),
            },
            Ok(Err(_)) => Err(RegistryError::Unreachable("it is not followed any more".to_owned())),
            Err(_) => Err(late()),
        }
    }

    /// A client of the current instance, if a plugin offers one now.
    pub fn now(&self) -> Option<K::Client> {
        match &*self.current.borrow() {
            Current::Client(client) => Some(client.clone()),
            Current::Nobody | Current::Refused(_) => None,
        }
    }
}

impl<K: Kind> Drop for Following<K> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Greeter;

    impl Kind for Greeter {
        const TYPE: &'static str = "greeter";
        type Client = String;

        fn client(connection: Connection) -> String {
            connection.entry.name
        }
    }

    struct Other;

    impl Kind for Other {
        const TYPE: &'static str = "other";
        type Client = String;

        fn client(connection: Connection) -> String {
            connection.entry.plugin
        }
    }

    #[tokio::test]
    async fn a_stub_dispenses_what_it_was_given_by_type_and_name() {
        let stub = Stub::new().with::<Greeter>("hello", "a client".to_owned());
        let registry = Registry::stub(stub);
        assert_eq!(registry.dispense::<Greeter>("hello").await.expect("given"), "a client");
        let following = registry.follow::<Greeter>("hello");
        assert_eq!(following.client(Duration::ZERO).await.expect("given"), "a client");
        assert_eq!(following.now().as_deref(), Some("a client"));
        for missing in [
            registry.dispense::<Greeter>("bye").await,
            registry.dispense::<Other>("hello").await,
            registry.follow::<Other>("hello").client(Duration::ZERO).await,
        ] {
            let error = missing.expect_err("nobody gave it").to_string();
            assert!(error.contains("is a stub"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_stub_has_no_agent_to_register_with() {
        let registry = Registry::stub(Stub::new());
        let offer = super::super::Offer::new("greeter", "hello", "/run/x.sock");
        let error = registry.register(&offer).await.expect_err("there is no agent");
        assert!(matches!(error, RegistryError::Stubbed(_)), "{error}");
    }
}

//! `registry`: what plugins offer each other.
//!
//! All verbs but `list` and `get` follow the agent's watch, so none of them polls.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Subcommand;
use guest_agent_actors::registry::entry::{Instance, Kind, Name};
use guest_agent_proto::host::registry_client::RegistryClient;
use guest_agent_proto::host::watch_response::Told;
use guest_agent_proto::host::{
    Change, Entry, ListRequest, Offer, WatchRequest, WatchResponse, change,
};
use tonic::Streaming;
use tonic::transport::Channel;

use super::client::{self, Patience};
use super::context::Context;
use super::failure::{Exit, Failure};
use crate::config::{format_duration, parse_duration};

pub(super) mod show;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent registry list
  guest-agent registry get ebs --type csi
  guest-agent registry wait ebs --timeout 1m
  guest-agent registry watch --json")]
pub(super) struct Flags {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List what is offered: the current instance of each name
    List {
        #[command(flatten)]
        which: Which,
        /// List all instances, the newest of each name first
        #[arg(long)]
        all: bool,
    },
    /// Show one entry
    Get(Named),
    /// Wait until a plugin offers it and answers on its socket
    Wait {
        #[command(flatten)]
        named: Named,
        /// How long to wait
        #[arg(long, default_value = "30s", value_parser = parse_duration)]
        timeout: Duration,
    },
    /// Show what is offered, and every change of it
    Watch(Which),
}

/// Selects entries.
#[derive(Debug, clap::Args)]
struct Which {
    /// Only of this name
    name: Option<Name>,
    /// Only of this type
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<Kind>,
}

/// Selects one entry.
#[derive(Debug, clap::Args)]
struct Named {
    /// Its name
    name: Name,
    /// Its type; needed where more than one has the name
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<Kind>,
    /// Its instance [default: the newest]
    #[arg(long, value_name = "ID")]
    instance: Option<Instance>,
}

type Client = RegistryClient<Channel>;

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let mut client = RegistryClient::new(client::channel(&context.socket()?).await?);
    let (console, json) = (context.console, context.global.json());
    match flags.what {
        What::List { which, all } => {
            let entries = list(&mut client, which.kind.as_ref(), all).await?;
            let wanted = |entry: &Entry| {
                which.name.as_ref().is_none_or(|name| show::offer(entry).name == name.as_str())
            };
            let entries: Vec<_> = entries.into_iter().filter(wanted).collect();
            show::list(&entries, json, console)
        }
        What::Get(named) => {
            // All types are shown, because an unknown type may be a typing error.
            let entries = list(&mut client, None, true).await?;
            show::one(named.pick(&entries)?, json, console)
        }
        What::Wait { named, timeout } => {
            let waiting = wait(&mut client, &named);
            let entry = match tokio::time::timeout(timeout, waiting).await {
                Ok(entry) => entry?,
                Err(_elapsed) => {
                    let waited = format_duration(timeout);
                    let what = format!("{} was not offered within {waited}", named.name);
                    return Err(Failure::new(Exit::TimedOut, what)
                        .hint("`guest-agent registry list` shows all entries"));
                }
            };
            show::one(&entry, json, console)
        }
        What::Watch(which) => {
            let mut told = watch(&mut client, which.kind.as_ref(), which.name.as_ref()).await?;
            while let Some(message) = client::next(&mut told, Patience::Forever).await? {
                match message.told {
                    Some(Told::Snapshot(snapshot)) => show::snapshot(&snapshot, json, console)?,
                    Some(Told::Change(change)) => show::change(&change, json, console)?,
                    None => {}
                }
            }
            Ok(())
        }
    }
}

async fn list(
    client: &mut Client,
    kind: Option<&Kind>,
    all_instances: bool,
) -> Result<Vec<Entry>, Failure> {
    let r#type = kind.map(ToString::to_string).unwrap_or_default();
    let request = ListRequest { r#type, all_instances };
    Ok(client.list(request).await?.into_inner().entries)
}

async fn watch(
    client: &mut Client,
    kind: Option<&Kind>,
    name: Option<&Name>,
) -> Result<Streaming<WatchResponse>, Failure> {
    let r#type = kind.map(ToString::to_string).unwrap_or_default();
    let name = name.map(ToString::to_string).unwrap_or_default();
    Ok(client.watch(WatchRequest { r#type, name }).await?.into_inner())
}

/// Follows the watch until the entry exists and a process answers on its socket.
async fn wait(client: &mut Client, named: &Named) -> Result<Entry, Failure> {
    let mut told = watch(client, named.kind.as_ref(), Some(&named.name)).await?;
    let mut known: BTreeMap<(String, String), Entry> = BTreeMap::new();
    let key = |entry: &Entry| {
        let offer = show::offer(entry);
        (offer.r#type.clone(), offer.instance.clone())
    };
    while let Some(message) = client::next(&mut told, Patience::Forever).await? {
        match message.told {
            Some(Told::Snapshot(snapshot)) => {
                known = snapshot.entries.into_iter().map(|entry| (key(&entry), entry)).collect();
            }
            Some(Told::Change(Change { kind, entry: Some(entry), .. })) => {
                if kind == i32::from(change::Kind::Deregistered) {
                    known.remove(&key(&entry));
                } else {
                    known.insert(key(&entry), entry);
                }
            }
            Some(Told::Change(_)) | None => {}
        }
        let entries: Vec<Entry> = known.values().cloned().collect();
        match named.pick(&entries) {
            Ok(entry) if entry.verified => return Ok(entry.clone()),
            Err(failure) if failure.exit == Exit::Usage => return Err(failure),
            Ok(_) | Err(_) => {}
        }
    }
    Err(Failure::new(Exit::Unreachable, "the agent ended while it was watched"))
}

// === impl Named ===

impl Named {
    /// The selected entry: the newest instance of the name, if only one type has the name.
    fn pick<'a>(&self, entries: &'a [Entry]) -> Result<&'a Entry, Failure> {
        let named = entries.iter().filter(|entry| {
            let offer = show::offer(entry);
            let of_instance =
                self.instance.as_ref().is_none_or(|wanted| offer.instance == wanted.as_str());
            let of_kind =
                self.kind.as_ref().is_none_or(|wanted| offer.r#type == wanted.to_string());
            offer.name == self.name.as_str() && of_instance && of_kind
        });
        let named: Vec<&Entry> = named.collect();
        let mut kinds: Vec<&str> =
            named.iter().map(|entry| show::offer(entry).r#type.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.len() > 1 {
            let what = format!("more than one instance has the name {}", self.name);
            let hint = format!("name one with --type: {}", kinds.join(", "));
            return Err(Failure::new(Exit::Usage, what).hint(hint));
        }
        named.into_iter().max_by_key(|entry| entry.order).ok_or_else(|| {
            let of_kind = self.kind.as_ref().map(|kind| format!(" of the type {kind}"));
            let what = format!("no plugin offers {}{}", self.name, of_kind.unwrap_or_default());
            let offers = || entries.iter().map(show::offer);
            let of_name = || offers().filter(|offer| offer.name == self.name.as_str());
            let failure = Failure::failed(what);
            if of_name().next().is_some() {
                let offered = |offer: &Offer| format!("{} {}", offer.r#type, offer.instance);
                let offered: Vec<_> = of_name().map(offered).collect();
                let hint = format!("its types and instances are {}", offered.join(", "));
                return failure.hint(hint);
            }
            match client::nearest(self.name.as_str(), offers().map(|offer| offer.name.as_str())) {
                Some(known) => failure.hint(format_args!("did you mean {known}?")),
                None => failure.hint("`guest-agent registry list --all` shows all entries"),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: &str, instance: &str, order: u64) -> Entry {
        let offer = Offer {
            r#type: kind.to_owned(),
            name: "ebs".to_owned(),
            instance: instance.to_owned(),
            ..Offer::default()
        };
        Entry { offer: Some(offer), order, ..Entry::default() }
    }

    fn named(instance: Option<&str>) -> Named {
        let instance = instance.map(|text| text.parse().expect("an instance"));
        Named { name: "ebs".parse().expect("a name"), kind: None, instance }
    }

    #[test]
    fn the_newest_is_meant_unless_an_instance_is_named() {
        let entries = [entry("csi", "a", 7), entry("csi", "b", 9)];
        assert_eq!(named(None).pick(&entries).expect("one").order, 9);
        assert_eq!(named(Some("a")).pick(&entries).expect("one").order, 7);
        let missing = named(Some("c")).pick(&entries).expect_err("none");
        assert_eq!(missing.exit, Exit::Failed);
    }

    #[test]
    fn a_name_that_two_types_have_needs_the_type() {
        let entries = [entry("csi", "a", 7), entry("dns", "a", 9)];
        let failure = named(None).pick(&entries).expect_err("two types");
        assert_eq!(failure.exit, Exit::Usage);
        assert_eq!(failure.hint.as_deref(), Some("name one with --type: csi, dns"));
    }
}

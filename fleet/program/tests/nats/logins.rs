//! Servers with TLS, certificates of clients, nkeys and JWTs: the ledger works on each, and what does not
//! fit is refused with the file and the fix.

use std::path::Path;

use guest_fleet_ledger::{JetstreamLedger, NatsAddress, SharedLedger, laws};
use nkeys::KeyPair as Nkey;
use tempfile::TempDir;

use crate::nats::identities::{Authority, Operator, tls, write};
use crate::nats::program;
use crate::nats::refusals::{refusal, says};
use crate::nats_cluster::{self, NatsCluster, Shape};

/// Servers on which a login was set up.
struct Servers {
    cluster: NatsCluster,
    folder: TempDir,
}

// === impl Servers ===

impl Servers {
    /// Starts servers whose configuration has the lines that `more` makes in a folder.
    fn start(more: impl FnOnce(&Path) -> String) -> Option<Self> {
        let program = nats_cluster::program()?;
        let folder = TempDir::new().unwrap();
        let shape = Shape { more: more(folder.path()), ..Shape::default() };
        let cluster = NatsCluster::start_as(&program, folder.path(), &shape);
        Some(Self { cluster, folder })
    }

    /// A file of the folder, as an option has it.
    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// An address that demands TLS; `options` has each option and the file that it names.
    fn address(&self, prefix: &str, facts: &str, options: &[(&str, &str)]) -> String {
        let servers = self.cluster.servers().replace("nats://", "tls://");
        let options = options.iter().map(|(option, file)| format!("&{option}={}", self.file(file)));
        format!("{servers}?prefix={prefix}{facts}{}", options.collect::<String>())
    }

    /// The option that has the monitoring pages tell.
    fn monitoring(&self) -> String {
        format!("&monitor={}", self.cluster.monitoring())
    }

    /// Runs laws of each kind, and the program.
    async fn keep_laws(&self, facts: &str, options: &[(&str, &str)]) {
        let open = async |prefix: &str| {
            let address: NatsAddress = self.address(prefix, facts, options).parse().unwrap();
            let ledger: SharedLedger = JetstreamLedger::open(&address).await.unwrap();
            ledger
        };
        laws::records::a_batch_happens_whole_or_not_at_all(open("one").await).await;
        laws::records::a_watcher_is_woken_by_a_write_and_by_a_wake(open("two").await).await;
        laws::changes::changes_come_in_pages_that_tear_no_batch(open("three").await).await;
        laws::logs::an_append_after_another_entry_than_the_last_conflicts(open("four").await).await;
        laws::races::exactly_one_racer_wins_each_revision(open("five").await).await;
        let address = self.address("program", facts, options);
        program::succeed(&address, &["token", "create", "web", "--uses", "3"]);
        program::serves(&address, self.folder.path()).await;
        program::succeed(&address, &["audit", "verify"]);
    }

    async fn refuses(&self, facts: &str, options: &[(&str, &str)], words: &[&str]) {
        says(&refusal(&self.address("p", facts, options)).await, words);
    }
}

#[tokio::test]
async fn tls_and_nkeys() {
    let user = |folder: &Path, name: &str| {
        let key = Nkey::new_user();
        write(folder, name, &format!("{}\n", key.seed().unwrap()));
        key.public_key()
    };
    let servers = Servers::start(|folder| {
        let authority = Authority::new(folder, "authority");
        // Of the same name, as one that was made anew.
        std::fs::rename(Authority::new(folder, "other").file, folder.join("other.pem")).unwrap();
        let again = folder.join("again");
        std::fs::create_dir(&again).unwrap();
        Authority::new(&again, "authority");
        write(folder, "empty.pem", "");
        write(folder, "account.nk", &Nkey::new_account().seed().unwrap());
        user(folder, "stranger.nk");
        let (ledger, system) = (user(folder, "ledger.nk"), user(folder, "system.nk"));
        let accounts = format!(
            "accounts {{ A {{ users: [{{ nkey: {ledger} }}], jetstream: enabled }}\n\
             SYS {{ users: [{{ nkey: {system} }}] }} }}\nsystem_account: SYS\n"
        );
        tls(&authority.issue("server", "127.0.0.1"), "") + &accounts
    });
    let Some(servers) = servers else { return };
    let (monitoring, ca) = (servers.monitoring(), ("ca", "authority.pem"));
    servers.keep_laws(&monitoring, &[ca, ("nkey", "ledger.nk")]).await;
    let login = ("nkey", "ledger.nk");
    let system = [ca, login, ("system-nkey", "system.nk")];
    let address: NatsAddress = servers.address("system", "", &system).parse().unwrap();
    JetstreamLedger::open(&address).await.unwrap();

    let other = servers.file("other.pem");
    let words =
        ["takes the connection of the ledger", "is not from the authority", &other, "`ca=`"];
    servers.refuses(&monitoring, &[("ca", "other.pem"), login], &words).await;
    let again = servers.file("again/authority.pem");
    let words = ["is not from the authority", &again, "`ca=`"];
    servers.refuses(&monitoring, &[("ca", "again/authority.pem"), login], &words).await;
    let words = ["does not trust the authority", "`ca=FILE`"];
    servers.refuses(&monitoring, &[login], &words).await;
    let empty = servers.file("empty.pem");
    servers.refuses(&monitoring, &[("ca", "empty.pem"), login], &[&empty, "PEM"]).await;
    let missing = servers.file("missing.pem");
    servers
        .refuses(&monitoring, &[("ca", "missing.pem"), login], &[&missing, "cannot be read"])
        .await;

    let stranger = servers.file("stranger.nk");
    let words = ["takes the connection of the ledger", &stranger, "`nkey=`"];
    servers.refuses(&monitoring, &[ca, ("nkey", "stranger.nk")], &words).await;
    let account = servers.file("account.nk");
    let words = [account.as_str(), "begins with SU"];
    servers.refuses(&monitoring, &[ca, ("nkey", "account.nk")], &words).await;
    servers.refuses(&monitoring, &[ca], &["want a login", "`nkey=FILE`"]).await;
    let words = ["takes the connection of the system account", &stranger, "`system-nkey=`"];
    servers.refuses("", &[ca, login, ("system-nkey", "stranger.nk")], &words).await;
    // The servers let in a user of another account, and answer none of its requests.
    let words = ["the settings of no server can be read", "`system-creds=`"];
    servers.refuses("", &[ca, login, ("system-nkey", "ledger.nk")], &words).await;

    // Where the address does not demand TLS, the servers do.
    let address = servers.address("nats", &monitoring, &[ca, login]).replace("tls://", "nats://");
    JetstreamLedger::open(&address.parse().unwrap()).await.unwrap();
    // Servers are named as their certificates do.
    let address = servers.address("p", &monitoring, &[ca, login]);
    let (hosts, options) = address.split_once('?').unwrap();
    let renamed = format!("{}?{options}", hosts.replace("127.0.0.1", "localhost"));
    says(&refusal(&renamed).await, &["is for other names"]);
}

#[tokio::test]
async fn certificates_of_clients_and_credentials() {
    let servers = Servers::start(|folder| {
        let authority = Authority::new(folder, "authority");
        Authority::new(folder, "other").issue("stranger", "127.0.0.1");
        authority.issue("client", "127.0.0.1");
        let (operator, other) = (Operator::new(), Operator::new());
        write(folder, "ledger.creds", &operator.user());
        write(folder, "system.creds", &operator.system_user());
        write(folder, "stranger.creds", &other.user());
        write(folder, "text.creds", "no credentials");
        // The JWT of one user with the key of another.
        let (one, two) = (operator.user(), operator.user());
        let (jwt, seed) = (one.split_once("\n\n").unwrap().0, two.split_once("\n\n").unwrap().1);
        write(folder, "mixed.creds", &format!("{jwt}\n\n{seed}"));
        let ca = format!("ca_file: \"{}\"\n  verify: true", authority.file.display());
        tls(&authority.issue("server", "127.0.0.1"), &ca) + &operator.lines()
    });
    let Some(servers) = servers else { return };
    let monitoring = servers.monitoring();
    let ours = [("ca", "authority.pem"), ("cert", "client.cert"), ("key", "client.key")];
    let with = |options: &[(&'static str, &'static str)]| [&ours, options].concat();
    servers.keep_laws(&monitoring, &with(&[("creds", "ledger.creds")])).await;
    let system = with(&[("creds", "ledger.creds"), ("system-creds", "system.creds")]);
    let address: NatsAddress = servers.address("system", "", &system).parse().unwrap();
    JetstreamLedger::open(&address).await.unwrap();

    for name in ["stranger.creds", "mixed.creds"] {
        let file = servers.file(name);
        let words = ["takes the connection of the ledger", &file, "`creds=`"];
        servers.refuses(&monitoring, &with(&[("creds", name)]), &words).await;
    }
    let text = servers.file("text.creds");
    let words = [text.as_str(), "nsc generate creds"];
    servers.refuses(&monitoring, &with(&[("creds", "text.creds")]), &words).await;
    let stranger = servers.file("stranger.creds");
    let words = ["takes the connection of the system account", &stranger, "`system-creds=`"];
    let options = with(&[("creds", "ledger.creds"), ("system-creds", "stranger.creds")]);
    servers.refuses("", &options, &words).await;

    let login = [("ca", "authority.pem"), ("creds", "ledger.creds")];
    servers.refuses(&monitoring, &login, &["want a certificate", "`cert=FILE&key=FILE`"]).await;
    let stranger = servers.file("stranger.cert");
    let options = [&login[..], &[("cert", "stranger.cert"), ("key", "stranger.key")]].concat();
    let words = ["do not take the certificate", &stranger, "`cert=FILE&key=FILE`"];
    servers.refuses(&monitoring, &options, &words).await;
    let options = [&login[..], &[("cert", "client.cert"), ("key", "stranger.key")]].concat();
    servers.refuses(&monitoring, &options, &["`cert=`", "the key that of the certificate"]).await;
}

#[tokio::test]
async fn a_certificate_that_is_the_login() {
    let servers = Servers::start(|folder| {
        let authority = Authority::new(folder, "authority");
        authority.issue("client", "127.0.0.1");
        authority.issue("stranger", "127.0.0.1");
        let ca = format!("ca_file: \"{}\"\n  verify_and_map: true", authority.file.display());
        let accounts = "accounts { A { users: [{ user: \"CN=client\" }], jetstream: enabled } }\n";
        tls(&authority.issue("server", "127.0.0.1"), &ca) + accounts
    });
    let Some(servers) = servers else { return };
    let (monitoring, ca) = (servers.monitoring(), ("ca", "authority.pem"));
    let ours = [ca, ("cert", "client.cert"), ("key", "client.key")];
    servers.keep_laws(&monitoring, &ours).await;
    // Its certificate is good, and is that of nobody whom the servers know.
    let stranger = [ca, ("cert", "stranger.cert"), ("key", "stranger.key")];
    let file = servers.file("stranger.cert");
    servers.refuses(&monitoring, &stranger, &["takes the connection", &file]).await;
}

#[tokio::test]
async fn servers_without_tls_are_refused_where_it_is_demanded() {
    let Some(cluster) = crate::nats::shared::cluster() else { return };
    let address = cluster.address("p").replace("nats://", "tls://");
    says(&refusal(&address).await, &["have no TLS", "`nats://`"]);
}

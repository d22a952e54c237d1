use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_actors::model::id::PluginName;
use tokio::task::JoinHandle;

use super::destination::Sent;
use super::lane::{BATCH_BYTES, BATCH_LINES};
use super::record::{Content, Record};
use super::source::{GONE_WAIT, LINE_MAX, TAIL_WAIT};
use super::*;
use crate::config::JOURNAL_SOCKET;
use crate::observe::forwarding::Figures;

const TO: LogDestination = LogDestination::Otlp;

/// What a destination does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Takes,
    /// Takes as many records as this of each message, and fails then.
    TakesSome(usize),
    /// Takes a message and never answers.
    Hangs,
    Away,
    Refuses,
}

#[derive(Debug)]
struct Taken {
    mood: Mood,
    records: Vec<Record>,
    messages: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Fake(Arc<Mutex<Taken>>);

impl Destination for Fake {
    async fn send(&mut self, records: &[Record]) -> Sent {
        let mood = {
            let mut taken = self.0.lock().unwrap();
            let mood = taken.mood;
            let count = match mood {
                Mood::Takes | Mood::Hangs => records.len(),
                Mood::TakesSome(count) => count.min(records.len()),
                Mood::Away | Mood::Refuses => 0,
            };
            taken.messages.push(records.len());
            taken.records.extend_from_slice(&records[..count]);
            mood
        };
        let failure = Some("it is away".to_owned());
        match mood {
            Mood::Takes => Sent { done: records.len(), ..Sent::default() },
            Mood::TakesSome(done) => Sent { done, failure, ..Sent::default() },
            Mood::Hangs => std::future::pending().await,
            Mood::Away => Sent { failure, ..Sent::default() },
            Mood::Refuses => Sent {
                done: records.len(),
                refused: records.len() as u64,
                refusal: Some("bad".to_owned()),
                failure: None,
            },
        }
    }
}

struct Bed {
    dir: tempfile::TempDir,
    max: u64,
    logs: PluginLogs,
    figures: Forwarding,
    fake: Fake,
    ending: CancellationToken,
    lane: Option<JoinHandle<()>>,
}

fn name(text: &str) -> PluginName {
    text.parse().unwrap()
}

fn lines(range: std::ops::Range<u32>) -> String {
    range.map(|number| format!("line {number:06}\n")).collect()
}

impl Bed {
    fn new(max: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let logs = PluginLogs::new(dir.path().to_owned(), None, max);
        let taken = Taken { mood: Mood::Takes, records: Vec::new(), messages: Vec::new() };
        Self {
            dir,
            max,
            logs,
            figures: Forwarding::default(),
            fake: Fake(Arc::new(Mutex::new(taken))),
            ending: CancellationToken::new(),
            lane: None,
        }
    }

    /// An agent starts.
    fn start(&mut self) {
        self.logs = PluginLogs::new(self.dir.path().to_owned(), None, self.max);
        self.figures = Forwarding::default();
        self.ending = CancellationToken::new();
        let lane = Lane::new(self.logs.clone(), TO, self.figures.clone());
        self.lane = Some(tokio::spawn(lane.run(self.fake.clone(), self.ending.clone())));
    }

    /// The agent is killed.
    async fn kill(&mut self) {
        let lane = self.lane.take().unwrap();
        lane.abort();
        drop(lane.await);
    }

    fn launch(&self, plugin: &str, revision: &str) -> File {
        self.logs.begin(&name(plugin), &revision.parse().unwrap()).unwrap()
    }

    fn feels(&self, mood: Mood) {
        self.fake.0.lock().unwrap().mood = mood;
    }

    fn records(&self) -> Vec<Record> {
        self.fake.0.lock().unwrap().records.clone()
    }

    fn messages(&self) -> Vec<usize> {
        self.fake.0.lock().unwrap().messages.clone()
    }

    /// The lines of a plugin that were taken; gaps in brackets.
    fn taken(&self, plugin: &str) -> String {
        let of = |record: &Record| {
            let text = String::from_utf8_lossy(&record.content.text()).into_owned();
            match record.content {
                Content::Line { part: None, .. } => format!("{text}\n"),
                Content::Line { part: Some(part), .. } => format!("({part}){text}\n"),
                Content::Gap { bytes } => format!("[{bytes:?}]\n"),
            }
        };
        let records = self.records();
        records.iter().filter(|record| record.plugin.as_str() == plugin).map(of).collect()
    }

    fn figures(&self) -> Figures {
        self.figures.now().remove(&TO).unwrap_or_default()
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let wait = async {
            while !is_so(self) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(600), wait).await;
        assert!(waited.is_ok(), "{what}: {:?}", self.figures());
    }

    async fn idle(&self) {
        self.until("everything is taken", |bed| {
            let figures = bed.figures();
            !figures.lag.is_empty() && figures.lag.values().all(|lag| *lag == 0)
        })
        .await;
    }
}

fn write(mut file: &File, text: impl AsRef<[u8]>) {
    file.write_all(text.as_ref()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn lines_come_in_order_with_the_plugin_and_the_revision_that_wrote_them() {
    let mut bed = Bed::new(1 << 20);
    bed.start();
    let (one, two) = (bed.launch("one", "1"), bed.launch("two", "7"));
    write(&one, "a\nb\n");
    write(&two, "x\n\n");
    bed.until("both", |bed| bed.records().len() == 4).await;
    // An upgrade, and a crash of the new one.
    let one = bed.launch("one", "2");
    write(&one, "c\n");
    let one = bed.launch("one", "2");
    write(&one, "d\n");
    bed.until("all", |bed| bed.records().len() == 6).await;
    assert_eq!((&*bed.taken("one"), &*bed.taken("two")), ("a\nb\nc\nd\n", "x\n\n"));
    let revisions = |plugin: &str| {
        let records = bed.records().into_iter().filter(|it| it.plugin.as_str() == plugin);
        records.map(|it| it.revision.unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        (revisions("one"), revisions("two")),
        (vec!["1".into(), "1".into(), "2".into(), "2".into()], vec!["7".to_owned(), "7".into()])
    );
    assert!(bed.records().iter().all(|record| record.at.is_some()), "{:?}", bed.records());
    bed.idle().await;
    let figures = bed.figures();
    assert_eq!((figures.lines, figures.bytes, figures.missing_bytes), (6, 5, 0));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_killed_loses_nothing_and_repeats_at_most_a_message() {
    let mut bed = Bed::new(1 << 20);
    bed.start();
    let plugin = bed.launch("p", "1");
    write(&plugin, lines(0..100));
    bed.idle().await;
    bed.kill().await;
    write(&plugin, lines(100..200));
    bed.start();
    bed.idle().await;
    assert_eq!(bed.taken("p"), lines(0..200), "nothing again that was recorded");

    // It has taken a message, and the agent is killed before it can know that.
    bed.feels(Mood::Hangs);
    write(&plugin, lines(200..5000));
    bed.until("a message", |bed| bed.records().len() > 200).await;
    let twice = bed.records().len() - 200;
    assert!(twice <= BATCH_LINES, "{twice}");
    bed.kill().await;
    bed.feels(Mood::Takes);
    bed.start();
    bed.idle().await;
    let expected =
        lines(0..200) + &lines(200..200 + u32::try_from(twice).unwrap()) + &lines(200..5000);
    assert!(bed.taken("p") == expected);
}

#[tokio::test(start_paused = true)]
async fn what_it_took_of_a_message_that_failed_does_not_come_again() {
    let mut bed = Bed::new(1 << 20);
    bed.feels(Mood::TakesSome(7));
    bed.start();
    let plugin = bed.launch("p", "1");
    write(&plugin, lines(0..100));
    bed.until("some", |bed| bed.records().len() >= 21).await;
    bed.kill().await;
    bed.feels(Mood::Takes);
    bed.start();
    bed.idle().await;
    assert_eq!(bed.taken("p"), lines(0..100));
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_is_away_gets_what_waited_and_is_not_asked_all_the_time() {
    let mut bed = Bed::new(1 << 20);
    bed.feels(Mood::Away);
    bed.start();
    let plugin = bed.launch("p", "1");
    write(&plugin, lines(0..10));
    tokio::time::sleep(Duration::from_secs(600)).await;
    write(&plugin, lines(10..3000));
    bed.until("the lag is known", |bed| bed.figures().lag.values().sum::<u64>() == 36_000).await;
    let figures = bed.figures();
    assert_eq!(bed.figures.troubles(), ["the logs of plugins do not reach otlp: it is away"]);
    assert!((15..60).contains(&figures.failures), "{figures:?}");
    bed.feels(Mood::Takes);
    bed.idle().await;
    assert!(bed.taken("p") == lines(0..3000));
    assert_eq!((bed.figures().trouble, bed.figures().missing_bytes), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn what_was_cut_before_it_was_taken_is_told_as_a_gap() {
    let mut bed = Bed::new(40_000);
    bed.feels(Mood::Away);
    bed.start();
    let plugin = bed.launch("p", "1");
    write(&plugin, lines(0..3));
    bed.until("it is tried", |bed| bed.figures().failures > 0).await;
    write(&plugin, lines(3..9000));
    bed.logs.tend(&name("p")).unwrap();
    bed.kill().await;
    bed.feels(Mood::Takes);
    bed.start();
    bed.idle().await;
    let taken = bed.taken("p");
    let (gap, rest) = taken.split_once('\n').unwrap();
    let bytes: u64 =
        gap.strip_prefix("[Some(").unwrap().strip_suffix(")]").unwrap().parse().unwrap();
    assert!(bytes > 0 && rest.ends_with("line 008999\n"), "{gap}");
    assert_eq!(bytes + u64::try_from(rest.len()).unwrap(), 9000 * 12);
    assert_eq!(bed.figures().missing_bytes, bytes);
    let gap = bed.records()[0].content.text().into_owned();
    let told = format!("{bytes} bytes of this log were cut before they were forwarded");
    assert_eq!(String::from_utf8(gap).unwrap(), told);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_cut_before_it_is_looked_at_has_a_gap_only_if_it_is_new() {
    let mut bed = Bed::new(40_000);
    write(&bed.launch("old", "1"), lines(0..9000));
    bed.logs.tend(&name("old")).unwrap();
    bed.start();
    bed.idle().await;
    assert!(bed.taken("old").starts_with("line "), "it was not to be forwarded then");
    write(&bed.launch("new", "1"), lines(0..9000));
    bed.logs.tend(&name("new")).unwrap();
    bed.until("both", |bed| bed.taken("new").ends_with("line 008999\n")).await;
    assert!(bed.taken("new").starts_with("[Some("));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_floods_its_log_keeps_no_other_waiting() {
    let mut bed = Bed::new(64 << 20);
    let flood = bed.launch("flood", "1");
    write(&flood, lines(0..100_000));
    for number in 0..20 {
        write(&bed.launch(&format!("quiet{number}"), "1"), "hello\n");
    }
    bed.start();
    bed.idle().await;
    let first = bed.messages()[0];
    let quiet = |records: &[Record]| {
        records.iter().filter(|it| it.plugin.as_str().starts_with("quiet")).count()
    };
    assert_eq!(quiet(&bed.records()[..first]), 20, "all are in the first message");
    assert!(bed.messages().iter().all(|count| *count <= BATCH_LINES));
    assert!(bed.taken("flood") == lines(0..100_000));
}

#[tokio::test(start_paused = true)]
async fn long_lines_come_in_parts_and_messages_stay_small() {
    let mut bed = Bed::new(64 << 20);
    bed.start();
    let plugin = bed.launch("p", "1");
    let long = "é".repeat(3 * LINE_MAX / 2 + 5);
    write(&plugin, format!("{long}\nshort\n"));
    write(&plugin, "x".repeat(LINE_MAX) + "\nafter\n");
    bed.idle().await;
    let records = bed.records();
    let parts: Vec<_> = records
        .iter()
        .map(|record| match &record.content {
            Content::Line { text, part } => (*part, text.len()),
            Content::Gap { .. } => panic!("a gap"),
        })
        .collect();
    let expected = [
        (Some(1), LINE_MAX),
        (Some(2), LINE_MAX),
        (Some(3), LINE_MAX),
        (Some(4), 10),
        (None, 5),
        (None, LINE_MAX),
        (None, 5),
    ];
    assert_eq!(parts, expected);
    let whole: Vec<u8> =
        records[..4].iter().flat_map(|it| it.content.text().into_owned()).collect();
    assert!(whole == long.as_bytes());
    write(&plugin, ("y".repeat(LINE_MAX - 1) + "\n").repeat(100));
    bed.idle().await;
    let most = BATCH_BYTES / LINE_MAX + 1;
    assert!(bed.messages().iter().all(|count| *count <= most), "{:?}", bed.messages());
}

#[tokio::test(start_paused = true)]
async fn a_line_without_an_end_waits_for_it_for_a_moment() {
    let mut bed = Bed::new(1 << 20);
    bed.start();
    let plugin = bed.launch("p", "1");
    write(&plugin, "whole\nprompt> ");
    bed.until("the whole one", |bed| bed.records().len() == 1).await;
    tokio::time::sleep(TAIL_WAIT / 2).await;
    assert_eq!(bed.taken("p"), "whole\n");
    bed.until("its beginning", |bed| bed.records().len() == 2).await;
    bed.kill().await;
    bed.start();
    write(&plugin, "yes\nnext\nagain> ");
    bed.until("the rest", |bed| bed.records().len() == 5).await;
    write(&plugin, "\nend\n");
    bed.until("the end", |bed| bed.records().len() == 6).await;
    assert_eq!(bed.taken("p"), "whole\n(1)prompt> \n(2)yes\nnext\n(1)again> \nend\n");
}

#[tokio::test(start_paused = true)]
async fn hostile_bytes_are_passed_on_as_they_are() {
    let mut bed = Bed::new(1 << 20);
    bed.start();
    let plugin = bed.launch("p", "1");
    let hostile = b"\x1b]0;owned\x07\0\xff\xfePRIORITY=0\r";
    write(&plugin, [&hostile[..], b"\n"].concat());
    bed.idle().await;
    assert_eq!(&*bed.records()[0].content.text(), hostile);
}

#[tokio::test(start_paused = true)]
async fn the_last_lines_of_a_removed_plugin_are_forwarded_unless_that_takes_too_long() {
    let mut bed = Bed::new(1 << 20);
    bed.start();
    let remove = |bed: &Bed, plugin: &str| {
        bed.logs.forget(&name(plugin));
        for entry in std::fs::read_dir(bed.dir.path()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    };
    let plugin = bed.launch("p", "1");
    write(&plugin, "first\n");
    bed.idle().await;
    bed.feels(Mood::Away);
    write(&plugin, lines(0..600));
    bed.until("it is tried", |bed| bed.figures().failures > 0).await;
    remove(&bed, "p");
    tokio::time::sleep(GONE_WAIT / 2).await;
    bed.feels(Mood::Takes);
    bed.until("the rest", |bed| bed.records().len() == 601).await;
    assert_eq!(bed.taken("p"), format!("first\n{}", lines(0..600)));
    bed.until("it is forgotten", |bed| bed.figures().lag.is_empty()).await;

    let plugin = bed.launch("q", "1");
    bed.feels(Mood::Away);
    write(&plugin, lines(0..600));
    bed.until("it is seen", |bed| bed.figures().lag.contains_key(&name("q"))).await;
    remove(&bed, "q");
    bed.until("it is given up", |bed| bed.figures().lag.is_empty()).await;
    bed.feels(Mood::Takes);
    bed.until("what was under way", |bed| bed.figures().trouble.is_none()).await;
    assert_eq!(bed.taken("q"), lines(0..u32::try_from(BATCH_LINES).unwrap()));
    assert_eq!(bed.figures().missing_bytes, (600 - BATCH_LINES as u64) * 12);
    assert!(std::fs::read_dir(bed.dir.path()).unwrap().next().is_none(), "nothing is left");
}

#[tokio::test(start_paused = true)]
async fn a_log_that_was_replaced_while_nobody_looked_is_told() {
    let mut bed = Bed::new(1 << 20);
    bed.start();
    write(&bed.launch("p", "1"), lines(0..10));
    bed.idle().await;
    bed.kill().await;
    let log = bed.dir.path().join("p.log");
    // Another inode, also where the number of the first one is given away again.
    std::fs::write(bed.dir.path().join("p.new"), lines(0..20)).unwrap();
    std::fs::rename(bed.dir.path().join("p.new"), log).unwrap();
    bed.start();
    bed.idle().await;
    assert_eq!(bed.taken("p"), format!("{}[None]\n{}", lines(0..10), lines(0..20)));
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_for_good_is_counted_and_not_sent_again() {
    let mut bed = Bed::new(1 << 20);
    bed.feels(Mood::Refuses);
    bed.start();
    write(&bed.launch("p", "1"), lines(0..10));
    bed.idle().await;
    let figures = bed.figures();
    assert_eq!((figures.refused, figures.lines, figures.failures), (10, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_stops_sends_what_is_left() {
    let mut bed = Bed::new(1 << 20);
    bed.start();
    let plugin = bed.launch("p", "1");
    write(&plugin, "first\n");
    bed.idle().await;
    write(&plugin, lines(0..2000));
    bed.ending.cancel();
    bed.lane.take().unwrap().await.unwrap();
    assert!(bed.taken("p") == format!("first\n{}", lines(0..2000)));
}

#[tokio::test]
async fn a_forwarder_begins_and_ends_with_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let journal = tokio::net::UnixDatagram::bind(dir.path().join("journal")).unwrap();
    let logs = PluginLogs::new(dir.path().join("plugins"), None, 1 << 20);
    std::fs::create_dir(logs.dir()).unwrap();
    let (config, in_effect) = watch::channel(Arc::new(Config::default()));
    let ending = CancellationToken::new();
    let figures = Forwarding::default();
    let forwarder = Forwarder {
        logs: logs.clone(),
        config: in_effect,
        figures: figures.clone(),
        instance_id: "vm".to_owned(),
        boot: BootId("boot".into()),
        ending: ending.clone(),
    };
    let running = tokio::spawn(forwarder.run());
    let plugin = logs.begin(&name("p"), &"1".parse().unwrap()).unwrap();
    write(&plugin, b"one\xff\n");
    let change = |to: &[LogDestination], socket: PathBuf| {
        let mut new = Config::default();
        (new.plugins.log_to, new.plugins.log_journal_socket) = (to.to_vec(), socket);
        config.send_replace(Arc::new(new));
    };
    change(&[LogDestination::Journald], dir.path().join("journal"));
    let mut buffer = vec![0; 64 * 1024];
    let mut next = async || {
        let received = tokio::time::timeout(Duration::from_secs(20), journal.recv(&mut buffer));
        let length = received.await.expect("an entry").unwrap();
        buffer[..length].to_vec()
    };
    let first = next().await;
    let mut expected = b"MESSAGE\n\x04\0\0\0\0\0\0\0one\xff".to_vec();
    expected.extend_from_slice(
        b"\nPRIORITY=6\nSYSLOG_IDENTIFIER=p\nGUEST_AGENT_PLUGIN=p\nGUEST_AGENT_REVISION=1\n\
          GUEST_AGENT_TIME=",
    );
    assert!(first.starts_with(&expected), "{:?}", String::from_utf8_lossy(&first));
    assert!(first.ends_with(b"GUEST_AGENT_INSTANCE\n\x02\0\0\0\0\0\0\0vm\n"));
    // A collector that was not there at the start.
    change(&[LogDestination::Otlp], JOURNAL_SOCKET.into());
    let wait = async {
        while figures.troubles().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("a trouble");
    assert!(figures.troubles()[0].contains("restart guest-agent"), "{:?}", figures.troubles());
    write(&plugin, "two\n");
    change(&[LogDestination::Journald], dir.path().join("journal"));
    let second = next().await;
    assert!(second.starts_with(b"MESSAGE\n\x03\0\0\0\0\0\0\0two\n"), "{second:?}");
    assert!(figures.troubles().is_empty());
    ending.cancel();
    tokio::time::timeout(Duration::from_secs(20), running).await.expect("it ends").unwrap();
}

//! Artifacts in other forms: made, given out to those who ask, and gone when nobody needs them.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use bytes::Bytes;
use guest_fleet::artifacts::Digest;
use guest_fleet::artifacts::encodings::{EncodingLimits, Encodings};
use guest_fleet::artifacts::named::Named;
use guest_fleet::artifacts::store::ArtifactStore;
use guest_fleet::observe::figures::Figures;
use guest_fleet_core::view::{Archive, Release, ReleaseName, View};
use reqwest::Response;

use crate::LONG;
use crate::harness::{PLUGIN, Rig, bytes, client, put, until};

const LIMITS: EncodingLimits = EncodingLimits {
    room: 1 << 30,
    reserve: 0,
    time: Duration::from_secs(60),
    look: Duration::from_secs(60),
};

/// Releases of the plugin, one for each artifact.
fn named(artifacts: &[Digest]) -> Arc<Named> {
    let mut view = View::default();
    for (number, digest) in artifacts.iter().enumerate() {
        let name = ReleaseName { plugin: PLUGIN.to_owned(), revision: number.to_string() };
        let archive = Archive { digest: digest.to_string(), url: String::new() };
        let archives = BTreeMap::from([("amd64".to_owned(), archive)]);
        view.releases.insert(name, Release { archives, order: Vec::new() });
    }
    Arc::new(Named::of(&view))
}

struct Forms {
    rig: Rig,
    encodings: Arc<Encodings>,
    figures: Arc<Figures>,
}

impl Forms {
    async fn start(limits: EncodingLimits) -> Self {
        let figures = Arc::<Figures>::default();
        let mut made = None;
        let rig = Rig::with(|options| {
            let root = options.upload_tokens.as_ref().unwrap().with_file_name("store");
            let encodings = Encodings::open(&root, limits, figures.clone()).unwrap();
            options.encodings = Some(encodings.clone());
            made = Some(encodings);
        })
        .await;
        Self { rig, encodings: made.unwrap(), figures }
    }

    /// Asks for an artifact, as one who has another.
    async fn get(&self, digest: &Digest, accepted: &str, has: Option<&Digest>) -> Response {
        let mut request = client().get(self.rig.url(digest)).header("accept-encoding", accepted);
        if let Some(digest) = has {
            request = request.header("available-dictionary", hash(digest));
        }
        request.send().await.unwrap()
    }

    /// Asks until the artifact comes in this form.
    async fn until(&self, digest: &Digest, coding: &str, has: Option<&Digest>) -> Response {
        let asking = async {
            loop {
                let answer = self.get(digest, coding, has).await;
                if answer.headers().get("content-encoding").is_some_and(|it| it == coding) {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONG, asking).await.expect("the form is made")
    }

    fn folder(&self) -> PathBuf {
        self.rig.folder.path().join("store/encoded")
    }
}

/// The name of a dictionary in requests.
fn hash(digest: &Digest) -> String {
    let text = digest.to_string();
    let raw: Vec<u8> = (0..32)
        .map(|place| u8::from_str_radix(&text[2 * place..2 * place + 2], 16).unwrap())
        .collect();
    format!(":{}:", base64::engine::general_purpose::STANDARD.encode(raw))
}

/// Names of the forms in a folder.
fn forms(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.metadata().is_ok_and(|found| found.is_file()));
    let names = files.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name != "lock").collect();
    names.sort();
    names
}

/// Expands a delta as any decoder of zstd does that is given the dictionary.
fn expanded(delta: &[u8], dictionary: &[u8]) -> Vec<u8> {
    let mut decoder =
        zstd::stream::read::Decoder::with_ref_prefix(&delta[40..], dictionary).unwrap();
    let mut whole = Vec::new();
    decoder.read_to_end(&mut whole).unwrap();
    whole
}

/// A revision and the one before it.
fn revisions() -> (Bytes, Bytes) {
    let text = |number: usize| format!("{number:07} is a line of an archive that compresses\n");
    let old: String = (0..20_000).map(text).collect();
    let mut new = old.clone().into_bytes();
    new.splice(300_000..300_100, bytes(3_000));
    (old.into(), new.into())
}

#[tokio::test]
async fn who_has_the_former_artifact_gets_what_changed() {
    let forms = Forms::start(LIMITS).await;
    let (old, new) = revisions();
    let before = put(forms.rig.store.as_ref(), &old).await.unwrap().digest;
    let after = put(forms.rig.store.as_ref(), &new).await.unwrap().digest;
    // Until a release names them, nobody needs their forms.
    let whole = forms.get(&after, "dcz, zstd", Some(&before)).await;
    assert_eq!(whole.headers().get("content-encoding"), None);
    assert_eq!(whole.headers()["vary"], "accept-encoding, available-dictionary");
    let terms = format!("match=\"/artifacts/{PLUGIN}/*\"");
    assert_eq!(whole.headers()["use-as-dictionary"], terms);
    assert_eq!(whole.bytes().await.unwrap(), new);
    forms.encodings.release(named(&[before, after]));

    let delta = forms.until(&after, "dcz", Some(&before)).await;
    assert_eq!(delta.headers()["use-as-dictionary"], terms);
    assert_eq!(delta.headers()["vary"], "accept-encoding, available-dictionary");
    let length = delta.headers()["content-length"].clone();
    let of_delta = delta.headers()["etag"].to_str().unwrap().to_owned();
    let delta = delta.bytes().await.unwrap();
    assert!(delta.len() < 4_000 && length == delta.len().to_string(), "{}", delta.len());
    assert_eq!(Digest::of(&expanded(&delta, &old)), after);
    let compressed = forms.until(&after, "zstd", None).await;
    let of_zstd = compressed.headers()["etag"].to_str().unwrap().to_owned();
    let compressed = compressed.bytes().await.unwrap();
    assert_eq!(zstd::decode_all(compressed.as_ref()).unwrap(), new);

    // Every form has a tag of its own, and only that one resumes it.
    let of_whole = format!("\"{after}\"");
    for (coding, tag, whole) in
        [("dcz", &of_delta, &delta), ("zstd", &of_zstd, &compressed), ("identity", &of_whole, &new)]
    {
        let request = |tag: &str| {
            let request = client().get(forms.rig.url(&after)).header("accept-encoding", coding);
            request.header("available-dictionary", hash(&before)).header("if-range", tag)
        };
        let part = request(tag).header("range", "bytes=100-").send().await.unwrap();
        assert_eq!(part.status(), 206, "{coding}");
        let shown = format!("bytes 100-{}/{}", whole.len() - 1, whole.len());
        assert_eq!(part.headers()["content-range"], shown);
        assert_eq!(part.bytes().await.unwrap(), whole.slice(100..));
        for other in [&of_delta, &of_zstd, &of_whole].into_iter().filter(|it| *it != tag) {
            let answer = request(other).header("range", "bytes=100-").send().await.unwrap();
            assert_eq!(
                (answer.status().as_u16(), answer.bytes().await.unwrap()),
                (200, whole.clone())
            );
        }
        let known = client().get(forms.rig.url(&after)).header("accept-encoding", coding);
        let known = known.header("available-dictionary", hash(&before));
        let known = known.header("if-none-match", tag).send().await.unwrap();
        assert_eq!(known.status(), 304, "{coding}");
        assert_eq!(known.headers()["vary"], "accept-encoding, available-dictionary");
    }
    // Another dictionary, or none, leads to no delta.
    let other = Digest::of(b"what nobody published");
    let answer = forms.get(&after, "dcz", Some(&other)).await;
    assert_eq!(answer.headers().get("content-encoding"), None);
    let head = client().head(forms.rig.url(&after)).header("accept-encoding", "zstd");
    let head = head.send().await.unwrap();
    assert_eq!(head.headers()["content-encoding"], "zstd");
    assert_eq!(head.headers()["content-length"], compressed.len().to_string());

    let counted = forms.figures.now();
    assert!(counted.artifact_sent["dcz"] >= delta.len() as u64);
    assert!(counted.artifact_sent["identity"] >= new.len() as u64);
    assert_eq!(counted.encodings_made["dcz"], 1);
    assert!(counted.encoded_bytes > 0);
}

#[tokio::test]
async fn forms_follow_the_releases_and_uploads_and_outlive_the_process() {
    let forms = Forms::start(LIMITS).await;
    let (old, new) = revisions();
    let [before, after] = [&old, &new].map(|text| Digest::of(text));
    // The release is declared first, the artifacts are pushed later.
    forms.encodings.release(named(&[before, after]));
    for text in [&old, &new] {
        let request = client().put(forms.rig.url(&Digest::of(text))).body(text.clone());
        let answer = request.bearer_auth(crate::harness::TOKEN).send().await.unwrap();
        assert_eq!(answer.status(), 201);
    }
    forms.until(&after, "dcz", Some(&before)).await;
    forms.until(&before, "zstd", None).await;
    let folder = forms.folder();
    until("all are made", || self::forms(&folder).len() == 3);
    // Another process finds them, and makes none again.
    let root = forms.rig.folder.path().join("store");
    let figures = Arc::<Figures>::default();
    let again = Encodings::open(&root, LIMITS, figures.clone()).unwrap();
    let found = figures.now().encoded_bytes;
    // A form is counted after it has its name.
    until("it counts them, too", || forms.figures.now().encoded_bytes == found);
    drop(again);
    // Nobody needs the delta when the former release is gone.
    forms.encodings.release(named(&[after]));
    until("what is not needed is deleted", || self::forms(&folder).len() == 1);
    assert!(self::forms(&folder)[0].starts_with(&format!("{after}.zstd.")));
}

#[tokio::test]
async fn what_cannot_be_smaller_or_is_wrong_on_the_disk_leads_to_no_form() {
    let forms = Forms::start(LIMITS).await;
    let (old, new) = revisions();
    let noise = Bytes::from(bytes(60_000).to_vec());
    let gzip = Bytes::from([b"\x1f\x8b", &new[..]].concat());
    let mut all = Vec::new();
    for text in [&noise, &gzip, &old] {
        all.push(put(forms.rig.store.as_ref(), text).await.unwrap().digest);
    }
    // The disk has changed it since.
    let path = all[2].to_string();
    let path = forms.rig.folder.path().join("store").join(&path[..2]).join(&path[2..]);
    std::fs::write(&path, &new).unwrap();
    let right = put(forms.rig.store.as_ref(), &new).await.unwrap().digest;
    all.push(right);
    forms.encodings.release(named(&all));
    forms.until(&right, "zstd", None).await;
    until("the wrong one was tried", || forms.figures.now().encodings_failed > 0);
    let answer = forms.get(&right, "dcz", Some(&all[2])).await;
    assert_eq!(answer.headers().get("content-encoding"), None, "no delta of what is wrong");
    let names = self::forms(&forms.folder());
    assert!(names.iter().all(|name| name.starts_with(&right.to_string())), "{names:?}");
}

#[tokio::test]
async fn without_room_clients_get_the_artifact_itself() {
    let forms = Forms::start(EncodingLimits { room: 1000, ..LIMITS }).await;
    let (old, _) = revisions();
    let digest = put(forms.rig.store.as_ref(), &old).await.unwrap().digest;
    forms.encodings.release(named(&[digest]));
    until("it was tried", || forms.figures.now().encodings_failed > 0);
    let answer = forms.get(&digest, "zstd", None).await;
    assert_eq!(answer.bytes().await.unwrap(), old);
    assert!(self::forms(&forms.folder()).is_empty());
}

/// Where the process that is killed works.
const STORE: &str = "GUEST_FLEET_TEST_ENCODINGS";

/// What the process does that is killed: this test, started by the other one.
#[tokio::test]
#[ignore = "it never ends; another test starts it and kills it"]
async fn a_maker_that_never_ends() {
    let root: PathBuf = std::env::var_os(STORE).unwrap().into();
    let store = crate::harness::directory(&root);
    let all: Vec<_> = store.list(None, 10).await.unwrap().iter().map(|it| it.digest).collect();
    let encodings = Encodings::open(&root, LIMITS, Arc::default()).unwrap();
    encodings.release(named(&all));
    std::future::pending().await
}

#[tokio::test]
async fn what_a_killed_process_was_making_is_made_by_the_next_one() {
    let forms = Forms::start(LIMITS).await;
    // Large enough to be killed in the middle.
    let old = Bytes::from(
        (0..300_000_u64).map(|it| format!("{it:06} {}\n", it * 7919 % 10_007)).collect::<String>(),
    );
    let new = Bytes::from([b"first of all\n", &old[..]].concat());
    let before = put(forms.rig.store.as_ref(), &old).await.unwrap().digest;
    let after = put(forms.rig.store.as_ref(), &new).await.unwrap().digest;
    let root = forms.rig.folder.path().join("store");
    let mut maker = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "encodings::a_maker_that_never_ends", "--ignored", "--nocapture"])
        .env(STORE, &root)
        .spawn()
        .unwrap();
    let temporary = forms.folder().join("tmp");
    until("it works", || std::fs::read_dir(&temporary).unwrap().count() > 0);
    maker.kill().unwrap();
    maker.wait().unwrap();
    forms.encodings.release(named(&[before, after]));
    let delta = forms.until(&after, "dcz", Some(&before)).await.bytes().await.unwrap();
    assert_eq!(Digest::of(&expanded(&delta, &old)), after);
    let compressed = forms.until(&before, "zstd", None).await.bytes().await.unwrap();
    assert_eq!(zstd::decode_all(compressed.as_ref()).unwrap(), old);
}

//! Pictures of the book: each is there, says in words what it shows, and is small.

use std::collections::BTreeSet;

use crate::pages;

const FOLDER: &str = "docs/images";
/// Largest picture, and largest of all together, in bytes.
const LARGEST: u64 = 120 << 10;
const ALL: u64 = 800 << 10;

#[test]
fn pictures_are_shown_described_and_small() {
    let mut shown = BTreeSet::new();
    for path in pages::all().iter().filter(|path| path.starts_with("docs")) {
        let page = pages::text(path);
        for part in pages::prose(&page).flat_map(|line| line.split("![").skip(1)) {
            let (words, rest) = part.split_once("](").expect("a picture has words and a file");
            let (file, _) = rest.split_once(')').expect("a picture ends");
            let place = format!("{}: {file}", path.display());
            assert!(words.len() > 10, "{place}: it does not say what it shows");
            let name = file.strip_prefix("images/").expect("pictures are in one folder");
            shown.insert(name.to_owned());
        }
    }
    let (mut there, mut all) = (BTreeSet::new(), 0);
    for entry in std::fs::read_dir(pages::root().join(FOLDER)).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name");
        let size = entry.metadata().expect("a file").len();
        assert!(size <= LARGEST, "{name} has {size} bytes, more than {LARGEST}");
        all += size;
        there.insert(name);
    }
    assert_eq!(shown, there, "each picture is shown, and each that is shown is there");
    assert!(all <= ALL, "the pictures have {all} bytes, more than {ALL}");
    let maker = pages::text("tests/fleet/screenshots.rs");
    for name in there {
        let stem = name.trim_end_matches(".png");
        assert!(maker.contains(&format!("\"{stem}\"")), "nothing makes {name}: `just screenshots`");
    }
}

//! The OpenMetrics text format by its specification, as far as the page uses it, and as strict.

use std::collections::{BTreeMap, BTreeSet};

/// A family of samples.
#[derive(Debug, Default)]
pub(super) struct Family {
    pub(super) kind: String,
    pub(super) unit: Option<String>,
    pub(super) help: String,
    pub(super) samples: Vec<Sample>,
}

/// One line.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) value: f64,
}

/// Reads a page.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("it does not end with EOF")?;
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut seen = BTreeSet::new();
    // Not `lines`, which drops a carriage return at the end of a line.
    for line in body.split_terminator('\n') {
        let wrong = |why: &str| format!("{why}: {line:?}");
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let mut word = || words.next().ok_or_else(|| wrong("a word is missing"));
            let (what, name, rest) = (word()?, word()?, word()?);
            if name != current {
                if families.contains_key(name) {
                    return Err(wrong("a family stands twice"));
                }
                check_name(name).map_err(wrong)?;
                current = name.to_owned();
            }
            let family = families.entry(current.clone()).or_default();
            if !family.samples.is_empty() {
                return Err(wrong("it comes after samples"));
            }
            match what {
                "HELP" => family.help = rest.to_owned(),
                "TYPE" => family.kind = rest.to_owned(),
                "UNIT" if name.ends_with(&format!("_{rest}")) => {
                    family.unit = Some(rest.to_owned())
                }
                _ => return Err(wrong("it is not known")),
            }
            continue;
        }
        let family = families.get_mut(&current).ok_or_else(|| wrong("it has no family"))?;
        let sample = sample(line).map_err(|why| wrong(&why))?;
        let suffix =
            sample.name.strip_prefix(&current).ok_or_else(|| wrong("of another family"))?;
        let fits = match family.kind.as_str() {
            "gauge" => suffix.is_empty(),
            "counter" => suffix == "_total" && sample.value >= 0.0,
            "info" => suffix == "_info" && sample.value == 1.0,
            "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
            _ => false,
        };
        if !fits {
            return Err(wrong("it does not fit its type"));
        }
        if !seen.insert((sample.name.clone(), sample.labels.clone())) {
            return Err(wrong("it stands twice"));
        }
        family.samples.push(sample);
    }
    for (name, family) in &families {
        if family.samples.is_empty() {
            return Err(format!("{name} has no samples"));
        }
        if family.kind == "histogram" {
            check_histogram(name, family)?;
        }
    }
    Ok(families)
}

fn check_histogram(name: &str, family: &Family) -> Result<(), String> {
    let buckets: Vec<_> = family.samples.iter().filter(|it| it.name.ends_with("_bucket")).collect();
    let is_rising = buckets.windows(2).all(|pair| pair[0].value <= pair[1].value);
    let count = family.samples.iter().find(|it| it.name.ends_with("_count")).map(|it| it.value);
    let last = buckets.last().ok_or("a histogram without buckets")?;
    if is_rising && last.labels["le"] == "+Inf" && count == Some(last.value) {
        return Ok(());
    }
    Err(format!("{name} is no histogram"))
}

fn sample(line: &str) -> Result<Sample, String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    check_name(name)?;
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").ok_or("no label")?;
            check_name(label)?;
            let end = end_of_value(after).ok_or("a value that does not end")?;
            let value = unescaped(&after[..end]).ok_or("a value with a wrong escape")?;
            if labels.insert(label.to_owned(), value).is_some() {
                return Err("a label stands twice".to_owned());
            }
            rest = &after[end + 1..];
            if let Some(more) = rest.strip_prefix(',') {
                rest = more;
            } else {
                rest = rest.strip_prefix('}').ok_or("no end of labels")?;
                break;
            }
        }
    }
    let value = rest.strip_prefix(' ').ok_or("no space before the value")?;
    let value: f64 = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
    Ok(Sample { name: name.to_owned(), labels, value })
}

/// The offset of the quote that ends a value.
fn end_of_value(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

/// The text that an escaped value means.
fn unescaped(text: &str) -> Option<String> {
    let mut plain = String::new();
    let mut rest = text.chars();
    while let Some(next) = rest.next() {
        match next {
            '\\' => plain.push(match rest.next()? {
                'n' => '\n',
                same @ ('\\' | '"') => same,
                _ => return None,
            }),
            '\n' | '"' => return None,
            other => plain.push(other),
        }
    }
    Some(plain)
}

fn check_name(name: &str) -> Result<(), &'static str> {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    let is_good = name.chars().next().is_some_and(is_first)
        && name.chars().all(|c| is_first(c) || c.is_ascii_digit());
    if is_good { Ok(()) } else { Err("it is not a name") }
}

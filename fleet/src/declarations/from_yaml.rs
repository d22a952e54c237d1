//! YAML as trees, one per document. Scalars are those of the core schema of YAML 1.2: `no` is a text
//! and `02:00` is one, too.
//!
//! An alias stands for a copy of what it names, and every copy counts: a few lines of aliases of
//! aliases would otherwise become more than any machine has room for.

use std::collections::{BTreeMap, BTreeSet};

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::problem::Place;
use super::tree::{DEPTH, Entry, Node, SyntaxError, Value};

/// Most values of one file, those that aliases stand for included.
const NODES: usize = 200_000;
/// Most bytes of all texts of one file, those that aliases stand for included.
const TEXT_BYTES: usize = 16 << 20;

/// Reads all documents of a file. Documents without content are left out.
pub(crate) fn read(text: &str) -> Result<Vec<Node>, SyntaxError> {
    let mut reader =
        Reader { parser: Parser::new_from_str(text), anchors: BTreeMap::new(), nodes: 0, bytes: 0 };
    let mut documents = Vec::new();
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamEnd => return Ok(documents),
            Event::DocumentStart(_) => {
                reader.anchors.clear();
                let document = reader.node(DEPTH)?;
                if document.value != Value::Null {
                    documents.push(document);
                }
            }
            Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
            _ => return Err(broken(place(span), "a document is expected here")),
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchors: BTreeMap<usize, Anchor>,
    nodes: usize,
    bytes: usize,
}

/// What an alias may stand for.
#[derive(Clone)]
struct Anchor {
    node: Node,
    /// Its values.
    nodes: usize,
    /// Bytes of its texts.
    bytes: usize,
    /// How deep it is nested.
    height: usize,
}

fn place(span: Span) -> Place {
    Place { line: span.start.line(), column: span.start.col() + 1 }
}

fn broken(place: Place, reason: impl std::fmt::Display) -> SyntaxError {
    SyntaxError::new(
        place,
        format!("it is not YAML: {reason}"),
        "see https://yaml.org for what a file may look like",
    )
}

fn scan_error(error: &ScanError) -> SyntaxError {
    let at = error.marker();
    broken(Place { line: at.line(), column: at.col() + 1 }, error.info())
}

// === impl Reader ===

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), SyntaxError> {
        match self.parser.next_event() {
            Some(Ok(found)) => Ok(found),
            Some(Err(error)) => Err(scan_error(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn node(&mut self, depth: usize) -> Result<Node, SyntaxError> {
        let (event, span) = self.next()?;
        self.node_of(event, span, depth)
    }

    fn node_of(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, SyntaxError> {
        let place = place(span);
        let depth = depth.checked_sub(1).ok_or_else(|| SyntaxError::too_deep(place))?;
        let (nodes, bytes) = (self.nodes, self.bytes);
        self.count(1, 0, place)?;
        let (anchor, value) = match event {
            Event::Alias(anchor) => return self.alias(anchor, place, depth),
            Event::Scalar(_, _, _, Some(tag)) => return Err(tagged(place, &tag.suffix)),
            Event::SequenceStart(_, Some(tag)) | Event::MappingStart(_, Some(tag)) => {
                return Err(tagged(place, &tag.suffix));
            }
            Event::Scalar(text, style, anchor, None) => {
                self.count(0, text.len(), place)?;
                (anchor, scalar(&text, style))
            }
            Event::SequenceStart(anchor, None) => (anchor, Value::List(self.list(depth)?)),
            Event::MappingStart(anchor, None) => (anchor, Value::Table(self.table(depth)?)),
            _ => return Err(broken(place, "a value is expected here")),
        };
        let node = Node { place, value };
        if anchor != 0 {
            // A copy that nobody uses takes room as well.
            let (nodes, bytes) = (self.nodes - nodes, self.bytes - bytes);
            self.count(nodes, bytes, place)?;
            let height = height(&node);
            self.anchors.insert(anchor, Anchor { node: node.clone(), nodes, bytes, height });
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, SyntaxError> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(items);
            }
            items.push(self.node_of(event, span, depth)?);
        }
    }

    fn table(&mut self, depth: usize) -> Result<Vec<Entry>, SyntaxError> {
        let mut entries = Vec::new();
        let mut seen = BTreeSet::new();
        loop {
            let (event, span) = self.next()?;
            let place = place(span);
            let key = match event {
                Event::MappingEnd => return Ok(entries),
                Event::Scalar(_, _, _, Some(tag)) => return Err(tagged(place, &tag.suffix)),
                Event::Scalar(text, ..) => text.into_owned(),
                _ => {
                    return Err(SyntaxError::new(
                        place,
                        "this key is not a text",
                        "write a plain word as the key",
                    ));
                }
            };
            self.count(0, key.len(), place)?;
            if key == "<<" {
                return Err(SyntaxError::new(
                    place,
                    "merge keys (`<<`) are not part of YAML 1.2",
                    "write the keys out, or use an alias for a whole value",
                ));
            }
            if !seen.insert(key.clone()) {
                return Err(SyntaxError::new(
                    place,
                    format!("the key `{key}` is there twice"),
                    "remove one of them",
                ));
            }
            let node = self.node(depth)?;
            entries.push(Entry { key, place, node });
        }
    }

    fn alias(&mut self, anchor: usize, place: Place, depth: usize) -> Result<Node, SyntaxError> {
        let Some(found) = self.anchors.get(&anchor).cloned() else {
            return Err(SyntaxError::new(
                place,
                "this alias stands inside of what it names, or before it",
                "write the value out",
            ));
        };
        self.count(found.nodes, found.bytes, place)?;
        if found.height > depth {
            return Err(SyntaxError::too_deep(place));
        }
        // The place is that of the alias: there the value is used.
        Ok(Node { place, ..found.node })
    }

    fn count(&mut self, nodes: usize, bytes: usize, place: Place) -> Result<(), SyntaxError> {
        self.nodes = self.nodes.saturating_add(nodes);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.nodes > NODES || self.bytes > TEXT_BYTES {
            return Err(SyntaxError::new(
                place,
                format!(
                    "up to here the file has more than {NODES} values or {TEXT_BYTES} bytes, with what its \
                     aliases stand for"
                ),
                "use fewer aliases, or several files",
            ));
        }
        Ok(())
    }
}

/// How deep a value is nested below itself; reading bounded it.
fn height(node: &Node) -> usize {
    let below = match &node.value {
        Value::List(items) => items.iter().map(height).max(),
        Value::Table(entries) => entries.iter().map(|entry| height(&entry.node)).max(),
        _ => return 0,
    };
    1 + below.unwrap_or(0)
}

fn tagged(place: Place, tag: &str) -> SyntaxError {
    SyntaxError::new(
        place,
        format!("the tag `!{}` means nothing here", tag.escape_debug()),
        "remove it; quotes make a text",
    )
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Value::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Value::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN),
        _ => number(text).unwrap_or_else(|| Value::Text(text.to_owned())),
    }
}

fn number(text: &str) -> Option<Value> {
    if let Some(digits) = text.strip_prefix("0x") {
        return i64::from_str_radix(digits, 16)
            .ok()
            .filter(|_| is_digits(digits))
            .map(Value::Integer);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return i64::from_str_radix(digits, 8)
            .ok()
            .filter(|_| is_digits(digits))
            .map(Value::Integer);
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte))
        && digits.bytes().any(|byte| byte.is_ascii_digit())
        && digits.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    if !is_number {
        return None;
    }
    text.parse().map(Value::Integer).or_else(|_| text.parse().map(Value::Float)).ok()
}

fn is_digits(text: &str) -> bool {
    !text.starts_with(['-', '+'])
}

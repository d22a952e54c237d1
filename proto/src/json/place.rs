//! Turns a position in a JSON text into the path of the value there, and removes values from error
//! texts. Works on broken JSON too: it only looks at quotes, brackets, commas and colons.

/// One open object or array.
enum Level {
    /// The key that was read last.
    Object(String),
    /// The number of the current element.
    Array(usize),
}

/// Path of the value that a reader had reached at `line` and `column` (both from 1).
pub(super) fn at(text: &str, line: usize, column: usize) -> String {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let end = before.saturating_add(column).min(text.len());
    path(&text.as_bytes()[..end])
}

fn path(bytes: &[u8]) -> String {
    let mut levels: Vec<Level> = Vec::new();
    // Whether a string that comes now is a key.
    let mut key_expected = false;
    let mut position = 0;
    while let Some(byte) = bytes.get(position) {
        position += 1;
        match byte {
            b'{' => {
                levels.push(Level::Object(String::new()));
                key_expected = true;
            }
            b'[' => {
                levels.push(Level::Array(0));
                key_expected = false;
            }
            // The reader may stop behind the bracket that ends the value of the error.
            b'}' | b']' if position < bytes.len() => {
                levels.pop();
                key_expected = false;
            }
            b':' => key_expected = false,
            b',' => match levels.last_mut() {
                Some(Level::Array(index)) => *index += 1,
                Some(Level::Object(_)) => key_expected = true,
                None => {}
            },
            b'"' => {
                let start = position;
                position = end_of_string(bytes, start);
                if key_expected && let Some(Level::Object(key)) = levels.last_mut() {
                    let end = position.saturating_sub(1).max(start);
                    *key = String::from_utf8_lossy(&bytes[start..end]).into_owned();
                }
            }
            _ => {}
        }
    }
    print(&levels)
}

/// Position behind the closing quote of the string that begins at `start`.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut position = start;
    while let Some(byte) = bytes.get(position) {
        position += match byte {
            b'\\' => 2,
            b'"' => return position + 1,
            _ => 1,
        };
    }
    bytes.len()
}

fn print(levels: &[Level]) -> String {
    let mut path = String::new();
    for level in levels {
        match level {
            Level::Object(key) if key.is_empty() => {}
            Level::Object(key) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
            }
            Level::Array(index) => {
                path.push('[');
                path.push_str(&index.to_string());
                path.push(']');
            }
        }
    }
    path
}

/// Removes the text between double quotes, where errors repeat values. Enum values and field names
/// stand in single quotes; only field names are kept.
pub(super) fn without_values(problem: &str) -> String {
    if problem.starts_with("unrecognized enum value") {
        return "unrecognized enum value".to_owned();
    }
    let mut text = String::new();
    let mut characters = problem.chars();
    while let Some(character) = characters.next() {
        text.push(character);
        if character == '"' {
            text.push('…');
            while let Some(inside) = characters.next() {
                match inside {
                    '\\' => drop(characters.next()),
                    '"' => break,
                    _ => {}
                }
            }
            text.push('"');
        }
    }
    text
}

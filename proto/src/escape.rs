//! Names as parts of paths and of the keys of records, so that no name reaches what is another's.

/// Whether a byte of a name stands in a path, or in the key of a record, as it is.
#[must_use]
pub fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._+".contains(&byte)
}

/// A part of a path, or of the key of a record: letters, digits and `-._+` as they are, other bytes
/// as `%XX`.
#[must_use]
pub fn escaped(part: &str) -> String {
    let mut escaped = String::with_capacity(part.len());
    for byte in part.bytes() {
        if is_plain(byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push('%');
            escaped.extend(hex_digits(byte));
        }
    }
    escaped
}

/// The name that [`escaped`] made a part of; `None` where it made no such part.
#[must_use]
pub fn unescaped(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let value = digit(rest.next())? * 16 + digit(rest.next())?;
                u8::try_from(value).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

fn hex_digits(byte: u8) -> [char; 2] {
    [byte >> 4, byte & 15].map(|digit| {
        char::from_digit(digit.into(), 16).map_or('0', |digit| digit.to_ascii_uppercase())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_part_of_a_path_and_comes_back_from_it() {
        for (name, part) in [
            ("echo-2.x_y", "echo-2.x_y"),
            ("a/b c", "a%2Fb%20c"),
            ("../é", "..%2F%C3%A9"),
            ("%2F", "%252F"),
            ("", ""),
        ] {
            assert_eq!(escaped(name), part);
            assert_eq!(unescaped(part).as_deref(), Some(name));
        }
    }

    #[test]
    fn no_name_has_a_part_that_is_torn() {
        for part in ["%", "%4", "%zz", "%FF", "a%2"] {
            assert_eq!(unescaped(part), None, "{part}");
        }
    }
}

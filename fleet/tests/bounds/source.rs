//! Reads the value of a bound, and whether a test exists, from the text of a source.

/// The value of a constant, or of a field where a default is written, for people.
pub(crate) fn value(source: &str, name: &str) -> Result<String, String> {
    let expression = constant(source, name).or_else(|| field(source, name));
    let expression = expression.ok_or_else(|| format!("there is no `{name}`"))?;
    shown(expression, name).ok_or_else(|| format!("`{name}` has no value here: {expression}"))
}

/// Whether there is a test, or a law of a ledger, of this name.
pub(crate) fn is_test(source: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    source.find(&function).is_some_and(|at| {
        let before = &source[..at];
        let is_law = before.ends_with("pub async ") && source.contains("SharedLedger");
        let lines: Vec<&str> = before.lines().rev().take(3).collect();
        is_law
            || lines.iter().any(|line| line.contains("#[test]") || line.contains("#[tokio::test"))
    })
}

fn constant<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let at = source.find(&format!("const {name}: "))?;
    let rest = &source[at..];
    let (_, expression) = rest.split_once(" = ")?;
    expression.split_once(';').map(|(expression, _)| expression.trim())
}

/// A field that is given a number, a duration or a rate.
fn field<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let key = format!("{name}: ");
    source.match_indices(&key).find_map(|(at, _)| {
        let is_whole = !source[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest = &source[at + key.len()..];
        let rest = rest.strip_prefix("Some(").unwrap_or(rest);
        let end = if rest.starts_with("Rate {") {
            rest.find('}')? + 1
        } else {
            rest.find([',', '\n', '}'])?
        };
        let expression = rest[..end].trim();
        let is_value = expression.starts_with(|c: char| c.is_ascii_digit())
            || expression.starts_with("Duration::from_")
            || expression.starts_with("Rate {");
        (is_whole && is_value).then_some(expression)
    })
}

fn shown(expression: &str, name: &str) -> Option<String> {
    if let Some(rate) = expression.strip_prefix("Rate {") {
        let mut numbers = rate.split(['{', '}', ',']).filter_map(|part| {
            let number = part.split_once(": ")?.1.trim().strip_suffix(".0")?;
            number.parse().ok()
        });
        let (per_second, burst) = (numbers.next()?, numbers.next()?);
        return Some(format!("{} in a second, {} at once", grouped(per_second), grouped(burst)));
    }
    let expression = expression.strip_prefix("std::time::").unwrap_or(expression);
    if let Some(duration) = expression.strip_prefix("Duration::from_") {
        let (unit, number) = duration.strip_suffix(')')?.split_once('(')?;
        let factor = match unit {
            "secs" => 1000,
            "millis" => 1,
            _ => return None,
        };
        return Some(time(number_of(number)? * factor));
    }
    let number = number_of(expression)?;
    Some(if name.contains("BYTES") || name.contains("bytes") || name == "ROOM" {
        bytes(number)
    } else if name == "REPEAT_AFTER" {
        time(number * 1000)
    } else {
        grouped(number)
    })
}

/// A number, a shift to the left, or a product.
fn number_of(expression: &str) -> Option<u64> {
    if let Some((left, right)) = expression.split_once("<<") {
        return Some(number_of(left)? << number_of(right)?);
    }
    let mut product = 1u64;
    for factor in expression.split('*') {
        let digits: String = factor.trim().chars().filter(|c| *c != '_').collect();
        product = product.checked_mul(digits.parse().ok()?)?;
    }
    Some(product)
}

fn bytes(number: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if number >= 1 << shift && number.trailing_zeros() >= shift {
            return format!("{} {unit}", grouped(number >> shift));
        }
    }
    format!("{} bytes", grouped(number))
}

fn time(millis: u64) -> String {
    for (unit, length) in [("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)] {
        if millis >= 2 * length && millis.is_multiple_of(length) {
            return format!("{} {unit}", grouped(millis / length));
        }
    }
    if millis >= 1000 {
        format!("{}.{} s", millis / 1000, millis % 1000 / 100)
    } else {
        format!("{millis} ms")
    }
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

//! The grammar of selectors: a hand-written descent over bounded text.

use std::fmt;

use super::expression::{DEPTH, Expression, STEPS, TEXT_BYTES};

/// Why a text is not a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Column of the first character that does not fit, from 1.
    pub column: usize,
    /// What is wrong there.
    pub problem: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Quoted(String),
    Sign(&'static str),
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    end: usize,
}

const SIGNS: [&str; 5] = ["!=", "=", "(", ")", ","];
/// Words that cannot be keys without quotes around them, which keys cannot have.
const RESERVED: [&str; 6] = ["and", "or", "not", "in", "exists", "all"];

pub(super) fn parse(text: &str) -> Result<Expression, ParseError> {
    if text.len() > TEXT_BYTES {
        return Err(ParseError {
            column: TEXT_BYTES,
            problem: format!("it is longer than {TEXT_BYTES} bytes"),
        });
    }
    let mut parser =
        Parser { tokens: tokens(text)?, next: 0, end: text.trim_end().chars().count() + 1 };
    let expression = parser.any(DEPTH)?;
    match parser.peek() {
        None => Ok(expression),
        Some(_) => Err(parser.error("`and`, `or` or the end is expected")),
    }
}

fn tokens(text: &str) -> Result<Vec<(usize, Token)>, ParseError> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let column = text[..text.len() - rest.len()].chars().count() + 1;
        let Some(first) = rest.chars().next() else { return Ok(tokens) };
        let (token, length) = if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign))
        {
            (Token::Sign(sign), sign.len())
        } else if let Some(quoted) = rest.strip_prefix('"') {
            let Some(end) = quoted.find('"') else {
                return Err(ParseError { column, problem: "the quote is never closed".to_owned() });
            };
            (Token::Quoted(quoted[..end].to_owned()), end + 2)
        } else {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            if end == 0 {
                return Err(ParseError {
                    column,
                    problem: format!(
                        "{first:?} stands for nothing; put a value with it in double quotes"
                    ),
                });
            }
            (Token::Word(rest[..end].to_owned()), end)
        };
        tokens.push((column, token));
        rest = &rest[length..];
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._/:-".contains(c)
}

// === impl Parser ===

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next).map(|(_, token)| token)
    }

    fn error(&self, problem: impl Into<String>) -> ParseError {
        let column = self.tokens.get(self.next).map_or(self.end, |(column, _)| *column);
        ParseError { column, problem: problem.into() }
    }

    fn takes_word(&mut self, word: &str) -> bool {
        let is_it = matches!(self.peek(), Some(Token::Word(found)) if found == word);
        self.next += usize::from(is_it);
        is_it
    }

    fn takes_sign(&mut self, sign: &str) -> bool {
        let is_it = matches!(self.peek(), Some(Token::Sign(found)) if *found == sign);
        self.next += usize::from(is_it);
        is_it
    }

    fn expect_sign(&mut self, sign: &str) -> Result<(), ParseError> {
        if self.takes_sign(sign) {
            Ok(())
        } else {
            Err(self.error(format!("`{sign}` is expected")))
        }
    }

    fn any(&mut self, depth: usize) -> Result<Expression, ParseError> {
        let mut terms = vec![self.every(depth)?];
        while self.takes_word("or") {
            terms.push(self.every(depth)?);
        }
        Ok(joined(terms, Expression::Or))
    }

    fn every(&mut self, depth: usize) -> Result<Expression, ParseError> {
        let mut terms = vec![self.one(depth)?];
        while self.takes_word("and") {
            terms.push(self.one(depth)?);
        }
        Ok(joined(terms, Expression::And))
    }

    fn one(&mut self, depth: usize) -> Result<Expression, ParseError> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.error(format!("it is nested deeper than {DEPTH}")));
        };
        if self.takes_word("not") {
            return Ok(Expression::Not(Box::new(self.one(depth)?)));
        }
        if self.takes_sign("(") {
            let inner = self.any(depth)?;
            self.expect_sign(")")?;
            return Ok(inner);
        }
        self.term()
    }

    fn term(&mut self) -> Result<Expression, ParseError> {
        if self.takes_word("all") {
            return Ok(Expression::All);
        }
        let is_call = matches!(self.tokens.get(self.next + 1), Some((_, Token::Sign("("))));
        if is_call && self.takes_word("percent") {
            return self.percent();
        }
        let key = match self.peek() {
            Some(Token::Word(word)) if !RESERVED.contains(&word.as_str()) => word.clone(),
            _ => {
                return Err(
                    self.error("the key of a label, `not`, `all`, `percent(…)` or `(` is expected")
                );
            }
        };
        self.next += 1;
        if self.takes_word("exists") {
            return Ok(Expression::Exists(key));
        }
        if self.takes_sign("=") {
            return Ok(Expression::Is(key, self.value()?));
        }
        if self.takes_sign("!=") {
            return Ok(Expression::IsNot(key, self.value()?));
        }
        if self.takes_word("in") {
            self.expect_sign("(")?;
            let mut values = vec![self.value()?];
            while self.takes_sign(",") {
                values.push(self.value()?);
            }
            self.expect_sign(")")?;
            return Ok(Expression::In(key, values));
        }
        Err(self.error("`=`, `!=`, `in (…)` or `exists` is expected"))
    }

    fn value(&mut self) -> Result<String, ParseError> {
        let value = match self.peek() {
            Some(Token::Word(word)) => word.clone(),
            Some(Token::Quoted(text)) => text.clone(),
            _ => return Err(self.error("a value is expected")),
        };
        self.next += 1;
        Ok(value)
    }

    fn percent(&mut self) -> Result<Expression, ParseError> {
        self.expect_sign("(")?;
        let place = self.error("a number from 0 to 100, with at most two decimals, is expected");
        let steps = hundredths(&self.value()?).filter(|steps| *steps <= STEPS).ok_or(place)?;
        self.expect_sign(",")?;
        let salt = self.value()?;
        self.expect_sign(")")?;
        Ok(Expression::Percent(steps, salt))
    }
}

/// `12.5` as 1250.
fn hundredths(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty()
        || decimals.len() > 2
        || !text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    {
        return None;
    }
    let decimals: u64 = format!("{decimals:0<2}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(100)?.checked_add(decimals)
}

fn joined(mut terms: Vec<Expression>, join: fn(Vec<Expression>) -> Expression) -> Expression {
    match terms.len() {
        1 => terms.remove(0),
        _ => join(terms),
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.problem)
    }
}

impl std::error::Error for ParseError {}

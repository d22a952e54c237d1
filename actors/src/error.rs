//! One way to print an error with everything that caused it.

use std::error::Error;
use std::fmt;

/// Prints an error and its causes on one line: `what: why: because`.
///
/// Errors of this project never print their own source, so no text is printed twice.
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

//! The answer to a health check or a question.

/// A code and lines of text: the health of a plugin, or its answer to a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginStatus {
    /// Zero is healthy. Anything else is unhealthy but alive; the plugin defines the numbers.
    pub code: i32,
    /// Lines for people that explain the code, or the answer to a question.
    pub results: Vec<String>,
}

// === impl PluginStatus ===

impl PluginStatus {
    /// Healthy: code 0 without lines.
    pub fn healthy() -> PluginStatus {
        PluginStatus::default()
    }

    /// Unhealthy: a code other than zero and the reason. Code 0 would mean healthy and becomes 1.
    pub fn unhealthy(code: i32, reason: impl Into<String>) -> PluginStatus {
        let code = if code == 0 { 1 } else { code };
        PluginStatus { code, results: vec![reason.into()] }
    }

    /// Code 0 and one line: the answer to a question.
    pub fn answer(text: impl Into<String>) -> PluginStatus {
        PluginStatus::healthy().with_line(text)
    }

    /// This status with one more line.
    #[must_use]
    pub fn with_line(mut self, line: impl Into<String>) -> PluginStatus {
        self.results.push(line.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unhealthy_is_never_code_zero() {
        assert_eq!(PluginStatus::unhealthy(0, "disk full").code, 1);
        assert_eq!(PluginStatus::unhealthy(-7, "disk full").code, -7);
    }

    #[test]
    fn an_answer_is_healthy_and_has_its_lines_in_order() {
        let status = PluginStatus::answer("one").with_line("two");
        assert_eq!(status.code, 0);
        assert_eq!(status.results, ["one", "two"]);
    }
}

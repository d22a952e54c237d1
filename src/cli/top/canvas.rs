//! Colours and rows of a terminal, with which the parts of a picture are drawn.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;

use super::super::console::Tone;

/// Whether there are colours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    colour: bool,
}

// === impl Theme ===

impl Theme {
    pub(crate) fn new(colour: bool) -> Self {
        Self { colour }
    }

    pub(crate) fn style(self, tone: Tone) -> Style {
        let colour = match tone {
            Tone::Plain => return Style::new(),
            Tone::Bad if !self.colour => return Style::new().add_modifier(Modifier::BOLD),
            Tone::Good | Tone::Busy | Tone::Quiet if !self.colour => return Style::new(),
            Tone::Good => Color::Green,
            Tone::Busy => Color::Yellow,
            Tone::Bad => Color::Red,
            Tone::Quiet => Color::DarkGray,
        };
        Style::new().fg(colour)
    }

    pub(crate) fn heading(self) -> Style {
        self.style(Tone::Plain).add_modifier(Modifier::BOLD)
    }
}

/// Draws as many lines as fit from the top of an area, and removes their rows from `rest`.
pub(crate) fn draw(lines: &[Line<'_>], area: Rect, rest: &mut Rect, buffer: &mut Buffer) {
    for (line, y) in lines.iter().zip(area.top()..area.bottom()) {
        buffer.set_line(area.x, y, line, area.width);
        rest.y = y + 1;
        rest.height = area.bottom() - rest.y;
    }
}

pub(crate) fn take_top(rest: &mut Rect, rows: u16) -> Rect {
    Rect { height: rows.min(rest.height), ..*rest }
}

pub(crate) fn take_bottom(rest: &mut Rect, rows: u16) -> Rect {
    let rows = rows.min(rest.height);
    rest.height -= rows;
    Rect { y: rest.bottom(), height: rows, ..*rest }
}

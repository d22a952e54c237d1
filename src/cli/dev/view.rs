//! Shows the work: a line for everything where the output is no terminal, else one screen.

use std::io;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line as Row, Span};

use super::keys::HELP;
use super::model::{Line, Model, debugger, state};
use crate::cli::console::{Console, Tone};
use crate::cli::top::canvas::{Theme, draw, take_bottom, take_top};
use crate::cli::top::screen::Screen;
use crate::display::{state_tone, values};

/// Where it is shown.
pub(super) enum View<'a, 'c> {
    /// Lines, as they come.
    Lines(&'a mut Console<'c>),
    /// A screen, which is drawn anew.
    Screen(Screen, Theme),
}

// === impl View ===

impl View<'_, '_> {
    /// Shows a line that is new.
    pub(super) fn line(&mut self, line: &Line) -> io::Result<()> {
        let Self::Lines(console) = self else { return Ok(()) };
        let voice = console.paint(Tone::Quiet, &format!("{:<6}", line.voice.word()));
        let text = console.paint(line.tone, &line.text);
        console.text(&format!("{voice} {text}\n"))
    }

    /// Shows everything.
    pub(super) fn draw(&mut self, model: &Model) -> io::Result<()> {
        match self {
            Self::Lines(_) => Ok(()),
            Self::Screen(screen, theme) => {
                screen.draw(|area, buffer| picture(model, *theme, area, buffer))
            }
        }
    }
}

/// The screen: how the plugin is, how the work on it ended, the last lines, the keys.
pub(super) fn picture(model: &Model, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let mut rest = area;
    let status = model.status.as_ref();
    let tone = status.map_or(Tone::Quiet, |status| state_tone(values::state(status)));
    let mut head = vec![Row::from(vec![
        Span::styled(format!("{}  ", model.name), theme.heading()),
        Span::styled(state(status), theme.style(tone)),
    ])];
    if let Some(pid) = status.and_then(|status| status.pid) {
        head.push(Row::styled(debugger(pid), theme.style(Tone::Quiet)));
    }
    head.push(match (&model.stage, &model.verdict) {
        (Some(stage), _) => Row::styled(format!("{stage} …"), theme.style(Tone::Busy)),
        (None, Some((tone, text))) => Row::styled(text.as_str(), theme.style(*tone)),
        (None, None) => Row::default(),
    });
    head.push(Row::default());
    draw(&head, take_top(&mut rest, u16::MAX), &mut rest, buffer);
    let keys = take_bottom(&mut rest, 1);
    draw(&[Row::styled(HELP, theme.style(Tone::Quiet))], keys, &mut keys.clone(), buffer);
    let shown = usize::from(rest.height).min(model.lines.len());
    let lines: Vec<Row<'_>> = model
        .lines
        .iter()
        .skip(model.lines.len() - shown)
        .map(|line| {
            Row::from(vec![
                Span::styled(format!("{:<6} ", line.voice.word()), theme.style(Tone::Quiet)),
                Span::styled(line.text.as_str(), theme.style(line.tone)),
            ])
        })
        .collect();
    draw(&lines, rest, &mut rest.clone(), buffer);
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::local::PluginStatus;

    use super::super::model::Update;
    use super::*;

    fn shown(model: &Model, width: u16, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        picture(model, Theme::new(false), area, &mut buffer);
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| row(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn one_screen_has_the_state_the_verdict_the_last_lines_and_the_keys() {
        let mut model = Model::new("greeter".to_owned());
        let status = PluginStatus {
            state: "RUNNING".to_owned(),
            revision: "ab12".to_owned(),
            pid: Some(77),
            ..PluginStatus::default()
        };
        model.update(Update::Status(Some(Box::new(status))));
        for number in 0..20 {
            model.update(Update::Printed(format!("line {number}")));
        }
        model.ended(&Ok("revision ab12 is RUNNING".to_owned()));
        let rows = shown(&model, 100, 10);
        assert_eq!(rows[0], "greeter  RUNNING, revision ab12, pid 77");
        assert!(rows[1].contains("gdb -p 77") && rows[1].contains("dlv attach 77"), "{rows:#?}");
        assert_eq!(rows[2], "revision ab12 is RUNNING");
        assert_eq!(rows[4], "plugin line 16");
        assert_eq!(rows[8], "dev    revision ab12 is RUNNING");
        assert!(rows[9].starts_with("b build  r restart"), "{rows:#?}");
        // A window of any size has room for a part of it.
        for (width, height) in [(1, 1), (10, 2), (40, 5), (200, 60)] {
            let _rows = shown(&model, width, height);
        }
    }
}

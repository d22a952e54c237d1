//! The terminal: the program takes it over, draws on it, and restores it however it ends.

use std::io::{self, Stdout};
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use tokio::sync::mpsc;

use super::model::Key;

/// How often the thread that reads keys checks whether the receiver still exists.
const BEAT: Duration = Duration::from_millis(100);

/// The terminal in raw mode, on its alternate screen. Dropping this restores it.
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

// === impl Screen ===

impl Screen {
    /// Takes the terminal over. A panic restores it before the panic message is printed.
    pub(crate) fn open() -> io::Result<Self> {
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        Ok(Self { terminal })
    }

    /// Draws one picture, over all of the terminal as large as it is now.
    pub(crate) fn draw(&mut self, view: impl FnOnce(Rect, &mut Buffer)) -> io::Result<()> {
        self.terminal.draw(|frame| view(frame.area(), frame.buffer_mut()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Receives the keys that are pressed from now on. The channel closes when the terminal is gone.
pub(crate) fn keys(waiting_max: usize) -> io::Result<mpsc::Receiver<Key>> {
    let (tell, pressed) = mpsc::channel(waiting_max);
    std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
        while !tell.is_closed() {
            let key = match event::poll(BEAT) {
                Ok(false) => continue,
                Ok(true) => event::read().ok().map(key),
                Err(_) => None,
            };
            match key {
                Some(Some(key)) if tell.blocking_send(key).is_err() => return,
                Some(_) => {}
                None => return,
            }
        }
    })?;
    Ok(pressed)
}

/// The meaning of a key; `None` for a key without a meaning.
fn key(event: Event) -> Option<Key> {
    match event {
        Event::Key(KeyEvent { kind: KeyEventKind::Release, .. }) => None,
        Event::Key(KeyEvent { code, modifiers, .. }) => {
            if modifiers.contains(KeyModifiers::CONTROL) {
                return match code {
                    KeyCode::Char('c' | 'd') => Some(Key::Interrupt),
                    KeyCode::Char('l') => Some(Key::Resized),
                    _ => None,
                };
            }
            match code {
                KeyCode::Char(c) => Some(Key::Char(c)),
                KeyCode::Up => Some(Key::Up),
                KeyCode::Down => Some(Key::Down),
                KeyCode::PageUp => Some(Key::PageUp),
                KeyCode::PageDown => Some(Key::PageDown),
                KeyCode::Home => Some(Key::Home),
                KeyCode::End => Some(Key::End),
                KeyCode::Enter => Some(Key::Enter),
                KeyCode::Esc => Some(Key::Escape),
                KeyCode::Backspace => Some(Key::Backspace),
                _ => None,
            }
        }
        Event::Resize(..) => Some(Key::Resized),
        _ => None,
    }
}

//! The terminal, while a command has the whole of it: given back however the command ends.

use std::time::Duration;

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Frame};
use tokio::sync::mpsc;

use super::Wish;

/// Keys that nobody has looked at yet; who types more waits.
const WAITING: usize = 64;
/// How often it is seen that nobody listens any more.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A terminal in raw mode with another screen; a panic gives it back too.
pub(crate) struct Screen(DefaultTerminal);

impl Screen {
    /// Takes it.
    ///
    /// # Errors
    /// No terminal.
    pub(crate) fn take() -> std::io::Result<Self> {
        Ok(Self(ratatui::try_init()?))
    }

    /// Shows a frame, of which only what has changed is written.
    ///
    /// # Errors
    /// A terminal that has gone.
    pub(crate) fn show(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> std::io::Result<()> {
        self.0.draw(draw).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// What is typed, and `None` where the terminal has another size. Ends with the terminal.
pub(crate) fn wishes() -> mpsc::Receiver<Option<Wish>> {
    let (send, typed) = mpsc::channel(WAITING);
    std::thread::spawn(move || {
        while !send.is_closed() {
            let told = match event::poll(LOOK_EVERY) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let wish = match told {
                Ok(Event::Key(key)) => match wish(key) {
                    None => continue,
                    wish => wish,
                },
                Ok(Event::Resize(..)) => None,
                Ok(_) => continue,
                Err(_) => return,
            };
            if send.blocking_send(wish).is_err() {
                return;
            }
        }
    });
    typed
}

fn wish(key: KeyEvent) -> Option<Wish> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if is_control => Some(Wish::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Wish::Quit),
        KeyCode::Up | KeyCode::Char('k') => Some(Wish::Up),
        KeyCode::Down | KeyCode::Char('j') => Some(Wish::Down),
        KeyCode::Left => Some(Wish::Left),
        KeyCode::Right | KeyCode::Char('s') => Some(Wish::Right),
        KeyCode::Char('r') => Some(Wish::Reverse),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_wishes() {
        let check = |code, modifiers, want| assert_eq!(wish(KeyEvent::new(code, modifiers)), want);
        check(KeyCode::Char('q'), KeyModifiers::NONE, Some(Wish::Quit));
        check(KeyCode::Char('c'), KeyModifiers::CONTROL, Some(Wish::Quit));
        check(KeyCode::Char('c'), KeyModifiers::NONE, None);
        check(KeyCode::Down, KeyModifiers::NONE, Some(Wish::Down));
        check(KeyCode::Char('r'), KeyModifiers::NONE, Some(Wish::Reverse));
        check(KeyCode::F(1), KeyModifiers::NONE, None);
    }
}

//! `aqueduct top`: a cluster at work, for as long as somebody looks.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use aqueduct_core::Refusal;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::TopArgs;
use crate::lines;
use crate::top::Top;
use crate::top::look::Look;
use crate::top::screen;
use crate::top::terminal::{Screen, wishes};

/// A frame that no terminal bounds.
const FRAME: (u16, u16) = (120, 60);

/// Looks once, or until somebody has seen enough.
///
/// # Errors
/// What the server refuses at first, or its silence; no terminal.
pub(crate) async fn run(args: TopArgs) -> anyhow::Result<()> {
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if !args.once && !is_terminal {
        let bound = "a terminal; --once shows one frame without one";
        return Err(Refusal::new("stdout", "no terminal", bound).into());
    }
    let client = args.server.connect().await?;
    let mut top = Top::of(args.server.name()?);
    top.take(Ok(Look::at(&client, None, BTreeMap::new()).await?));
    if args.once {
        return Ok(lines::say(&screen::text(&top, FRAME.0, FRAME.1))?);
    }
    let look_after =
        async |pause: Duration, (chosen, first): (Option<String>, BTreeMap<String, f64>)| {
            tokio::time::sleep(pause).await;
            Look::at(&client, chosen, first).await.map_err(|error| error.to_string())
        };
    let known = |top: &Top| {
        let first = top.look.as_ref().map(|look| look.first_seconds.clone());
        (top.chosen_id(), first.unwrap_or_default())
    };
    let mut terminated = signal(SignalKind::terminate())?;
    let mut screen = Screen::take()?;
    let mut typed = wishes();
    let mut looking = Box::pin(look_after(args.interval(), known(&top)));
    loop {
        screen.show(|frame| screen::draw_on(frame, &top))?;
        tokio::select! {
            seen = &mut looking => {
                top.take(seen);
                looking = Box::pin(look_after(args.interval(), known(&top)));
            }
            wish = typed.recv() => match wish {
                Some(None) => {} // another size
                Some(Some(wish)) if top.wish(wish) => {
                    looking = Box::pin(look_after(Duration::ZERO, known(&top)));
                }
                Some(Some(_)) | None => return Ok(()),
            },
            _ = terminated.recv() => return Ok(()),
        }
    }
}

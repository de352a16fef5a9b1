//! What `aqueduct top` knows of a cluster between two looks: what was seen last, how quickly it
//! changes, which request somebody looks at, and in which order.

pub(crate) mod look;
pub(crate) mod screen;
pub(crate) mod terminal;

use std::cmp::Ordering;

use aqueduct_client::operator::RequestEntry;

use self::look::Look;

/// The order of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Order {
    #[default]
    Arrival,
    State,
    Prompt,
    Tokens,
    Gap,
}

impl Order {
    const ALL: [Self; 5] = [Self::Arrival, Self::State, Self::Prompt, Self::Tokens, Self::Gap];

    /// The heading of what it goes by.
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Self::Arrival => "ID",
            Self::State => "STATE",
            Self::Prompt => "PROMPT",
            Self::Tokens => "TOKENS",
            Self::Gap => "GAP",
        }
    }

    fn step(self, by: usize) -> Self {
        let at = Self::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Self::ALL[(at + by) % Self::ALL.len()]
    }
}

/// What somebody at the keyboard wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Up,
    Down,
    Left,
    Right,
    Reverse,
    Quit,
}

/// All that the screen is drawn from.
#[derive(Debug, Default)]
pub(crate) struct Top {
    /// Which server is asked.
    pub(crate) server: String,
    pub(crate) look: Option<Look>,
    /// The one before it, of the same coordinator.
    before: Option<Look>,
    /// Why there was no answer at last.
    pub(crate) trouble: Option<String>,
    pub(crate) order: Order,
    pub(crate) is_reversed: bool,
    chosen: Option<String>,
}

impl Top {
    /// Of a server that was not looked at yet.
    pub(crate) fn of(server: String) -> Self {
        Self { server, ..Self::default() }
    }

    /// What was seen, or why nothing was.
    pub(crate) fn take(&mut self, seen: Result<Look, String>) {
        match seen {
            Ok(look) => {
                let last = self.look.replace(look);
                let now = self.look.as_ref().map_or(0.0, |look| look.cluster.uptime_seconds);
                // Another coordinator counts from its own start.
                self.before = last.filter(|last| last.cluster.uptime_seconds < now);
                self.trouble = None;
            }
            Err(trouble) => self.trouble = Some(trouble),
        }
    }

    /// Requests in the order that was chosen.
    pub(crate) fn requests(&self) -> Vec<&RequestEntry> {
        let Some(look) = &self.look else { return Vec::new() };
        let mut requests: Vec<_> = look.requests.iter().collect();
        let most = |a: f64, b: f64| b.partial_cmp(&a).unwrap_or(Ordering::Equal);
        let gap = |it: &RequestEntry| look.gap_seconds(it).unwrap_or(0.0);
        requests.sort_by(|a, b| match self.order {
            Order::Arrival => a.id.cmp(&b.id),
            Order::State => a.state.cmp(&b.state),
            Order::Prompt => b.prompt_tokens.cmp(&a.prompt_tokens),
            Order::Tokens => b.output_tokens.cmp(&a.output_tokens),
            Order::Gap => most(gap(a), gap(b)),
        });
        if self.is_reversed {
            requests.reverse();
        }
        requests
    }

    /// Which of them is looked at: the one that was chosen, else the first.
    pub(crate) fn chosen(&self) -> Option<usize> {
        let requests = self.requests();
        let found = requests.iter().position(|it| Some(&it.id) == self.chosen.as_ref());
        found.or((!requests.is_empty()).then_some(0))
    }

    /// Its id.
    pub(crate) fn chosen_id(&self) -> Option<String> {
        self.chosen().map(|idx| self.requests()[idx].id.clone())
    }

    /// Does what somebody wants; whether they go on looking.
    pub(crate) fn wish(&mut self, wish: Wish) -> bool {
        match wish {
            Wish::Quit => return false,
            Wish::Right => self.order = self.order.step(1),
            Wish::Left => self.order = self.order.step(Order::ALL.len() - 1),
            Wish::Reverse => self.is_reversed = !self.is_reversed,
            Wish::Up | Wish::Down => {
                let requests = self.requests();
                let at = self.chosen().unwrap_or(0);
                let to = if wish == Wish::Up { at.saturating_sub(1) } else { at + 1 };
                let to = requests.get(to.min(requests.len().saturating_sub(1)));
                self.chosen = to.map(|request| request.id.clone());
            }
        }
        true
    }

    /// How much `what` grows in a second, once that is known.
    pub(crate) fn rate(&self, what: impl Fn(&Look) -> u64) -> Option<f64> {
        let (now, before) = (self.look.as_ref()?, self.before.as_ref()?);
        let seconds = now.cluster.uptime_seconds - before.cluster.uptime_seconds;
        let grown = what(now).checked_sub(what(before))?;
        (seconds > 0.0).then(|| grown as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::look::recorded;

    fn ids(top: &Top) -> Vec<String> {
        top.requests().iter().map(|it| it.id.clone()).collect()
    }

    #[test]
    fn orders_and_choices_follow_the_keys() {
        let mut top = Top::of("http://c1:7070".into());
        assert!(top.wish(Wish::Down), "nothing to choose from yet");
        top.take(Ok(recorded(10.0)));
        assert_eq!(ids(&top), ["r1", "r2", "r3"]);
        assert_eq!(top.chosen_id().as_deref(), Some("r1"));
        top.wish(Wish::Down);
        assert_eq!(top.chosen_id().as_deref(), Some("r2"));
        assert!((0..5).all(|_| top.wish(Wish::Down)));
        assert_eq!(top.chosen_id().as_deref(), Some("r3"));
        top.wish(Wish::Reverse);
        assert_eq!(
            (ids(&top), top.chosen()),
            (vec!["r3".into(), "r2".into(), "r1".into()], Some(0))
        );
        top.wish(Wish::Left);
        assert_eq!(top.order, Order::Gap);
        for order in [Order::Arrival, Order::State, Order::Prompt] {
            top.wish(Wish::Right);
            assert_eq!(top.order, order);
        }
        top.wish(Wish::Reverse);
        assert_eq!(ids(&top), ["r2", "r1", "r3"], "the longest prompt comes first");
        assert!(!top.wish(Wish::Quit));
    }

    #[test]
    fn who_is_chosen_may_end_and_another_one_may_lead() {
        let mut top = Top::of("http://c1:7070".into());
        top.take(Ok(recorded(10.0)));
        assert!((0..2).all(|_| top.wish(Wish::Down)));
        let mut later = recorded(12.0);
        later.requests.pop();
        later.cluster.output_tokens += 30;
        top.take(Ok(later));
        assert_eq!(top.chosen_id().as_deref(), Some("r1"));
        assert_eq!(top.rate(|look| look.cluster.output_tokens), Some(15.0));
        top.take(Err("nobody".into()));
        assert!(top.look.is_some() && top.trouble.is_some());
        top.take(Ok(recorded(1.0)));
        assert_eq!(top.rate(|look| look.cluster.output_tokens), None);
        assert_eq!(top.trouble, None);
    }
}

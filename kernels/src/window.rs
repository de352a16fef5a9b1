//! Which of the positions before it a row sees, where a model bounds that.

/// A bound of a row's sight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// The last so many positions, its own among them: those above p - n  (sliding window).
    Last(u32),
    /// Those of its own block of so many, from ⌊p / n⌋ n on  (Meta 2025, Llama 4: chunked
    /// attention). Above 0.
    Block(u32),
}

impl Window {
    /// The first position that a row at `position` sees. It never falls as positions rise, so a key
    /// that a row does not see any more is seen by none behind it.
    pub fn first_seen(self, position: u32) -> u32 {
        match self {
            Self::Last(count) => (position + 1).saturating_sub(count),
            Self::Block(count) => position - position % count.max(1),
        }
    }

    /// Most positions before its own that a row sees, wherever it is.
    pub fn most_before(self) -> u32 {
        match self {
            Self::Last(count) | Self::Block(count) => count.saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sight_begins_at_a_position() {
        let check = |window: Window, want: [u32; 6]| {
            let seen: Vec<u32> = (0..6).map(|position| window.first_seen(position)).collect();
            assert_eq!(seen, want, "{window:?}");
            let most = (0..1000).map(|position| position - window.first_seen(position)).max();
            assert_eq!(most, Some(window.most_before().min(999)), "{window:?}");
        };
        check(Window::Last(1), [0, 1, 2, 3, 4, 5]);
        check(Window::Last(3), [0, 0, 0, 1, 2, 3]);
        check(Window::Last(u32::MAX), [0; 6]);
        check(Window::Block(1), [0, 1, 2, 3, 4, 5]);
        check(Window::Block(4), [0, 0, 0, 0, 4, 4]);
        check(Window::Block(100), [0; 6]);
    }
}

//! The links of one worker, one to each peer: opened when they are first needed, and anew when they
//! have closed.

use std::collections::BTreeMap;

use aqueduct_core::work::Peer;

/// What all kinds of links have in common.
pub(crate) trait Way {
    /// What goes over it.
    type Load;

    /// Takes a load; gives it back if it is full or has closed.
    fn take(&mut self, load: Self::Load) -> Result<(), Self::Load>;

    /// Whether it can be used further.
    fn is_open(&self) -> bool;

    /// Whether there is nothing more to be had of one that is not open.
    fn is_over(&self) -> bool;
}

/// A link to each peer that was ever sent anything and can still be.
pub(crate) struct Ways<L: ?Sized> {
    open: BTreeMap<Peer, Box<L>>,
    /// Those that take nothing any more, of which there may be something to be read.
    closing: Vec<Box<L>>,
}

impl<L: ?Sized> Default for Ways<L> {
    fn default() -> Self {
        Self { open: BTreeMap::new(), closing: Vec::new() }
    }
}

impl<L: Way + ?Sized> Ways<L> {
    /// Gives `load` to the link to `peer`, which `dial` opens if there is none.
    ///
    /// # Errors
    /// The load, when that link is full: it rings when it is not. One that has closed never does.
    pub(crate) fn send(
        &mut self,
        peer: &Peer,
        load: L::Load,
        dial: impl Fn() -> Box<L>,
    ) -> Result<(), L::Load> {
        self.offer(peer, load, &dial).or_else(|load| match self.is_open(peer) {
            true => Err(load),
            false => self.offer(peer, load, &dial), // it closed at this moment, as nothing was sent
        })
    }

    /// All of them, also those that have closed.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut L> {
        self.open.values_mut().chain(&mut self.closing).map(|link| &mut **link)
    }

    fn offer(
        &mut self,
        peer: &Peer,
        load: L::Load,
        dial: &impl Fn() -> Box<L>,
    ) -> Result<(), L::Load> {
        if !self.is_open(peer) {
            self.closing.extend(self.open.extract_if(.., |_, link| !link.is_open()).map(|it| it.1));
            self.closing.retain(|link| !link.is_over());
            self.open.insert(peer.clone(), dial());
        }
        match self.open.get_mut(peer) {
            Some(link) => link.take(load),
            None => Err(load),
        }
    }

    fn is_open(&self, peer: &Peer) -> bool {
        self.open.get(peer).is_some_and(|link| link.is_open())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A link that may close before it takes anything, and how much of it was not read yet.
    #[derive(Default)]
    struct Lane {
        is_closed: bool,
        closes: bool,
        room: usize,
        taken: Vec<u32>,
        unread: usize,
    }

    impl Way for Lane {
        type Load = u32;

        fn take(&mut self, load: u32) -> Result<(), u32> {
            self.is_closed |= self.closes;
            if self.is_closed || self.taken.len() == self.room {
                return Err(load);
            }
            self.taken.push(load);
            Ok(())
        }

        fn is_open(&self) -> bool {
            !self.is_closed
        }

        fn is_over(&self) -> bool {
            self.unread == 0
        }
    }

    fn peer(name: &str) -> Peer {
        Peer(format!("local://{name}"))
    }

    fn lane() -> Box<Lane> {
        Box::new(Lane { room: 1, ..Lane::default() })
    }

    /// A courier closes a link over which nothing has gone for a minute, also between the look at
    /// whether it is open and the offer. That is not a full one, which would ring.
    #[test]
    fn a_link_that_closes_while_it_is_offered_something_is_opened_anew() {
        let (mut ways, dials) = (Ways::<Lane>::default(), Cell::new(0));
        let dial = || {
            dials.set(dials.get() + 1);
            lane()
        };
        let idle = Lane { closes: true, unread: 1, ..Lane::default() };
        ways.open.insert(peer("idle"), Box::new(idle));
        assert_eq!(ways.send(&peer("idle"), 7, dial), Ok(()));
        assert_eq!(ways.open[&peer("idle")].taken, [7]);
        assert_eq!(ways.all().count(), 2, "of the one before there is something to be read");
        assert_eq!(ways.send(&peer("idle"), 8, dial), Err(8), "full");
        assert_eq!(dials.get(), 1);
    }

    #[test]
    fn a_closed_link_goes_when_all_of_it_was_read() {
        let mut ways = Ways::<Lane>::default();
        let closed = |unread| Box::new(Lane { is_closed: true, unread, ..Lane::default() });
        ways.open.insert(peer("silent"), closed(0));
        ways.open.insert(peer("late"), closed(1));
        let counts = |ways: &Ways<Lane>| (ways.open.len(), ways.closing.len());
        assert_eq!(ways.send(&peer("late"), 8, lane), Ok(()));
        assert_eq!(counts(&ways), (1, 1));
        ways.all().for_each(|link| link.unread = 0);
        assert_eq!(ways.send(&peer("other"), 9, lane), Ok(()));
        assert_eq!(counts(&ways), (2, 0));
    }
}

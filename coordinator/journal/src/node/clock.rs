//! What time it is by the journal: that of the latest record, and what has passed here since that
//! one was heard. Clocks of different machines may be hours apart, and what one of them writes down
//! has to mean the same to the next one; that they all run equally fast is enough for it.

use super::{Node, TICK_MS};

impl Node {
    /// In milliseconds since 1970, as whoever wrote first had it; `None`: nothing was written yet.
    /// It stands still while no member runs that has heard of it, and is never before the last
    /// record.
    pub fn clock_ms(&self) -> Option<u64> {
        self.clock_ms
    }

    /// So many ticks have passed.
    pub(super) fn pass_time(&mut self, ticks: u64) {
        let passed_ms = ticks.saturating_mul(TICK_MS);
        self.clock_ms = self.clock_ms.map(|now_ms| now_ms.saturating_add(passed_ms));
    }

    /// A record says what time it is, also where that is earlier than it is here: whoever leads
    /// may have been started again in a group that wrote nothing meanwhile, and what is accepted
    /// in its time must not be over in that of the next one. What came before says nothing new.
    pub(super) fn hear_time(&mut self) {
        let told_ms = self.state.clock_ms();
        if told_ms > self.told_ms {
            self.told_ms = told_ms;
            self.clock_ms = Some(told_ms);
        }
    }
}

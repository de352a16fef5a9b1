//! What the loop tells of itself, whenever something has happened.

use std::time::Instant;

use super::EventLoop;

impl EventLoop {
    pub(super) fn publish_stats(&mut self) {
        self.pace.look(self.plan.prefills(), Instant::now());
        self.stats.queued = self.plan.queued();
        self.stats.queued_tokens = self.plan.queued_tokens();
        self.stats.running = self.plan.running();
        self.stats.workers_up = self.orders.len();
        self.stats.snapshots = self.snapshots_held();
        self.stats.snapshots_of.clone_from(&self.keepers);
        self.stats.draining = self.needed();
        self.outputs.shown.stats.send_if_modified(|shown| {
            let changed = *shown != self.stats;
            shown.clone_from(&self.stats);
            changed
        });
    }
}

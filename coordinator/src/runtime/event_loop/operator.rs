//! What the loop answers to those who look after the cluster, between two events.

use std::collections::BTreeSet;

use aqueduct_core::{RequestId, WorkerId};
use aqueduct_plan::Event;
use aqueduct_proto::v1;

use super::super::history::{History, Past};
use super::super::live::Live;
use super::super::origins::Origins;
use super::super::status::Cluster;
use super::super::trail::Step;
use super::EventLoop;
use super::asks::Asks;

/// What is at hand for them.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// Requests that an operator is ending just now.
    pub(super) stopped: BTreeSet<RequestId>,
    /// Requests that have ended.
    pub(super) history: History,
    /// What snapshots were made of.
    pub(super) origins: Origins,
    /// Questions to workers.
    pub(super) asks: Asks,
}

/// Something that is asked of the loop, which says the answer to whoever asked.
pub(crate) type Inquiry = Box<dyn FnOnce(&mut EventLoop) + Send>;

/// Which requests are wanted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// In this state alone; empty for all.
    pub(crate) state: String,
    /// Those that have ended too.
    pub(crate) ended: bool,
    /// Behind this one.
    pub(crate) after: Option<RequestId>,
    /// At most.
    pub(crate) limit: usize,
}

impl EventLoop {
    /// Ascending by id, and the last one's id if there are more.
    pub(crate) fn requests(&self, wanted: &Wanted) -> v1::RequestList {
        let cluster = self.outputs.shown.cluster.borrow();
        let is_wanted = |entry: &v1::RequestEntry| {
            let is_state = wanted.state.is_empty() || wanted.state == entry.state;
            // Ids are shown with leading zeros, so they are in the order of their numbers.
            is_state && wanted.after.is_none_or(|after| entry.id > after.to_string())
        };
        let live = self.live.values().map(|live| live.entry(&cluster));
        let ended = self.desk.history.iter().filter(|_| wanted.ended).map(Past::entry);
        let mut requests: Vec<_> = live.chain(ended).filter(is_wanted).collect();
        requests.sort_by(|a, b| a.id.cmp(&b.id));
        let more = requests.len() > wanted.limit;
        requests.truncate(wanted.limit);
        let next = requests.last().filter(|_| more).map(|last| last.id.clone());
        v1::RequestList { next: next.unwrap_or_default(), requests }
    }

    /// One of them, as it is or as it ended.
    pub(crate) fn request(&self, name: &str) -> Option<v1::RequestView> {
        let live = self.called(name).map(|live| live.view(&self.outputs.shown.cluster.borrow()));
        live.or_else(|| self.desk.history.find(name).map(|past| past.view.clone()))
    }

    /// What happened to it.
    pub(crate) fn trace(&mut self, name: &str) -> Option<v1::RequestTrace> {
        let Self { live, outputs, desk, .. } = self;
        let found = live.values_mut().filter(|live| live.is_named(name)).max_by_key(|it| it.run());
        let traced = found.map(|live| traced(live, &outputs.shown.cluster.borrow()));
        traced.or_else(|| desk.history.find(name).map(|past| past.trace.clone()))
    }

    /// Ends it, if it is under way; how it stood then.
    pub(crate) fn cancel_for_operator(&mut self, name: &str) -> Option<v1::RequestEntry> {
        let live = self.called(name)?;
        let (run, entry) = (live.run(), live.entry(&self.outputs.shown.cluster.borrow()));
        tracing::info!(request = entry.id, caller_id = entry.caller_id, "an operator cancels it");
        self.desk.stopped.insert(run);
        self.step(Event::Cancel { request: run });
        self.desk.stopped.remove(&run);
        Some(entry)
    }

    /// What `worker` is at.
    pub(crate) fn work_of(&self, worker: WorkerId) -> Vec<v1::NodeWork> {
        let mut work: Vec<_> = self.live.values().filter_map(|it| it.work_of(worker)).collect();
        work.sort_by(|a, b| a.request.cmp(&b.request));
        work
    }

    /// Remembers a request that has ended.
    pub(super) fn remember(&mut self, live: &mut Live, state: &str, error: String) {
        let cluster = self.outputs.shown.cluster.borrow();
        live.trail().note("ended", None, if error.is_empty() { state } else { &error });
        let (mut view, mut trace) = (live.view(&cluster), traced(live, &cluster));
        for entry in [&mut view.request, &mut trace.request].into_iter().flatten() {
            (entry.state, entry.error) = (state.to_owned(), error.clone());
        }
        drop(cluster);
        self.desk.history.push(Past { view, trace });
    }

    /// The latest one under way that is called so, by us or by its caller.
    pub(super) fn called(&self, name: &str) -> Option<&Live> {
        self.live.values().filter(|live| live.is_named(name)).max_by_key(|live| live.run())
    }
}

fn traced(live: &mut Live, cluster: &Cluster) -> v1::RequestTrace {
    let request = Some(live.entry(cluster));
    let step = |step: &Step| v1::TraceStep {
        at_seconds: step.at_seconds,
        step: step.what.to_owned(),
        worker: step.worker.map_or_else(String::new, |worker| cluster.name_of(worker)),
        about: step.about.clone(),
    };
    let trail = live.trail();
    let steps = trail.steps().map(step).collect();
    v1::RequestTrace { request, steps, forgotten: trail.forgotten() }
}

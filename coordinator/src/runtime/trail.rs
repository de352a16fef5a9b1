//! What happened to one request, step by step, for those who look after the cluster.

use std::collections::VecDeque;
use std::time::Instant;

use aqueduct_core::{WorkerId, limits};

/// Nobody reads longer reasons here; the log has them.
const ABOUT_BYTES_MAX: usize = 256;

/// The first steps and the last ones; of very many those between are forgotten.
#[derive(Debug)]
pub(crate) struct Trail {
    since: Instant,
    first: Vec<Step>,
    last: VecDeque<Step>,
    forgotten: u32,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    /// Since the request came.
    pub(crate) at_seconds: f64,
    /// In a word or two.
    pub(crate) what: &'static str,
    /// Where, if it was at a worker.
    pub(crate) worker: Option<WorkerId>,
    /// A chunk, a completion, a reason.
    pub(crate) about: String,
}

impl Default for Trail {
    fn default() -> Self {
        Self { since: Instant::now(), first: Vec::new(), last: VecDeque::new(), forgotten: 0 }
    }
}

impl Trail {
    /// Something happened just now.
    pub(crate) fn note(
        &mut self,
        what: &'static str,
        worker: Option<WorkerId>,
        about: impl ToString,
    ) {
        let at_seconds = self.since.elapsed().as_secs_f64();
        let mut about = about.to_string();
        about.truncate(about.floor_char_boundary(ABOUT_BYTES_MAX));
        let step = Step { at_seconds, what, worker, about };
        if self.first.len() < limits::TRACE_STEPS_MAX {
            return self.first.push(step);
        }
        if self.last.len() == limits::TRACE_STEPS_MAX {
            self.last.pop_front();
            self.forgotten += 1;
        }
        self.last.push_back(step);
    }

    /// In the order in which they happened.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.first.iter().chain(&self.last)
    }

    /// How many are missing between the first ones and the last ones.
    pub(crate) fn forgotten(&self) -> u32 {
        self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_are_remembered() {
        let (mut trail, most) = (Trail::default(), limits::TRACE_STEPS_MAX);
        (0..2 * most + 3).for_each(|chunk| trail.note("assigned", None, chunk));
        let about: Vec<_> = trail.steps().map(|step| step.about.clone()).collect();
        assert_eq!((about.len(), trail.forgotten()), (2 * most, 3));
        assert_eq!((about[0].as_str(), about[most].as_str()), ("0", &*(most + 3).to_string()));
        let times: Vec<_> = trail.steps().map(|step| step.at_seconds).collect();
        assert!(times.is_sorted());
    }
}

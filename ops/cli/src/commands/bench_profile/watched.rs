//! A processor whose every operation is timed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aqueduct_kernels::backend::{Attended, Choice, Qkv, Scope, Selected, SelectionOps, StateOps};
use aqueduct_kernels::fold::Node;
use aqueduct_kernels::{
    Angles, Array, AttentionOps, AttentionState, Backend, BackendError, Cpu, Keys, LayerOps,
    LayerWeights, Linear, Matrix, MemorySet, MixerOps, Op, Queries, Recurred, Recurrent, Rows,
    Selection,
};

/// What time goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Embed,
    Project,
    /// Attention, with masses where they are not withheld.
    Attend,
    Select,
    Finish,
    /// Logits.
    Head,
}

/// Seconds by [`Part`].
pub(super) type Ledger = [f64; 6];

/// The processor, and what its operations took.
pub(super) struct Watched {
    cpu: Cpu,
    ledger: Mutex<Ledger>,
    masses_withheld: AtomicBool,
}

impl Watched {
    pub(super) fn new(cpu: Cpu) -> Self {
        Self { cpu, ledger: Mutex::default(), masses_withheld: AtomicBool::new(false) }
    }

    /// What was spent since the last time.
    pub(super) fn take(&self) -> Ledger {
        std::mem::take(&mut self.ledger.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether attention computes no masses, and whoever asks for them gets zeros: the
    /// difference is what they cost.
    pub(super) fn withhold_masses(&self, withheld: bool) {
        self.masses_withheld.store(withheld, Ordering::Relaxed);
    }

    fn timed<R>(&self, part: Part, work: impl FnOnce(&Cpu) -> R) -> R {
        let start = Instant::now();
        let result = work(&self.cpu);
        self.add(part, start.elapsed());
        result
    }

    fn add(&self, part: Part, took: Duration) {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger[part as usize] += took.as_secs_f64();
    }

    fn attended(
        &self,
        scope: Scope<'_>,
        attend: impl FnOnce(&Cpu, Scope<'_>) -> Result<Attended, BackendError>,
    ) -> Result<Attended, BackendError> {
        if scope.row_weights.is_none() || !self.masses_withheld.load(Ordering::Relaxed) {
            return self.timed(Part::Attend, |cpu| attend(cpu, scope));
        }
        let without = Scope { row_weights: None, ..scope };
        let attended = self.timed(Part::Attend, |cpu| attend(cpu, without))?;
        let zeros = |keys: &Keys| Array::from(vec![0.0; keys.positions.len()]);
        let (past_mass, own_mass) = (zeros(scope.past), zeros(scope.own));
        Ok(Attended { past_mass, own_mass, ..attended })
    }
}

impl AttentionOps for Watched {
    fn attend(&self, queries: Queries<'_>, keys: &Keys) -> Result<AttentionState, BackendError> {
        self.timed(Part::Attend, |cpu| cpu.attend(queries, keys))
    }

    fn attend_folded(
        &self,
        queries: Queries<'_>,
        keys: &[&Keys],
        node: (Node, u32),
    ) -> Result<AttentionState, BackendError> {
        self.timed(Part::Attend, |cpu| cpu.attend_folded(queries, keys, node))
    }

    fn weigh(
        &self,
        queries: Queries<'_>,
        keys: &Keys,
        lse: &[f32],
        row_weights: &[f32],
    ) -> Result<Array<f32>, BackendError> {
        self.timed(Part::Attend, |cpu| cpu.weigh(queries, keys, lse, row_weights))
    }

    fn attend_all(&self, queries: Queries<'_>, scope: Scope<'_>) -> Result<Attended, BackendError> {
        self.attended(scope, |cpu, scope| cpu.attend_all(queries, scope))
    }

    fn attend_rest(
        &self,
        queries: Queries<'_>,
        scope: Scope<'_>,
        own: &AttentionState,
    ) -> Result<Attended, BackendError> {
        self.attended(scope, |cpu, scope| cpu.attend_rest(queries, scope, own))
    }

    fn cap(&self, logits: &Rows, cap: f32) -> Result<Rows, BackendError> {
        self.timed(Part::Head, |cpu| cpu.cap(logits, cap))
    }
}

impl SelectionOps for Watched {
    fn select(
        &self,
        past: Arc<MemorySet>,
        own: &Keys,
        masses: (&Array<f32>, &Array<f32>),
        selection: &Selection,
    ) -> Result<Selected, BackendError> {
        self.timed(Part::Select, |cpu| cpu.select(past, own, masses, selection))
    }

    fn select_each(&self, choices: Vec<Choice<'_>>) -> Vec<Result<Selected, BackendError>> {
        self.timed(Part::Select, |cpu| cpu.select_each(choices))
    }
}

impl StateOps for Watched {
    fn merge(&self, state: AttentionState, other: &AttentionState) -> AttentionState {
        self.timed(Part::Attend, |cpu| cpu.merge(state, other))
    }

    fn output(&self, state: &AttentionState) -> Rows {
        self.timed(Part::Attend, |cpu| cpu.output(state))
    }
}

impl LayerOps for Watched {
    fn pack(&self, weight: Matrix, bias: Option<Vec<f32>>) -> Result<Linear, BackendError> {
        self.cpu.pack(weight, bias)
    }

    fn linear(&self, x: &Rows, weight: &Linear) -> Result<Rows, BackendError> {
        self.timed(Part::Head, |cpu| cpu.linear(x, weight))
    }

    fn project(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        at: (u32, &Angles),
        queries: usize,
    ) -> Result<Qkv, BackendError> {
        self.timed(Part::Project, |cpu| cpu.project(layer, x, at, queries))
    }

    fn finish(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        attention: &Rows,
    ) -> Result<Rows, BackendError> {
        self.timed(Part::Finish, |cpu| cpu.finish(layer, x, attention))
    }

    fn embed(&self, table: &Linear, tokens: &[u32], scale: f32) -> Result<Rows, BackendError> {
        self.timed(Part::Embed, |cpu| cpu.embed(table, tokens, scale))
    }

    fn norm(&self, x: &Rows, weight: &Arc<[f32]>, eps: f32) -> Rows {
        self.timed(Part::Head, |cpu| cpu.norm(x, weight, eps))
    }
}

impl MixerOps for Watched {
    fn mix(&self, layer: &LayerWeights, x: &Rows) -> Result<Rows, BackendError> {
        self.timed(Part::Project, |cpu| cpu.mix(layer, x))
    }

    fn recur(
        &self,
        recurrent: &Recurrent,
        columns: &Rows,
        state: Array<f32>,
    ) -> Result<Recurred, BackendError> {
        self.timed(Part::Attend, |cpu| cpu.recur(recurrent, columns, state))
    }

    fn recur_each(
        &self,
        recurrent: &Recurrent,
        columns: &Rows,
        states: Vec<Array<f32>>,
    ) -> Vec<Result<Recurred, BackendError>> {
        self.timed(Part::Attend, |cpu| cpu.recur_each(recurrent, columns, states))
    }

    fn gate(&self, layer: &LayerWeights, x: &Rows, attention: Rows) -> Result<Rows, BackendError> {
        self.timed(Part::Finish, |cpu| cpu.gate(layer, x, attention))
    }
}

impl Backend for Watched {
    fn name(&self) -> &'static str {
        self.cpu.name()
    }

    fn supports(&self, op: Op) -> bool {
        self.cpu.supports(op)
    }
}

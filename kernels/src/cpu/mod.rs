//! The fast backend for processors: SIMD found at run time, threads shared by all callers.
//!
//! Bits depend neither on the number of threads nor on the rows beside a row: every element
//! of a result is summed by one task in one order (see `tile.rs`).

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod curves;
mod exp;
mod feed;
mod gemm;
mod heads;
mod input;
mod isa;
mod layer;
mod lines;
pub mod peak;
mod recurrent;
mod simd;
mod states;
mod threads;
mod tile;
mod turns;
mod unwritten;
mod wide;

use std::sync::Arc;

use self::gemm::{Argument, Place, Prepare};
use self::isa::Isa;
pub use self::isa::IsaLevel;
use self::threads::Threads;
pub use self::wide::{PlainWork, on_widest_vectors};
use crate::array::Array;
use crate::backend::{
    Attended, AttentionOps, Backend, BackendError, Choice, LayerOps, MixerOps, Op, Qkv, Queries,
    Scope, Selected, SelectionOps, StateOps,
};
use crate::fold::{Node, fold_all, merges};
use crate::memory::{Keys, MemorySet, Selection};
use crate::recurrent::{Recurred, Recurrent};
use crate::select::Workers;
use crate::shapes;
use crate::state::AttentionState;
use crate::tensor::Rows;
use crate::weights::{Angles, LayerInput, LayerWeights, Linear, Matrix, MatrixData};

/// What a [`Cpu`] is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuOptions {
    /// Threads for all callers together; 0 for as many as the process may use.
    pub threads: usize,
    /// Instruction set to use instead of the best one that the processor has.
    pub isa: Option<IsaLevel>,
}

/// Why there is no [`Cpu`].
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// A forced instruction set that is not there.
    #[error("isa = {0}: this processor does not have it")]
    Isa(IsaLevel),
    /// Threads could not be started.
    #[error("threads = {threads}: {source}")]
    Threads {
        /// How many were wanted.
        threads: usize,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The processor. Workers of one process share one, so that its threads are all there are.
pub struct Cpu {
    isa: Isa,
    threads: Threads,
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cpu({:?}, {} threads)", self.isa(), self.threads())
    }
}

impl Cpu {
    /// Starts the threads.
    ///
    /// # Errors
    /// An instruction set that the processor lacks; threads that the system refuses.
    pub fn new(options: CpuOptions) -> Result<Self, CpuError> {
        let isa = match options.isa {
            Some(level) => Isa::new(level).ok_or(CpuError::Isa(level))?,
            None => Isa::best(),
        };
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let threads =
            Threads::new(threads).map_err(|source| CpuError::Threads { threads, source })?;
        Ok(Self { isa, threads })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> IsaLevel {
        self.isa.level()
    }

    /// How many threads compute.
    pub fn threads(&self) -> usize {
        self.threads.count()
    }

    /// Runs one operation on this backend's threads.
    fn enter<R>(&self, operation: impl FnOnce(Place<'_>) -> R) -> R {
        self.threads.enter(|crew| operation(Place { isa: self.isa, crew }))
    }
}

impl AttentionOps for Cpu {
    fn attend(&self, queries: Queries<'_>, keys: &Keys) -> Result<AttentionState, BackendError> {
        self.enter(|place| attention::attend(place, &queries, keys))
    }

    fn attend_folded(
        &self,
        queries: Queries<'_>,
        keys: &[&Keys],
        (whole, chunks): (Node, u32),
    ) -> Result<AttentionState, BackendError> {
        shapes::folded("attend", keys, (whole, chunks))?;
        let merge = |state, other: &_| self.merge(state, other);
        let mut state = |node: Node| {
            let keys: Vec<&Keys> =
                node.leaves(chunks).map(|chunk| keys[whole.index(chunk)]).collect();
            if attention::fit_merged(&queries, &keys) {
                let merges = merges(node, chunks);
                self.enter(|place| attention::attend_merged(place, &queries, &keys, &merges))
                    .map(Some)
            } else {
                node.is_leaf(chunks).then(|| self.attend(queries, keys[0])).transpose()
            }
        };
        fold_all(whole, chunks, &merge, &mut state)
    }

    fn weigh(
        &self,
        queries: Queries<'_>,
        keys: &Keys,
        lse: &[f32],
        row_weights: &[f32],
    ) -> Result<Array<f32>, BackendError> {
        self.enter(|place| attention::weigh(place, &queries, keys, lse, row_weights))
            .map(Array::from)
    }

    fn attend_all(&self, queries: Queries<'_>, scope: Scope<'_>) -> Result<Attended, BackendError> {
        if attention::fits_one_pass(&queries, &scope) {
            return self.enter(|place| attention::attend_all(place, &queries, &scope));
        }
        let own = self.attend(queries, scope.own)?;
        self.attend_rest(queries, scope, &own)
    }

    fn attend_each(
        &self,
        mut blocks: &[(Queries<'_>, Scope<'_>)],
    ) -> Vec<Result<Attended, BackendError>> {
        let mut attended = Vec::with_capacity(blocks.len());
        while let [(queries, scope), others @ ..] = blocks {
            match attention::fit_together(blocks) {
                0 => {
                    attended.push(self.attend_all(*queries, *scope));
                    blocks = others;
                }
                count => {
                    let (together, others) = blocks.split_at(count);
                    attended.extend(self.enter(|place| attention::attend_each(place, together)));
                    blocks = others;
                }
            }
        }
        attended
    }

    fn cap(&self, logits: &Rows, cap: f32) -> Result<Rows, BackendError> {
        Ok(self.enter(|place| layer::cap(place, logits, cap)))
    }
}

impl SelectionOps for Cpu {
    fn select(
        &self,
        past: Arc<MemorySet>,
        own: &Keys,
        masses: (&Array<f32>, &Array<f32>),
        selection: &Selection,
    ) -> Result<Selected, BackendError> {
        crate::select::select_by(self, past, own, (masses.0, masses.1), selection)
    }

    fn select_each(&self, choices: Vec<Choice<'_>>) -> Vec<Result<Selected, BackendError>> {
        crate::select::select_each(self, choices)
    }
}

impl Workers for &Cpu {
    fn map<T: Send, R: Send>(&self, tasks: Vec<T>, run: impl Fn(T) -> R + Sync) -> Vec<R> {
        self.enter(|place| place.crew.map(tasks, run))
    }
}

impl StateOps for Cpu {
    fn merge(&self, state: AttentionState, other: &AttentionState) -> AttentionState {
        if states::is_small(&state) {
            return state.merge(other);
        }
        self.enter(|place| states::merge(place, state, other))
    }

    fn output(&self, state: &AttentionState) -> Rows {
        if states::is_small(state) {
            return state.output();
        }
        self.enter(|place| states::output(place, state))
    }
}

impl LayerOps for Cpu {
    fn pack(&self, weight: Matrix, bias: Option<Vec<f32>>) -> Result<Linear, BackendError> {
        crate::shapes::matrix(&weight, bias.as_deref())?;
        let packed = self.enter(|place| gemm::pack(place.crew, &weight));
        let Matrix { outputs, inputs, data } = weight;
        let rounds = matches!(data, MatrixData::Bf16(_));
        let (bytes, packed) = (packed.bytes(), Arc::new(packed));
        Ok(Linear { outputs, inputs, bias: bias.map(Arc::from), rounds, bytes, packed })
    }

    fn linear(&self, x: &Rows, weight: &Linear) -> Result<Rows, BackendError> {
        crate::shapes::linear("linear", x, weight)?;
        let x = Argument { rows: x, prepare: Prepare::Nothing };
        self.enter(|place| gemm::linear("linear", place, x, weight, None))
    }

    fn project(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        at: (u32, &Angles),
        queries: usize,
    ) -> Result<Qkv, BackendError> {
        self.enter(|place| layer::project(place, layer, x, at, queries))
    }

    fn finish(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        attention: &Rows,
    ) -> Result<Rows, BackendError> {
        self.enter(|place| layer::finish(place, layer, x, attention))
    }

    fn embed(&self, table: &Linear, tokens: &[u32], scale: f32) -> Result<Rows, BackendError> {
        self.enter(|place| layer::embed(place, table, tokens, scale))
    }

    fn norm(&self, x: &Rows, weight: &Arc<[f32]>, eps: f32) -> Rows {
        self.enter(|place| layer::norm(place, x, weight, eps))
    }
}

impl MixerOps for Cpu {
    fn mix(&self, layer: &LayerWeights, x: &Rows) -> Result<Rows, BackendError> {
        self.enter(|place| recurrent::mix(place, layer, x))
    }

    fn recur(
        &self,
        recurrent: &Recurrent,
        columns: &Rows,
        state: Array<f32>,
    ) -> Result<Recurred, BackendError> {
        self.enter(|place| recurrent::recur(place, recurrent, columns, state))
    }

    fn recur_each(
        &self,
        recurrent: &Recurrent,
        columns: &Rows,
        states: Vec<Array<f32>>,
    ) -> Vec<Result<Recurred, BackendError>> {
        self.enter(|place| recurrent::recur_each(place, recurrent, columns, states))
    }

    fn gate(&self, layer: &LayerWeights, x: &Rows, attention: Rows) -> Result<Rows, BackendError> {
        match &layer.gate {
            None => Ok(attention),
            Some(weight) => {
                self.enter(|place| recurrent::gate(place, (layer, weight), x, attention))
            }
        }
    }

    fn take(
        &self,
        layer: &LayerWeights,
        own: &LayerInput,
        x: &Rows,
        input: &Rows,
    ) -> Result<Rows, BackendError> {
        self.enter(|place| input::take(place, &layer.spec, own, [x, input]))
    }
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        self.isa().device()
    }

    fn supports(&self, op: Op) -> bool {
        match op {
            Op::Attention { head_dim, group, kv: _ } => head_dim > 0 && group > 0,
            Op::Layers | Op::Pages | Op::LastRows => true,
        }
    }

    fn makes_way(&self) -> bool {
        true
    }

    fn go_first(&self, first: bool) {
        match first {
            true => self.threads.turns().go_first(),
            false => self.threads.turns().line_up(),
        }
    }
}

//! Attention and masses: which kernel does what.
//!
//! Few rows go to the kernels of decode steps, which read tables. Many rows of a shape that the
//! chip has kernels for, over their own keys and keys before them, go to those: windows too, but
//! neither caps nor slopes. Everything else goes to the plain kernels. What decides never depends
//! on how many keys there are, so that own keys first and the past later take the way of both at
//! once.

use std::sync::Arc;

use super::device::Address;
use super::fast::{self, Columns, Fast, Goal, Pass, Weighing};
use super::few::{self, Few};
use super::operands::{Output, PlacedKeys, PlacedQueries, PlacedState, Votes};
use super::resident::OnDevice;
use super::{Cuda, Shared, plain};
use crate::array::Array;
use crate::backend::{Attended, BackendError, Queries, Scope};
use crate::memory::Keys;
use crate::shapes;
use crate::state::AttentionState;
use crate::tensor::{KvDtype, Rows};

/// The widest heads that there is a kernel for.
pub(super) const HEAD_DIM_MAX: usize = 512;

/// See [`crate::AttentionOps::attend`].
pub(super) fn attend(
    cuda: &Cuda,
    queries: Queries<'_>,
    keys: &Keys,
) -> Result<AttentionState, BackendError> {
    check(&queries, keys)?;
    let q = queries.q;
    if keys.is_empty() || q.data.is_empty() {
        return Ok(AttentionState::empty(q.heads, q.tokens, q.head_dim));
    }
    let shared = &cuda.shared;
    let rows = PlacedQueries::new(cuda, queries, keys.k.dtype())?;
    let state = state_over(shared, &rows, &PlacedKeys::new(shared, keys)?)?;
    shared.done(state.into_state(&queries))
}

/// See [`crate::AttentionOps::weigh`].
pub(super) fn weigh(
    cuda: &Cuda,
    queries: Queries<'_>,
    keys: &Keys,
    lse: &[f32],
    row_weights: &[f32],
) -> Result<Array<f32>, BackendError> {
    shapes::weighing(&queries, keys, lse, row_weights)?;
    check(&queries, keys)?;
    if keys.is_empty() || queries.q.data.is_empty() {
        return Ok(vec![0.0; keys.positions.len()].into());
    }
    let shared = &cuda.shared;
    let rows = PlacedQueries::new(cuda, queries, keys.k.dtype())?;
    let keys = PlacedKeys::new(shared, keys)?;
    let votes = Votes::new(cuda, OnDevice::of(shared, lse)?, row_weights)?;
    let causal = rows.see_causally(&keys);
    let sides = if causal { (None, Some(keys)) } else { (Some(keys), None) };
    let ((past, own), sinks, dtype) = (sides, None, KvDtype::F32);
    let block = Block { cuda, shared, rows, past, own, sinks, dtype };
    let [past, own] = block.masses(&votes)?;
    shared.done(if causal { own } else { past })
}

/// See [`crate::AttentionOps::attend_all`].
pub(super) fn attend_all(
    cuda: &Cuda,
    queries: Queries<'_>,
    scope: Scope<'_>,
) -> Result<Attended, BackendError> {
    let Some(block) = Block::new(cuda, queries, &scope)? else {
        return Ok(nothing(&queries, &scope));
    };
    if block.is_few() {
        return block.few(&scope);
    }
    let output = match block.in_one_go()? {
        Some(fast) => block.in_one_pass(&fast, None)?,
        None => {
            let own = block.own.as_ref().map(|own| state_over(&cuda.shared, &block.rows, own));
            block.merged(own.transpose()?)?
        }
    };
    block.attended(output, &scope, |votes| block.masses(votes))
}

/// See [`crate::AttentionOps::attend_rest`].
pub(super) fn attend_rest(
    cuda: &Cuda,
    queries: Queries<'_>,
    scope: Scope<'_>,
    own: &AttentionState,
) -> Result<Attended, BackendError> {
    let Some(block) = Block::new(cuda, queries, &scope)? else {
        return Ok(nothing(&queries, &scope));
    };
    shapes::state("attend", &queries, own)?;
    if block.is_few() {
        return block.few(&scope); // own keys are few too: to go over them again costs nothing
    }
    let own = PlacedState::of(&cuda.shared, own)?;
    let output = match block.in_one_go()? {
        Some(fast) => block.in_one_pass(&fast, Some(&own))?,
        None => block.merged(Some(own))?,
    };
    block.attended(output, &scope, |votes| block.masses(votes))
}

/// See [`Cuda::weigh_all`].
pub(super) fn weigh_all(
    cuda: &Cuda,
    queries: Queries<'_>,
    scope: Scope<'_>,
    lse: &Array<f32>,
) -> Result<[Array<f32>; 2], BackendError> {
    let (block, weights) = (Block::new(cuda, queries, &scope)?, scope.row_weights);
    let (Some(block), Some(weights)) = (block, weights) else { return Ok(Default::default()) };
    let votes = Votes::new(cuda, cuda.shared.place(lse)?, weights)?;
    cuda.shared.done(block.masses(&votes)?)
}

fn check(queries: &Queries<'_>, keys: &Keys) -> Result<(), BackendError> {
    shapes::attention("attend", queries, keys)?;
    shapes::at_most("attend", "head_dim", queries.q.head_dim, HEAD_DIM_MAX)
}

/// What rows make of no key, or no row of any.
fn nothing(queries: &Queries<'_>, scope: &Scope<'_>) -> Attended {
    let mass = |keys: &Keys| match scope.row_weights {
        Some(_) => vec![0.0; keys.positions.len()].into(),
        None => Array::default(),
    };
    let output = Rows::zeros(scope.outputs, queries.q.heads * queries.q.head_dim);
    Attended { output, past_mass: mass(scope.past), own_mass: mass(scope.own) }
}

/// The partial state of `rows` over `keys`.
fn state_over(
    shared: &Arc<Shared>,
    rows: &PlacedQueries<'_>,
    keys: &PlacedKeys,
) -> Result<PlacedState, BackendError> {
    let state = PlacedState::room(shared, &rows.queries)?;
    if few::serves(&rows.queries, keys.kv_heads(), keys.dtype()) {
        Few::new(shared, rows, [Some(keys), None], false)?.state(&state)?;
        return Ok(state);
    }
    let causal = rows.see_causally(keys);
    let (own, past) = if causal { (Some(keys), None) } else { (None, Some(keys)) };
    match Chosen::new(shared, rows, own, past)? {
        Some(fast) => fast.attend(shared, None, Goal::State(state.at()))?,
        None => plain::state(shared, rows, keys, &state)?,
    }
    Ok(state)
}

/// A chip's own kernels with the keys as they see them.
struct Chosen {
    kernels: &'static dyn Fast,
    rows: fast::Rows,
    own: Option<fast::Stretch>,
    past: Option<fast::Stretch>,
}

impl Chosen {
    /// Where there are such kernels for these rows, and they see these keys as the rows do.
    /// Whether a table says where keys lie decides nothing: bits do not depend on it.
    fn new(
        shared: &Arc<Shared>,
        rows: &PlacedQueries<'_>,
        own: Option<&PlacedKeys>,
        past: Option<&PlacedKeys>,
    ) -> Result<Option<Self>, BackendError> {
        let causal = own.is_none_or(|own| rows.see_causally(own));
        let whole = past.is_none_or(|past| rows.see_all(past));
        let Some(keys) = own.or(past).filter(|_| causal && whole) else { return Ok(None) };
        let placed = rows;
        let Some(rows) = placed.rows(keys.kv_heads()) else { return Ok(None) };
        let Some(kernels) = fast::kernel_for(shared, &rows.shape) else { return Ok(None) };
        let stretch =
            |keys: Option<&PlacedKeys>| keys.map_or(Ok(None), |it| it.stretch(shared, placed));
        Ok(Some(Self { kernels, rows, own: stretch(own)?, past: stretch(past)? }))
    }

    fn attend(
        &self,
        shared: &Arc<Shared>,
        from: Option<&PlacedState>,
        goal: Goal,
    ) -> Result<(), BackendError> {
        let own = if from.is_some() { None } else { self.own };
        let from = from.map(PlacedState::at);
        let pass = Pass { rows: self.rows, from, own, past: self.past, goal };
        self.kernels.attend(shared, &pass)
    }
}

/// A block's rows with the keys that they look at; `None` for no keys.
struct Block<'a> {
    cuda: &'a Cuda,
    shared: &'a Arc<Shared>,
    rows: PlacedQueries<'a>,
    past: Option<PlacedKeys>,
    own: Option<PlacedKeys>,
    sinks: Option<OnDevice<f32>>,
    /// Of the output.
    dtype: KvDtype,
}

impl<'a> Block<'a> {
    /// `None` where there is no row or no key.
    fn new(
        cuda: &'a Cuda,
        queries: Queries<'a>,
        scope: &Scope<'_>,
    ) -> Result<Option<Self>, BackendError> {
        let (shared, Scope { past, own, row_weights, rounded, .. }) = (&cuda.shared, *scope);
        check(&queries, own)?;
        check(&queries, past)?;
        shapes::alike("attend", own, past)?;
        shapes::outputs("attend", &queries, scope)?;
        shapes::sinks("attend", &queries, scope)?;
        row_weights.map_or(Ok(()), |row_weights| shapes::voting(&queries, row_weights))?;
        if queries.q.data.is_empty() || (past.is_empty() && own.is_empty()) {
            return Ok(None);
        }
        let place = |keys: &Keys| {
            let some = (!keys.is_empty()).then(|| PlacedKeys::new(shared, keys));
            some.transpose()
        };
        let (past, own) = (place(past)?, place(own)?);
        let rows = PlacedQueries::new(cuda, queries, scope.own.k.dtype())?;
        let sinks = scope.sinks.map(|sinks| cuda.norms.on_device(shared, sinks)).transpose()?;
        let dtype = if rounded { scope.own.k.dtype() } else { KvDtype::F32 };
        Ok(Some(Self { cuda, shared, rows, past, own, sinks, dtype }))
    }

    fn is_few(&self) -> bool {
        let keys = self.past.as_ref().or(self.own.as_ref());
        keys.is_some_and(|it| few::serves(&self.rows.queries, it.kv_heads(), it.dtype()))
    }

    /// Few rows over all keys.
    fn few(&self, scope: &Scope<'_>) -> Result<Attended, BackendError> {
        let keys = [self.past.as_ref(), self.own.as_ref()];
        let few = Few::new(self.shared, &self.rows, keys, scope.row_weights.is_some())?;
        let output = Output::room(self.shared, &self.rows, self.dtype)?;
        few.output(self.sinks.as_ref(), &output)?;
        self.attended(output, scope, |votes| few.masses(votes))
    }

    fn fast(&self) -> Result<Option<Chosen>, BackendError> {
        Chosen::new(self.shared, &self.rows, self.own.as_ref(), self.past.as_ref())
    }

    /// What makes an output in one pass: kernels that give it as bf16, and know no sinks.
    fn in_one_go(&self) -> Result<Option<Chosen>, BackendError> {
        match self.dtype {
            KvDtype::Bf16 if self.sinks.is_none() => self.fast(),
            _ => Ok(None),
        }
    }

    /// Own keys, if `own` is not their state already, and past keys.
    fn in_one_pass(
        &self,
        fast: &Chosen,
        own: Option<&PlacedState>,
    ) -> Result<Output, BackendError> {
        let output = Output::room(self.shared, &self.rows, self.dtype)?;
        let goal =
            Goal::Output { output: Address(output.address()), lse: Address(output.lse.address()) };
        fast.attend(self.shared, own, goal)?;
        Ok(output)
    }

    /// Past keys merged with the state over own keys.
    fn merged(&self, own: Option<PlacedState>) -> Result<Output, BackendError> {
        let past = self.past.as_ref().map(|past| state_over(self.shared, &self.rows, past));
        let states: Vec<_> = past.transpose()?.into_iter().chain(own).collect();
        plain::merge(self.shared, &self.rows, &states, self.sinks.as_ref(), self.dtype)
    }

    /// With masses, where they are asked for.
    fn attended(
        &self,
        output: Output,
        scope: &Scope<'_>,
        masses: impl FnOnce(&Votes<'_>) -> Result<[Array<f32>; 2], BackendError>,
    ) -> Result<Attended, BackendError> {
        let Output { data, lse } = output;
        let [past_mass, own_mass] = match scope.row_weights {
            Some(row_weights) => masses(&Votes::new(self.cuda, lse, row_weights)?)?,
            None => Default::default(),
        };
        let q = self.rows.queries.q;
        let output = Rows::new(q.tokens, q.heads * q.head_dim, data.into_array());
        let attended = self.shared.done(Attended { output, past_mass, own_mass })?;
        attended.of_last(scope.outputs)
    }

    /// What the rows spend on past and on own keys.
    fn masses(&self, votes: &Votes<'_>) -> Result<[Array<f32>; 2], BackendError> {
        let room = |keys: &Option<PlacedKeys>| match keys {
            Some(keys) => {
                OnDevice::<f32>::room(self.shared, keys.kv_heads() * keys.len()).map(Some)
            }
            None => Ok(None),
        };
        let (past_mass, own_mass) = (room(&self.past)?, room(&self.own)?);
        if let Some(fast) = self.fast()? {
            let columns = |keys: Option<fast::Stretch>, mass: &Option<OnDevice<f32>>| {
                let mass = Address(mass.as_ref()?.address());
                Some(Columns { keys: keys?, mass })
            };
            let weighing = Weighing {
                rows: fast.rows,
                own: columns(fast.own, &own_mass),
                past: columns(fast.past, &past_mass),
                lse: Address(votes.lse.address()),
                row_weights: Address(votes.row_weights.address()),
                weights: votes.weights,
            };
            fast.kernels.weigh(self.shared, &weighing)?;
        } else {
            for (keys, mass) in [(&self.past, &past_mass), (&self.own, &own_mass)] {
                if let (Some(keys), Some(mass)) = (keys, mass) {
                    plain::masses(self.shared, &self.rows, (keys, votes), mass)?;
                }
            }
        }
        let array =
            |mass: Option<OnDevice<f32>>| mass.map_or_else(Array::default, OnDevice::into_array);
        Ok([array(past_mass), array(own_mass)])
    }
}

#[cfg(all(test, feature = "cuda-emulator", target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use super::*;
    use crate::cuda::CudaOptions;
    use crate::memory::Leaves;
    use crate::tensor::{Heads, KvHeads};
    use crate::window::Window;

    const TOKENS: usize = 40;
    const PAST: usize = 30;

    fn keys(start: u32, count: usize, head_dim: usize) -> Keys {
        let data = vec![0.0; 2 * count * head_dim];
        let array = || KvHeads::from_f32(2, count, head_dim, &data, KvDtype::Bf16);
        let positions: Vec<u32> = (start..).take(count).collect();
        Keys::new(positions.repeat(2), array(), array())
    }

    /// Since which chip the kernels are that serve such rows, and of which of own and past keys
    /// they lose sight; `None` for the plain ones.
    fn chosen(
        capability: u32,
        head_dim: usize,
        change: fn(Queries<'_>) -> Queries<'_>,
    ) -> Option<(u32, [bool; 2])> {
        let cuda = Cuda::emulated(capability, CudaOptions::default()).unwrap();
        let q = Heads::zeros(4, TOKENS, head_dim);
        let (past, own) = (keys(0, PAST, head_dim), keys(PAST as u32, TOKENS, head_dim));
        let start = PAST as u32;
        let (window, softcap, slopes) = (None, None, None);
        let queries = change(Queries { q: &q, start, scale: 1.0, window, softcap, slopes });
        let (past, own, leaves, outputs) = (&past, &own, Leaves::ONE, TOKENS);
        let (row_weights, sinks) = (None, None);
        let scope = Scope { past, leaves, own, row_weights, sinks, outputs, rounded: true };
        let block = Block::new(&cuda, queries, &scope).unwrap().unwrap();
        let fast = block.fast().unwrap()?;
        let loses = |part: Option<fast::Stretch>| part.is_some_and(|it| it.sight.is_some());
        Some((fast.kernels.since(), [loses(fast.own), loses(fast.past)]))
    }

    #[test]
    fn what_tensor_cores_serve() {
        for capability in [80, 90] {
            let check = |head_dim, change, want: Option<[bool; 2]>| {
                let want = want.map(|loses| (capability, loses));
                assert_eq!(chosen(capability, head_dim, change), want, "heads of {head_dim}");
            };
            for head_dim in [64, 128, 256, 8, 80, 96, 112, 120, 192] {
                check(head_dim, |it| it, Some([false; 2]));
                check(
                    head_dim,
                    |it| Queries { window: Some(Window::Last(70)), ..it },
                    Some([false; 2]),
                );
                check(
                    head_dim,
                    |it| Queries { window: Some(Window::Last(50)), ..it },
                    Some([false, true]),
                );
                check(
                    head_dim,
                    |it| Queries { window: Some(Window::Block(32)), ..it },
                    Some([true; 2]),
                );
            }
            for head_dim in [4, 84, 264] {
                check(head_dim, |it| it, None);
            }
            check(128, |it| Queries { softcap: Some(30.0), ..it }, None);
            check(128, |it| Queries { slopes: Some(&[0.5; 4]), ..it }, None);
        }
    }
}

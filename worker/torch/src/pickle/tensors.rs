//! What the machine makes of storages and tensors, and what is left of it in the end.

use super::{Machine, Made, Rebuilt, Storage, Tuple, Value};
use crate::TENSORS_MAX;
use crate::error::TorchError;
use crate::globals::Global;

/// Dimensions of a tensor.
const DIMENSIONS_MAX: usize = 8;

impl<'a> Machine<'a> {
    pub(super) fn storage(&mut self) -> Result<(), TorchError> {
        let reference = self.pop()?;
        let [
            Value::Text("storage"),
            Value::Global(Global::Storage(dtype)),
            Value::Text(key),
            Value::Text(_device),
            Value::Int(elements),
        ] = *self.values(reference)
        else {
            return Err(self.refused("refers to what is no storage"));
        };
        self.count(1)?;
        self.storages.push(Storage { key, dtype, elements });
        self.push(Value::Storage(self.storages.len() - 1))
    }

    /// The values of a tuple; of anything else none.
    fn values(&self, value: Value<'a>) -> &[Value<'a>] {
        match value {
            Value::Tuple(Tuple { at, count }) => &self.items[at..at + count],
            _ => &[],
        }
    }

    /// What a name stands for, done with a tuple of arguments.
    pub(super) fn reduce(&mut self) -> Result<(), TorchError> {
        let (arguments, callable) = (self.pop()?, self.pop()?);
        let (Value::Global(global), Value::Tuple(_)) = (callable, arguments) else {
            return Err(self.refused("makes something of what is no name, or without arguments"));
        };
        match (global, self.values(arguments)) {
            (Global::OrderedDict, []) => self.dict(),
            (
                Global::Parameter | Global::ParameterWithState,
                [Value::Tensor(idx), _trained, _hooks] | [Value::Tensor(idx), _trained, _hooks, _],
            ) => self.push(Value::Tensor(*idx)),
            (global, arguments) => {
                let Some(made) = self.made(global, arguments) else {
                    let what = format!("makes {global:?} of other arguments than it is made of");
                    return Err(self.refused(what));
                };
                self.count(1)?;
                self.tensors.push(made);
                self.push(Value::Tensor(self.tensors.len() - 1))
            }
        }
    }

    /// A tensor, if these are what one is made of. Newer files may say one thing more of it.
    fn made(&self, global: Global, arguments: &[Value<'a>]) -> Option<Made> {
        let [
            Value::Storage(storage),
            Value::Int(offset),
            Value::Tuple(shape),
            Value::Tuple(strides),
            _trained,
            _hooks,
            rest @ ..,
        ] = arguments
        else {
            return None;
        };
        let dtype = match (global, rest) {
            (Global::Tensor, [] | [_]) => self.storages[*storage].dtype,
            (Global::TensorOfDtype, [Value::Global(Global::Dtype(dtype)), more @ ..]) => {
                (more.len() <= 1).then_some(*dtype)
            }
            _ => None,
        };
        let (storage, offset, shape, strides) = (*storage, *offset, *shape, *strides);
        Some(Made { dtype: dtype?, storage, offset, shape, strides })
    }

    /// The tensors of the dictionary that is left.
    pub(super) fn finish(mut self) -> Result<Vec<Rebuilt<'a>>, TorchError> {
        let last = self.pop()?;
        let (Value::Dict(idx), true) = (last, self.stack.is_empty()) else {
            return Err(self.refused("ends with something else than one dictionary"));
        };
        let entries = std::mem::take(&mut self.dicts[idx]);
        let named = entries.into_iter().filter_map(|(key, value)| match (key, value) {
            (Value::Text(name), Value::Tensor(idx)) => Some((name, self.tensors[idx])),
            _ => None,
        });
        let all: Result<Vec<_>, _> =
            named.take(TENSORS_MAX + 1).map(|(name, made)| self.rebuilt(name, made)).collect();
        match all? {
            all if all.is_empty() => Err(self.refused(
                "no tensors by name: the file must have a state dictionary, and not inside another",
            )),
            all if all.len() > TENSORS_MAX => {
                Err(self.refused(format!("more tensors than {TENSORS_MAX}")))
            }
            all => Ok(all),
        }
    }

    fn rebuilt(&self, name: &'a str, made: Made) -> Result<Rebuilt<'a>, TorchError> {
        let ints = |tuple: Tuple| -> Result<Vec<i64>, TorchError> {
            if tuple.count > DIMENSIONS_MAX {
                let what = format!("{} dimensions: must be at most {DIMENSIONS_MAX}", tuple.count);
                return Err(TorchError::tensor(name, what));
            }
            let int = |value: &Value<'_>| match value {
                Value::Int(int) => Ok(*int),
                _ => Err(TorchError::tensor(name, "a size that is no integer")),
            };
            self.values(Value::Tuple(tuple)).iter().map(int).collect()
        };
        let Made { dtype, storage, offset, shape, strides } = made;
        let (shape, strides) = (ints(shape)?, ints(strides)?);
        Ok(Rebuilt { name, dtype, storage: self.storages[storage], offset, shape, strides })
    }
}

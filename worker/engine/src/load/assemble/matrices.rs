//! Matrices as they are held.

use aqueduct_kernels::int8::GROUP;
use aqueduct_kernels::{Int8Rows, Linear, Matrix, MatrixData};
use half::bf16;

use super::Assembler;
use crate::error::LoadError;
use crate::load::checkpoint::Stored;
use crate::load::encoding::Encoding;
use crate::load::held::Held;

impl Assembler<'_, '_> {
    /// Rows of all the tensors named in `parts`, one after the other.
    pub(super) fn matrix(
        &mut self,
        parts: &[(String, usize)],
        inputs: usize,
        bias: Option<Vec<f32>>,
    ) -> Result<Linear, LoadError> {
        let outputs = parts.iter().map(|(_, rows)| rows).sum();
        self.matrix_held(self.held(parts), parts, inputs, (outputs, bias))
    }

    /// How these are held together.
    pub(super) fn held<'n>(&self, parts: impl IntoIterator<Item = &'n (String, usize)>) -> Held {
        self.options.weights.held(self.options.kv, &self.encodings(parts))
    }

    /// As what each of these is held: mostly as files have it.
    pub(super) fn encodings<'n>(
        &self,
        parts: impl IntoIterator<Item = &'n (String, usize)>,
    ) -> Vec<Option<Encoding>> {
        let tensors = &self.sources.checkpoint.tensors;
        let encoding = |(name, _): &(String, usize)| match tensors.get(name)?.encoding {
            Some(Encoding::F16) => Some(self.f16_as),
            other => other,
        };
        parts.into_iter().map(encoding).collect()
    }

    /// Rows of these, held so, and zeros behind them where there are more outputs.
    pub(super) fn matrix_held(
        &mut self,
        held: Held,
        parts: &[(String, usize)],
        inputs: usize,
        (outputs, bias): (usize, Option<Vec<f32>>),
    ) -> Result<Linear, LoadError> {
        self.fingerprint.hold(held);
        let mut data = match held {
            Held::F32 => MatrixData::F32(joined(self.stack(parts, &[inputs], Stored::f32)?)),
            Held::Bf16 => MatrixData::Bf16(joined(self.stack(parts, &[inputs], Stored::bf16)?)),
            Held::Int8 => {
                let stack = self.stack(parts, &[inputs], Stored::int8)?;
                let (q, scales) = stack.into_iter().map(|part| (part.q, part.scales)).unzip();
                MatrixData::Int8(Int8Rows { q: joined(q), scales: joined(scales) })
            }
        };
        match &mut data {
            MatrixData::F32(data) => data.resize(outputs * inputs, 0.0),
            MatrixData::Bf16(data) => data.resize(outputs * inputs, bf16::ZERO),
            MatrixData::Int8(rows) => {
                rows.q.resize(outputs * inputs, 0);
                rows.scales.resize(outputs * inputs.div_ceil(GROUP), 0.0);
            }
        }
        let packed = self.options.backend.pack(Matrix { outputs, inputs, data }, bias);
        let path = &self.sources.checkpoint.path;
        packed.map_err(|err| LoadError::tensor(path, &parts[0].0, err.to_string()))
    }
}

/// All parts, one after the other; a single one as it is.
fn joined<T: Clone>(mut parts: Vec<Vec<T>>) -> Vec<T> {
    if parts.len() == 1 { parts.remove(0) } else { parts.concat() }
}

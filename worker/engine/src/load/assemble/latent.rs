//! What makes queries, keys and values of a few numbers (multi-head latent attention).

use aqueduct_kernels::{Latent, Linear, Raised};

use super::{Assembler, Sources, Stacked};
use crate::error::LoadError;
use crate::load::checkpoint::{HeadRows, Laid, RowOrder};
use crate::load::decoder::{Decoder, HeadOrder, LATENT_EPS, Latents};

impl Decoder {
    /// Elements of a key that are its head's own.
    fn own_key(&self) -> usize {
        (self.shape.head_dim - self.order.rotary_dim) as usize
    }
}

impl Sources<'_> {
    /// Tells where rows stand in layer `layer`, and which matrices are turned.
    ///
    /// # Errors
    /// Matrices of heads of another shape.
    pub(super) fn order_latent(&mut self, layer: u32, latents: Latents) -> Result<(), LoadError> {
        let (decoder, names) = (&self.decoder, &self.names.latent);
        let HeadOrder { rotary_dim, neighbours, .. } = decoder.order;
        let (heads, head_dim) = (decoder.shape.heads as usize, decoder.shape.head_dim as usize);
        let (rotary_dim, value) = (rotary_dim as usize, latents.value_dim as usize);
        let queries = HeadRows {
            first: 0,
            rows: heads * head_dim,
            head_dim,
            rotary_dim,
            neighbours,
            by_head: None,
            rotated_last: true,
        };
        let first = latents.keys as usize;
        let shared = HeadRows { first, rows: rotary_dim, head_dim: rotary_dim, ..queries };
        let key = decoder.own_key();
        for (name, order) in [
            (self.names.q, RowOrder::Heads(queries)),
            (names.q, RowOrder::Heads(queries)),
            (names.kv_few, RowOrder::Heads(shared)),
            (names.kv, RowOrder::ByGroup { groups: heads, parts: [key, value, 0, 0] }),
        ] {
            let name = format!("{}.{layer}.{name}.weight", self.names.layer);
            if let Some(tensor) = self.checkpoint.tensors.get_mut(&name) {
                tensor.order = Some(order);
            }
        }
        let [k, v, kv] = [names.k, names.v, names.kv]
            .map(|name| format!("{}.{layer}.{name}.weight", self.names.layer));
        if self.checkpoint.tensors.contains_key(&kv) {
            // The same once more, as some converters write it.
            for name in [k, v] {
                self.checkpoint.tensors.remove(&name);
            }
            return Ok(());
        }
        self.stack_heads(&k, true)?;
        self.stack_heads(&v, false)
    }

    /// Makes one matrix of those of all heads in tensor `name`, if it is there.
    fn stack_heads(&mut self, name: &str, turned: bool) -> Result<(), LoadError> {
        let heads = self.decoder.shape.heads as usize;
        let Some(tensor) = self.checkpoint.tensors.get_mut(name) else { return Ok(()) };
        let [rows, columns] = match *tensor.shape {
            [matrices, rows, columns] if matrices == heads => [rows, columns],
            _ => {
                let what = format!("shape {:?}, should be {heads} matrices", tensor.shape);
                return Err(LoadError::tensor(tensor.path, name, what));
            }
        };
        let [rows, inputs] = if turned { [columns, rows] } else { [rows, columns] };
        tensor.shape = vec![heads.saturating_mul(rows), inputs];
        if turned {
            if tensor.laid != Laid::Rows {
                let what = "scales of matrices that are to be turned".to_owned();
                return Err(LoadError::tensor(tensor.path, name, what));
            }
            tensor.laid = Laid::Turned { matrices: heads };
        }
        Ok(())
    }
}

impl Assembler<'_, '_> {
    /// The first product of a layer, and what comes of it.
    pub(super) fn latent(
        &mut self,
        prefix: &str,
        latents: Latents,
    ) -> Result<(Linear, Latent), LoadError> {
        let Sources { decoder, names, .. } = self.sources;
        let (shape, of) = (&decoder.shape, &names.latent);
        let (heads, rank) = (shape.heads as usize, latents.keys as usize);
        let shared = decoder.order.rotary_dim as usize;
        let all_queries = heads * shape.head_dim as usize;
        let first = latents.queries.map(|rank| (of.q_few, rank as usize));
        let parts = &[first.unwrap_or((names.q, all_queries)), (of.kv_few, rank + shared)];
        let norm = Some(names.attn_norm);
        let stacked = Stacked { parts, inputs: shape.width as usize, bias: false, norm };
        let made = self.linear(prefix, stacked)?;
        let (key, value) = (heads * decoder.own_key(), heads * latents.value_dim as usize);
        let keys = match of.k.is_empty() {
            true => vec![(of.kv, key + value)],
            false => self.parts(prefix, &[(of.k, key), (of.v, value)], of.kv),
        };
        let queries = match latents.queries {
            Some(rank) => {
                let parts = [(of.q, all_queries)];
                Some(self.raised(prefix, of.q_norm, &parts, rank as usize)?)
            }
            None => None,
        };
        let latent = Latent {
            queries,
            keys: self.raised(prefix, of.kv_norm, &keys, rank)?,
            shared,
            value_dim: latents.value_dim as usize,
            norm_eps: LATENT_EPS,
        };
        Ok((made, latent))
    }

    fn raised(
        &mut self,
        prefix: &str,
        norm: &str,
        parts: &[(&str, usize)],
        rank: usize,
    ) -> Result<Raised, LoadError> {
        let norm = self.norm(&format!("{prefix}.{norm}.weight"), rank)?.into();
        let stacked = Stacked { parts, inputs: rank, bias: false, norm: None };
        Ok(Raised { norm, up: self.linear(prefix, stacked)? })
    }
}

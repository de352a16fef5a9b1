//! Layer norms as RMS norms.
//!
//! LN(x) = (x − mean(x)) / sqrt(var(x) + ε) · w + b  (Ba, Kiros and Hinton 2016) is the RMS norm of
//! x − mean(x), plus b. All that the stream is a sum of is the embedding and what attention and
//! feed-forward parts give, so if each of these has no mean, the stream has none, and its layer
//! norm is its RMS norm. Each has none when the mean is taken from the weights: from a table's rows
//! each one's own, from a map into the stream the mean of its rows. A norm's b becomes W b, a bias
//! of each map that follows. So no kernel knows layer norms, and every test of RMS norms is one of
//! these. Those of each query and key head are RMS norms of heads that have no mean: it is taken
//! from the rows of the maps that make them, of each head its own.

use std::sync::Arc;

use aqueduct_core::ModelShape;
use aqueduct_kernels::Linear;

use super::{Assembler, Sources};
use crate::error::LoadError;
use crate::load::checkpoint::{Centre, Stored};
use crate::load::decoder::QkNorm;

/// The logit of a token that no text may have next: no chance at any temperature, and finite, so
/// that what is computed of logits is a number.
const IMPOSSIBLE: f32 = -1e30;

impl Sources<'_> {
    /// Takes the means out of what makes the stream, where it is read through layer norms.
    ///
    /// # Errors
    /// A tensor of another shape, or with a number that is not finite.
    pub(super) fn centre(&mut self) -> Result<(), LoadError> {
        let table = format!("{}.weight", self.names.embed);
        if self.decoder.family.bare_norms() {
            self.keep_table_for_logits(&table);
            if let Some(table) = self.checkpoint.tensors.get_mut(&table) {
                table.centre = Some(Centre::Scale { eps: self.decoder.norm_eps });
            }
        }
        if self.decoder.layer_norms.is_none() {
            return Ok(());
        }
        self.keep_table_for_logits(&table);
        let names = self.names;
        let of_embedding = self.centre_of_embedding()?;
        let positions = format!("{}.weight", names.positions);
        for (table, centre) in [(table, of_embedding), (positions, Centre::OfRow)] {
            if let Some(table) = self.checkpoint.tensors.get_mut(&table) {
                table.centre = Some(centre);
            }
        }
        let ModelShape { layers, width, heads, head_dim, ffn, .. } = self.decoder.shape;
        let (width, ffn, q_rows) = (width as usize, ffn as usize, (heads * head_dim) as usize);
        for layer in 0..layers {
            let of_part =
                |part, inputs| [(part, "weight", vec![width, inputs]), (part, "bias", vec![width])];
            let parts = [of_part(names.out, q_rows), of_part(names.down, ffn)];
            let experts = self.expert_outputs();
            let experts = experts.iter().flat_map(|(part, inputs)| of_part(part, *inputs));
            for (part, suffix, shape) in parts.into_iter().flatten().chain(experts) {
                let name = format!("{}.{layer}.{part}.{suffix}", names.layer);
                self.centre_rows(&name, &shape, shape[0])?;
            }
        }
        Ok(())
    }

    /// The same of what makes queries and keys, where layer norms are of each of their heads.
    ///
    /// # Errors
    /// Those of [`Self::centre`].
    pub(super) fn centre_heads(&mut self) -> Result<(), LoadError> {
        if self.decoder.qk_norm != QkNorm::HeadByHead {
            return Ok(());
        }
        let ModelShape { layers, width, heads, kv_heads, head_dim, .. } = self.decoder.shape;
        let (width, of) = (width as usize, head_dim as usize);
        for layer in 0..layers {
            for (part, heads) in [(self.names.q, heads), (self.names.k, kv_heads)] {
                let rows = heads as usize * of;
                for (suffix, shape) in [("weight", vec![rows, width]), ("bias", vec![rows])] {
                    let name = format!("{}.{layer}.{part}.{suffix}", self.names.layer);
                    self.centre_rows(&name, &shape, of)?;
                }
            }
        }
        Ok(())
    }

    /// What becomes of the embedding's rows: a norm behind them is of each row alone, and so is the
    /// table's.
    fn centre_of_embedding(&self) -> Result<Centre, LoadError> {
        if !self.decoder.family.embed_norm() {
            return Ok(Centre::OfRow);
        }
        let width = self.decoder.shape.width as usize;
        let [weights, biases] = self.names.embed_norm_tensors().map(|name| {
            let array = self.checkpoint.find(&name, &[width])?.f32(&name)?;
            Ok::<_, LoadError>(Arc::from(array))
        });
        let (weights, biases) = (weights?, biases?);
        Ok(Centre::OfNormed { eps: self.decoder.norm_eps, weights, biases })
    }

    /// Takes from every `of` rows of a tensor their mean, where there is such a tensor.
    fn centre_rows(&mut self, name: &str, shape: &[usize], of: usize) -> Result<(), LoadError> {
        if !self.checkpoint.tensors.contains_key(name) {
            return Ok(());
        }
        let means = self.checkpoint.find(name, shape)?.mean_rows(name, of)?;
        if let Some(tensor) = self.checkpoint.tensors.get_mut(name) {
            tensor.centre = Some(Centre::OfRows { of, means: means.into() });
        }
        Ok(())
    }

    /// Has logits be of the table as it is, whatever becomes of it.
    fn keep_table_for_logits(&mut self, table: &str) {
        if self.is_tied()
            && let Some(embed) = self.checkpoint.tensors.get(table).cloned()
        {
            self.checkpoint.tensors.insert(format!("{}.weight", self.names.head), embed);
            self.decoder.tied = false;
        }
    }

    /// What maps of experts into the stream may be called, and what they take.
    fn expert_outputs(&self) -> Vec<(String, usize)> {
        let (names, decoder) = (&self.names.experts, &self.decoder);
        let Some(experts) = &decoder.experts else { return Vec::new() };
        let numbered =
            |idx: u32| [names.down, names.downs].map(|name| name.replace("{}", &idx.to_string()));
        let each = (0..experts.count).flat_map(numbered).map(|name| (name, experts.ffn as usize));
        let shared = experts.shared_ffn.map(|ffn| (names.shared_down.to_owned(), ffn as usize));
        each.chain(shared).collect()
    }
}

impl Assembler<'_, '_> {
    /// The norm behind the embedding, which the table's rows have in them: that it counts among
    /// what the model is made of.
    pub(super) fn embed_norm(&mut self) -> Result<(), LoadError> {
        let Sources { decoder, names, .. } = self.sources;
        if decoder.family.embed_norm() {
            for name in names.embed_norm_tensors() {
                self.read(&name, &[decoder.shape.width as usize], Stored::f32)?;
            }
        }
        Ok(())
    }

    /// What makes logits of the stream behind its last norm.
    pub(super) fn head(&mut self, rows: usize, inputs: usize) -> Result<Linear, LoadError> {
        let Sources { decoder, names, .. } = self.sources;
        if let Some(some) = decoder.head_rows.map(|some| some as usize) {
            return self.part_of_head(some, rows, inputs);
        }
        let parts = vec![(format!("{}.weight", names.head), rows)];
        let own = match decoder.head_bias {
            true => Some(self.read(&format!("{}.bias", names.head), &[rows], Stored::f32)?),
            false => None,
        };
        let shift = self.behind_norm(Some(names.final_norm), &parts, inputs)?;
        let mut bias = sum(own, shift);
        bias.iter_mut().flatten().for_each(|bias| *bias /= decoder.scales.logits);
        self.matrix(&parts, inputs, bias)
    }

    /// The same where files have the first rows alone: tokens behind these are as good as
    /// impossible.
    fn part_of_head(
        &mut self,
        some: usize,
        rows: usize,
        inputs: usize,
    ) -> Result<Linear, LoadError> {
        let parts = [(format!("{}.weight", self.sources.names.head), some)];
        let bias = (0..rows).map(|row| if row < some { 0.0 } else { IMPOSSIBLE }).collect();
        self.matrix_held(self.held(&parts), &parts, inputs, (rows, Some(bias)))
    }

    /// What the bias of layer norm `norm` adds to the maps in `parts`, which follow it; `None`
    /// where it has none.
    pub(super) fn behind_norm(
        &mut self,
        norm: Option<&str>,
        parts: &[(String, usize)],
        inputs: usize,
    ) -> Result<Option<Vec<f32>>, LoadError> {
        let has_biases = self.sources.decoder.layer_norms.is_some_and(|norms| norms.biases);
        let Some(norm) = norm.filter(|_| has_biases) else { return Ok(None) };
        let (name, checkpoint) = (format!("{norm}.bias"), &self.sources.checkpoint);
        let shift = match self.used.contains(&name) {
            true => checkpoint.find(&name, &[inputs])?.f32(&name)?, // another map follows it too
            false => self.read(&name, &[inputs], Stored::f32)?,
        };
        let made = parts.iter().map(|(part, rows)| {
            self.sources.checkpoint.find(part, &[*rows, inputs])?.times(part, &shift)
        });
        Ok(Some(made.collect::<Result<Vec<_>, _>>()?.concat()))
    }

    /// The weights of a norm, which are all one where files have none.
    pub(super) fn weights_of_norm(
        &mut self,
        name: &str,
        len: usize,
    ) -> Result<Vec<f32>, LoadError> {
        let decoder = &self.sources.decoder;
        let is_bare = decoder.layer_norms.is_some_and(|norms| !norms.weights);
        match is_bare || decoder.family.bare_norms() {
            true => Ok(vec![1.0; len]),
            false => self.read(name, &[len], Stored::f32),
        }
    }
}

/// Both biases, where there are any.
pub(super) fn sum(one: Option<Vec<f32>>, other: Option<Vec<f32>>) -> Option<Vec<f32>> {
    match (one, other) {
        (Some(mut one), Some(other)) => {
            one.iter_mut().zip(other).for_each(|(one, other)| *one += other);
            Some(one)
        }
        (one, other) => one.or(other),
    }
}

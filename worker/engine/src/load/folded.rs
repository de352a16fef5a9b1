//! Parts that files number one by one, as layers (Nemotron-H).
//!
//! There each part has a norm and is added to the stream by itself: attention, what remembers in a
//! state, and feed-forward parts. Here what mixes tokens and the feed-forward part behind it are
//! one layer, so what is counted, planned and shown by layers is so of these, whatever numbers
//! files have.

use aqueduct_core::ModelShape;

use super::checkpoint::Checkpoint;

/// Bytes of the state of a layer that mixes nothing: one number, which is 0.
const STILL_STATE_BYTES: u64 = 4;

/// What a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// It remembers in a state.
    State,
    Attention,
    /// A feed-forward part, one for all tokens.
    Dense,
    /// The same of many, of which a token goes through a few.
    Experts,
}

impl Part {
    fn of_letter(letter: char) -> Option<Self> {
        Some(match letter {
            'M' => Self::State,
            '*' => Self::Attention,
            '-' => Self::Dense,
            'E' => Self::Experts,
            _ => return None,
        })
    }

    fn mixes(self) -> bool {
        matches!(self, Self::State | Self::Attention)
    }
}

/// The parts of a layer, by their numbers in files; at least one is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fold {
    /// What mixes tokens.
    pub(crate) mixer: Option<usize>,
    /// The feed-forward part.
    pub(crate) feed: Option<usize>,
}

/// All parts, and which of them are a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Folded {
    parts: Vec<Part>,
    /// `[layers]`.
    pub(crate) layers: Vec<Fold>,
}

impl Folded {
    pub(crate) fn new(parts: Vec<Part>) -> Self {
        let mut layers: Vec<Fold> = Vec::new();
        for (idx, part) in parts.iter().enumerate() {
            let mixes = part.mixes();
            match layers.last_mut() {
                Some(last) if !mixes && last.feed.is_none() => last.feed = Some(idx),
                _ => {
                    layers.push(Fold { mixer: mixes.then_some(idx), feed: (!mixes).then_some(idx) })
                }
            }
        }
        Self { parts, layers }
    }

    /// By letters: M for what remembers in a state, * for attention, - for a feed-forward part,
    /// E for one of many.
    ///
    /// # Errors
    /// Another letter.
    pub(crate) fn of_letters(letters: &str) -> Result<Self, char> {
        let parts = letters.chars().map(|letter| Part::of_letter(letter).ok_or(letter));
        parts.collect::<Result<_, _>>().map(Self::new)
    }

    /// Of so many layers of files in which what remembers in a state and attention stand side by
    /// side (Falcon H1): each is two layers, and the feed-forward part is the second one's.
    pub(crate) fn of_sides(layers: usize) -> Self {
        Self::new([Part::State, Part::Attention, Part::Dense].repeat(layers))
    }

    fn is(&self, idx: Option<usize>, part: Part) -> bool {
        idx.is_some_and(|idx| self.parts[idx] == part)
    }

    /// `[layers]`: which remember in a state.
    pub(crate) fn states(&self) -> Vec<bool> {
        self.layers.iter().map(|fold| self.is(fold.mixer, Part::State)).collect()
    }

    /// `[layers]`: which have many feed-forward parts.
    pub(crate) fn experts(&self) -> Vec<bool> {
        self.layers.iter().map(|fold| self.is(fold.feed, Part::Experts)).collect()
    }

    /// Adds layers that mix nothing to those of `shape` that remember in a state.
    pub(crate) fn add_still(&self, shape: &mut ModelShape) {
        let still = self.layers.iter().filter(|fold| fold.mixer.is_none()).count() as u32;
        shape.recurrent_layers += still;
        shape.state_bytes += u64::from(still) * STILL_STATE_BYTES;
    }

    /// Gives tensors of parts, which are called `layer` and a number, the numbers of layers. The
    /// norm of a part is called `norm`, and that of a feed-forward part `feed_norm` then: other
    /// names are never those of both parts of a layer.
    pub(crate) fn number(
        &self,
        checkpoint: &mut Checkpoint<'_>,
        layer: &str,
        [norm, feed_norm]: [&str; 2],
    ) {
        let renamed = |name: &str| {
            let (part, own) = name.strip_prefix(layer)?.strip_prefix('.')?.split_once('.')?;
            let part = Some(part.parse::<usize>().ok()?);
            let of = |fold: &Fold| fold.mixer == part || fold.feed == part;
            let idx = self.layers.iter().position(of)?;
            let own = match self.layers[idx].feed == part && own == norm {
                true => feed_norm,
                false => own,
            };
            Some(format!("{layer}.{idx}.{own}"))
        };
        let tensors = std::mem::take(&mut checkpoint.tensors).into_iter();
        checkpoint.tensors =
            tensors.map(|(name, tensor)| (renamed(&name).unwrap_or(name), tensor)).collect();
    }
}

/// Makes two layers of each that files have, in which what remembers in a state and attention stand
/// side by side: of the first is what begins like `state`, of both `norm`, and of the second the
/// rest.
pub(crate) fn part_sides(checkpoint: &mut Checkpoint<'_>, layer: &str, [norm, state]: [&str; 2]) {
    let named = |name: &str| -> Option<Vec<String>> {
        let (of, own) = name.strip_prefix(layer)?.strip_prefix('.')?.split_once('.')?;
        let first = of.parse::<usize>().ok()?.checked_mul(2)?;
        let sides = match own {
            _ if own == norm => 0..2,
            _ if own.starts_with(state) => 0..1,
            _ => 1..2,
        };
        Some(sides.map(|side| format!("{layer}.{}.{own}", first + side)).collect())
    };
    for (name, tensor) in std::mem::take(&mut checkpoint.tensors) {
        let names = named(&name).unwrap_or_else(|| vec![name]);
        checkpoint.tensors.extend(names.into_iter().map(|name| (name, tensor.clone())));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use aqueduct_core::{WideHeads, WindowedLayers};

    use super::*;
    use crate::load::checkpoint::Stored;

    fn fold(mixer: Option<usize>, feed: Option<usize>) -> Fold {
        Fold { mixer, feed }
    }

    #[test]
    fn parts_are_layers() {
        let folded = Folded::of_letters("M-*EMM--").unwrap();
        let want = [
            fold(Some(0), Some(1)),
            fold(Some(2), Some(3)),
            fold(Some(4), None),
            fold(Some(5), Some(6)),
            fold(None, Some(7)),
        ];
        assert_eq!(folded.layers, want);
        assert_eq!(folded.states(), [true, false, true, true, false]);
        assert_eq!(folded.experts(), [false, true, false, false, false]);
        assert_eq!(Folded::of_letters("-M").unwrap().layers[0], fold(None, Some(0)));
        assert!(Folded::of_letters("").unwrap().layers.is_empty());
        assert_eq!(Folded::of_letters("M|-"), Err('|'));
    }

    #[test]
    fn tensors_have_the_numbers_of_layers() {
        let stored = Stored::new("file", &[2], ("?", None), &[]);
        let names = [
            "embeddings.weight",
            "layers.0.norm.weight",
            "layers.0.mixer.norm.weight",
            "layers.1.norm.weight",
            "layers.1.mixer.up_proj.weight",
            "layers.2.norm.weight",
            "layers.3.norm.weight",
            "layers.9.norm.weight",
        ];
        let tensors = names.map(|name| (name.to_owned(), stored.clone()));
        let mut checkpoint =
            Checkpoint { path: "file".to_owned(), tensors: BTreeMap::from(tensors) };
        let folded = Folded::of_letters("M-*M").unwrap();
        folded.number(&mut checkpoint, "layers", ["norm.weight", "feed_norm.weight"]);
        let seen: Vec<_> = checkpoint.tensors.keys().collect();
        let want = [
            "embeddings.weight",
            "layers.0.feed_norm.weight",
            "layers.0.mixer.norm.weight",
            "layers.0.mixer.up_proj.weight",
            "layers.0.norm.weight",
            "layers.1.norm.weight",
            "layers.2.norm.weight",
            "layers.9.norm.weight", // of no part
        ];
        assert_eq!(seen, want);
    }

    #[test]
    fn sides_of_a_layer_are_layers() {
        let stored = Stored::new("file", &[2], ("?", None), &[]);
        let names = ["norm.weight", "layers.3.norm.weight", "layers.3.ssm.D", "layers.3.q.weight"];
        let tensors = names.map(|name| (name.to_owned(), stored.clone()));
        let mut checkpoint =
            Checkpoint { path: "file".to_owned(), tensors: BTreeMap::from(tensors) };
        part_sides(&mut checkpoint, "layers", ["norm.weight", "ssm."]);
        let seen: Vec<_> = checkpoint.tensors.keys().collect();
        let want = [
            "layers.6.norm.weight",
            "layers.6.ssm.D",
            "layers.7.norm.weight",
            "layers.7.q.weight",
            "norm.weight",
        ];
        assert_eq!(seen, want);
    }

    #[test]
    fn layers_that_mix_nothing_are_counted() {
        let mut shape = ModelShape {
            vocab: 32,
            layers: 4,
            width: 32,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            ffn: 48,
            max_positions: 64,
            recurrent_layers: 1,
            state_bytes: 100,
            wide: WideHeads::NONE,
            kv_shared_layers: 0,
            windowed: WindowedLayers::NONE,
        };
        Folded::of_letters("M---*").unwrap().add_still(&mut shape);
        assert_eq!((shape.recurrent_layers, shape.state_bytes), (3, 108));
    }
}

//! Which layers of a family are unlike the others.

/// Gemma 3: of so many layers one sees all positions, unless a file says otherwise.
pub(crate) const FULL_LAYER_INTERVAL: usize = 6;

/// The same in Gemma 2 and gpt-oss.
pub(crate) const ALTERNATE_LAYERS: usize = 2;

/// The same in OLMo 3, EXAONE 4, Trinity and Cohere's.
pub(crate) const OLMO3_FULL_LAYER_INTERVAL: usize = 4;

/// SmolLM3: of so many layers one does not rotate, unless a file says otherwise.
pub(crate) const STILL_LAYER_INTERVAL: usize = 4;

/// Which of so many layers do something, if every `interval`th does not.
pub(crate) fn all_but_every(interval: usize, layers: u32) -> Vec<bool> {
    (1..=layers as usize).map(|layer| !layer.is_multiple_of(interval)).collect()
}

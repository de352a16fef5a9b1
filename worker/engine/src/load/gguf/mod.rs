//! A GGUF file as llama.cpp's converter writes it.

mod config;
mod rope;
mod tensors;

use std::path::Path;

use aqueduct_gguf::Gguf;
use aqueduct_kernels::MappedFile;

use super::assemble::{Sources, assemble};
use super::{LoadOptions, LoadProgress, names};
use crate::error::LoadError;
use crate::model::Model;

/// Loads the model in the file at `path`.
pub(crate) fn load(
    path: &Path,
    options: &LoadOptions,
    report: &mut dyn FnMut(LoadProgress),
) -> Result<Model, LoadError> {
    let file = MappedFile::open(path).map_err(|err| LoadError::io(path, err))?;
    let gguf = Gguf::parse(&file).map_err(|err| LoadError::malformed(path, err.to_string()))?;
    let shown = path.display().to_string();
    let config = config::Config { path: &shown, gguf: &gguf };
    let architecture = config.architecture()?;
    let mut checkpoint = tensors::checkpoint(&gguf, &shown);
    let decoder = config.decoder(architecture, &checkpoint)?;
    if architecture.interleaved() {
        tensors::mark_interleaved(&mut checkpoint, &decoder);
    }
    assemble(&Sources { decoder, checkpoint, names: &names::GGUF }, options, report)
}

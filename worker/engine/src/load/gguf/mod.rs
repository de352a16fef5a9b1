//! GGUF files as llama.cpp's converter writes them, whole or split.

mod activations;
mod alibi;
mod architecture;
mod config;
mod experts;
mod factors;
mod gemma4;
mod latent;
mod layers;
mod nemotron_h;
mod parts;
mod recurrent;
mod rope;
mod scales;
mod tensors;

use std::path::PathBuf;

use self::architecture::Architecture;
use super::assemble::{Sources, assemble};
use super::{LoadOptions, LoadProgress, names};
use crate::error::LoadError;
use crate::model::Model;

/// Loads the model in these files, which are the parts of one.
pub(crate) fn load(
    paths: &[PathBuf],
    options: &LoadOptions,
    report: &mut dyn FnMut(LoadProgress),
) -> Result<Model, LoadError> {
    let files = parts::Files::open(paths)?;
    let parts = files.parse()?;
    let config = config::Config { path: parts[0].path, gguf: &parts[0].gguf };
    let architecture = config.architecture()?;
    let mut checkpoint = tensors::checkpoint(&parts)?;
    factors::join(&mut checkpoint, architecture)?;
    config.number_layers(architecture, &mut checkpoint)?;
    let decoder = config.decoder(architecture, &checkpoint)?;
    let names = match architecture {
        Architecture::Falcon if decoder.two_norms => &names::GGUF_FALCON_TWO,
        Architecture::Qwen3Next if checkpoint.has_some(".ssm_in.weight") => {
            &names::GGUF_FIRST_QWEN3_NEXT
        }
        _ => architecture.names(),
    };
    assemble(&Sources::new(decoder, checkpoint, names)?, options, report)
}

//! What stands between the products of feed-forward parts, of which metadata says little.

use aqueduct_core::{ModelShape, Refusal};
use aqueduct_gguf::{Field, Value};
use aqueduct_kernels::{Activation, Ungated};

use super::config::{Architecture, Config, Keys};
use crate::error::LoadError;
use crate::load::decoder::xielu;

/// Layers by which llama.cpp tells GPT-NeoX-20B, which has the other GELU than all the others that
/// were made like it.
const NEOX_20B_LAYERS: u32 = 44;

impl Config<'_, '_> {
    /// `[layers]`.
    pub(super) fn activations(
        &self,
        keys: &Keys<'_, '_>,
        shape: &ModelShape,
    ) -> Result<Vec<Activation>, LoadError> {
        let layers = shape.layers as usize;
        let usual = match keys.architecture {
            Architecture::GptNeoX if shape.layers == NEOX_20B_LAYERS => {
                Activation::Ungated(Ungated::GeluTanh)
            }
            architecture => architecture.family().activation(),
        };
        if keys.architecture != Architecture::Apertus {
            return Ok(vec![usual; layers]);
        }
        let [positive, negative, beta, eps] = ["alpha_p", "alpha_n", "beta", "eps"];
        let each = |part| self.number_of_each(&format!("xielu.{part}"), layers);
        let (positive, negative) = (each(positive)?, each(negative)?);
        let others = each(beta)?.into_iter().zip(each(eps)?);
        let all = positive.into_iter().zip(negative).zip(others);
        Ok(all
            .map(|((positive, negative), (beta, eps))| xielu([positive, negative, beta, eps]))
            .collect())
    }

    /// Finite numbers of all layers, or one of each.
    fn number_of_each(&self, key: &str, layers: usize) -> Result<Vec<f32>, LoadError> {
        let refused = |refusal| LoadError::refused(self.path, refusal);
        let field = self.gguf.field(key).map_err(|err| self.malformed(err))?;
        let given = match field.value {
            Value::Array(_) => field.f32s(),
            Value::Scalar(..) | Value::Str(_) => Field::f32(field).map(|one| vec![one; layers]),
        };
        let given = given.map_err(|err| self.malformed(err))?;
        Refusal::unless_within(&format!("{key} count"), given.len(), layers, layers)
            .map_err(refused)?;
        let bounded = |&number: &f32| Refusal::unless_within(key, number, -1e6, 1e6);
        given.iter().map(bounded).collect::<Result<_, _>>().map_err(refused)
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_core::{WideHeads, WindowedLayers};
    use aqueduct_gguf::Gguf;
    use aqueduct_gguf::write::Writer;
    use aqueduct_kernels::Xielu;

    use super::*;

    fn activations(
        architecture: Architecture,
        layers: u32,
        file: Writer,
    ) -> Result<Vec<Activation>, LoadError> {
        let bytes = file.finish();
        let gguf = Gguf::parse(&bytes).unwrap();
        let config = Config { path: "file", gguf: &gguf };
        let shape = ModelShape {
            vocab: 32,
            layers,
            width: 32,
            heads: 4,
            kv_heads: 4,
            head_dim: 8,
            ffn: 48,
            max_positions: 64,
            recurrent_layers: 0,
            state_bytes: 0,
            wide: WideHeads::NONE,
            kv_shared_layers: 0,
            windowed: WindowedLayers::NONE,
        };
        config.activations(&Keys { gguf: &gguf, architecture }, &shape)
    }

    #[test]
    fn neox_is_read_as_it_is_trained() {
        let of = |layers| {
            activations(Architecture::GptNeoX, layers, Writer::new()).unwrap().pop().unwrap()
        };
        assert_eq!(of(6), Activation::Ungated(Ungated::Gelu));
        assert_eq!(of(44), Activation::Ungated(Ungated::GeluTanh));
    }

    #[test]
    fn apertus_says_its_numbers() {
        let file = || Writer::new().f32("xielu.alpha_p", 0.0).f32("xielu.alpha_n", 1.0);
        let whole = file().f32("xielu.beta", 0.5).f32("xielu.eps", -1e-6);
        let all = activations(Architecture::Apertus, 2, whole).unwrap();
        let [Activation::Ungated(Ungated::Xielu(seen)), _] = all[..] else { panic!("{all:?}") };
        let want = Xielu {
            positive: std::f32::consts::LN_2,
            negative: 1.813_261_6,
            beta: 0.5,
            eps: -1e-6,
        };
        assert_eq!(seen, want);
        assert_eq!(all[0], all[1]);
        let others = || Writer::new().f32("xielu.beta", 0.5).f32("xielu.eps", -1e-6);
        let of_each = |numbers: &[f32]| {
            let file = others().f32s("xielu.alpha_p", numbers).f32s("xielu.alpha_n", &[1.0; 2]);
            activations(Architecture::Apertus, 2, file)
        };
        assert_eq!(of_each(&[3.0, 0.0]).unwrap()[1], all[1]);
        let one_more = of_each(&[0.0; 3]).unwrap_err().to_string();
        assert!(one_more.contains("xielu.alpha_p count"), "{one_more}");
        let no_eps = activations(Architecture::Apertus, 2, file().f32("xielu.beta", 0.5));
        assert!(no_eps.unwrap_err().to_string().contains("xielu.eps"));
        let beyond = file().f32("xielu.beta", f32::NAN).f32("xielu.eps", -1e-6);
        let beyond = activations(Architecture::Apertus, 2, beyond);
        assert!(beyond.unwrap_err().to_string().contains("xielu.beta"));
    }
}

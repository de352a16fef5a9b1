//! What llama.cpp calls the tensors of models some of whose layers remember in a state.

use super::{FirstPart, GGUF, GGUF_POST_NORM, Names, Rates, RecurrentNames};
use crate::load::decoder::Columns;

/// What makes queries, keys and values, and what multiplies values.
const QKV: FirstPart = of_kinds("attn_qkv", &[Columns::Keys, Columns::Keys, Columns::Values]);
const Z: FirstPart = of_kinds("attn_gate", &[Columns::Values]);
/// What makes steps and decays, those of a key head together.
const STEPS: FirstPart =
    FirstPart { by_head: true, ..of_kinds("ssm_ba", &[Columns::Heads, Columns::Heads]) };

/// The same in tensors of their own.
const BETA: FirstPart = of_kinds("ssm_beta", &[Columns::Heads]);
const ALPHA: FirstPart = of_kinds("ssm_alpha", &[Columns::Heads]);
/// All but `STEPS` in one, those of a key head together.
const ALL_BY_HEAD: FirstPart = FirstPart {
    by_head: true,
    ..of_kinds("ssm_in", &[Columns::Keys, Columns::Keys, Columns::Values, Columns::Values])
};
const SSM_IN: FirstPart = of_kinds("ssm_in", &[Columns::All]);
const SHORT_IN: FirstPart = of_kinds("shortconv.in_proj", &[Columns::All]);

const fn of_kinds(name: &'static str, columns: &'static [Columns]) -> FirstPart {
    FirstPart { name, columns, by_head: false }
}

/// Qwen3-Next.
pub(crate) const GGUF_QWEN3_NEXT: Names = Names {
    out_gate: "attn_gate",
    recurrent: RecurrentNames { first: &[QKV, Z, STEPS], ..SSM },
    ..GGUF_POST_NORM
};

/// The same as it was at first, when its converter left the order of transformers' files.
pub(crate) const GGUF_FIRST_QWEN3_NEXT: Names =
    Names { recurrent: RecurrentNames { first: &[ALL_BY_HEAD, STEPS], ..SSM }, ..GGUF_QWEN3_NEXT };

/// Qwen 3.5.
pub(crate) const GGUF_QWEN35: Names =
    Names { recurrent: RecurrentNames { first: &[QKV, Z, BETA, ALPHA], ..SSM }, ..GGUF_QWEN3_NEXT };

/// LFM2, whose last norm is called after the embedding.
pub(crate) const GGUF_LFM2: Names = Names {
    final_norm: "token_embd_norm",
    recurrent: RecurrentNames {
        first: &[SHORT_IN],
        conv: &[("shortconv.conv", Columns::Channels)],
        out: "shortconv.out_proj",
        ..RecurrentNames::NONE
    },
    ..GGUF
};

/// Granite 4.
pub(crate) const GGUF_GRANITE_HYBRID: Names =
    Names { recurrent: RecurrentNames { first: &[SSM_IN], ..SSM }, ..GGUF };

/// What most have in common.
const SSM: RecurrentNames = RecurrentNames {
    first: &[],
    conv: &[("ssm_conv1d", Columns::Channels)],
    rate: "ssm_a",
    rates: Rates::Negative,
    shift: "ssm_dt.bias",
    skip: "ssm_d",
    norm: "ssm_norm.weight",
    out: "ssm_out",
};

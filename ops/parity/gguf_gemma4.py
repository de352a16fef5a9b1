"""What a GGUF file says of Gemma 4 besides, as llama.cpp's converter writes it."""
import gguf
import numpy as np
import torch

# What has no `.weight`, and what it is called.
PIECES = {'layer_scalar': 'layer_output_scale.weight', 'router.scale': 'ffn_gate_inp.scale',
          'router.per_expert_scale': 'ffn_down_exps.scale'}
# Of a frequency that turns nothing.
STILL = 1e30


def is_gemma4(config):
    return config.model_type == 'gemma4_text'


def add_metadata(writer, config):
    """The lengths are those of layers that see everything; `_swa` those of layers with a window."""
    slides = [kind == 'sliding_attention' for kind in config.layer_types]
    full = config.per_layer_config[slides.index(False)]
    writer.add_head_count_kv([config.num_key_value_heads if is_sliding else
                              full.num_key_value_heads for is_sliding in slides])
    for name, length in ((('key_length', 'value_length'), full.head_dim),
                         (('key_length_swa', 'value_length_swa'), config.head_dim)):
        for key in name:
            writer.add_uint32(f'gemma4.attention.{key}', length)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_sliding_window_pattern(slides)
    writer.add_rope_dimension_count(full.head_dim)
    writer.add_uint32('gemma4.rope.dimension_count_swa', config.head_dim)
    theta = config.rope_parameters['sliding_attention']['rope_theta']
    writer.add_float32('gemma4.rope.freq_base_swa', theta)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def feed_forward_length(config):
    """Of each layer, where those without keys have wider parts."""
    if not (is_gemma4(config) and config.use_double_wide_mlp and config.num_kv_shared_layers):
        return config.intermediate_size
    own = config.num_hidden_layers - config.num_kv_shared_layers
    ffn = config.intermediate_size
    return [ffn] * own + [2 * ffn] * config.num_kv_shared_layers


def rope_factors(config):
    """Divisors of the frequencies of layers that see everything, most of which do not turn."""
    full = config.per_layer_config[config.layer_types.index('full_attention')]
    share = config.rope_parameters['full_attention']['partial_rotary_factor']
    turned = int(full.head_dim * share / 2)
    return {'rope_freqs': [1.0] * turned + [STILL] * (full.head_dim // 2 - turned)}


def is_piece(key, config):
    return is_gemma4(config) and (piece(key) in PIECES or key.endswith('.gate_up_proj'))


def piece(key):
    """The name behind the layer's number."""
    return '.'.join(key.split('.')[3:])


def add_tensor(writer, key, tensor, kind):
    """Adds one of these; returns what a reader of the file gets."""
    layer, data = key.split('.')[2], tensor.float().numpy()
    if piece(key) in PIECES:
        writer.add_tensor(f'blk.{layer}.{PIECES[piece(key)]}', data)
        return tensor
    kind = gguf.GGMLQuantizationType[kind]
    if data.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = gguf.GGMLQuantizationType.F32
    quantised = gguf.quants.quantize(data, kind)
    writer.add_tensor(f'blk.{layer}.ffn_gate_up_exps.weight', quantised, raw_dtype=kind)
    data = gguf.quants.dequantize(quantised, kind).reshape(data.shape)
    return torch.from_numpy(np.ascontiguousarray(data.astype(np.float32)))

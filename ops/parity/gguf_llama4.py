"""What a GGUF file says of Llama 4 besides, as llama.cpp's converter writes it."""
import gguf
import numpy as np
import torch


def is_llama4(config):
    return config.model_type == 'llama4_text'


def add_metadata(writer, config):
    writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
    writer.add_expert_feed_forward_length(config.intermediate_size)


def is_piece(key, config):
    return is_llama4(config) and '.feed_forward.experts.' in key


def add_tensor(writer, key, tensor, kind):
    """Adds experts, whose modules have columns for rows; returns what a reader of the file gets."""
    layer, which = key.split('.')[2], key.rpartition('.')[2]
    rows = tensor.float().numpy().swapaxes(1, 2)
    parts = [('down', rows)]
    if which == 'gate_up_proj':
        half = rows.shape[1] // 2
        parts = [('gate', rows[:, :half]), ('up', rows[:, half:])]
    kind = gguf.GGMLQuantizationType[kind]
    if rows.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = gguf.GGMLQuantizationType.F32
    made = []
    for name, part in parts:
        quantised = gguf.quants.quantize(np.ascontiguousarray(part), kind)
        writer.add_tensor(f'blk.{layer}.ffn_{name}_exps.weight', quantised, raw_dtype=kind)
        made.append(gguf.quants.dequantize(quantised, kind).reshape(part.shape))
    rows = np.concatenate(made, 1).swapaxes(1, 2)
    return torch.from_numpy(np.ascontiguousarray(rows.astype(np.float32)))

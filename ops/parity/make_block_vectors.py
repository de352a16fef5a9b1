#!/usr/bin/env python3
"""Random blocks of GGUF's block formats and what the gguf package makes of them, as JSON.

Needs numpy and gguf.    make_block_vectors.py > worker/engine/src/load/blocks/vectors.json
"""
import json

import gguf
import numpy as np

BLOCKS = 3
# Where a block's f16 scales stand.
SCALES = {
    'Q8_0': [0], 'Q4_0': [0], 'Q4_1': [0, 2], 'Q5_0': [0], 'Q5_1': [0, 2],
    'Q2_K': [80, 82], 'Q3_K': [108], 'Q4_K': [0, 2], 'Q5_K': [0, 2], 'Q6_K': [208],
    'IQ4_NL': [0], 'IQ4_XS': [0],
    'IQ1_S': [0], 'IQ1_M': [], 'IQ2_XXS': [0], 'IQ2_XS': [0], 'IQ2_S': [0], 'IQ3_XXS': [0],
    'IQ3_S': [0], 'TQ1_0': [52], 'TQ2_0': [64], 'NVFP4': [],
}


def vector(name, rng):
    kind = gguf.GGMLQuantizationType[name]
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (BLOCKS, block_bytes), dtype=np.uint8)
    for at in SCALES[name]:
        scales = rng.standard_normal(BLOCKS).astype(np.float16)
        blocks[:, at:at + 2] = scales.view(np.uint8).reshape(BLOCKS, 2)
    if name == 'IQ1_M':  # whose scale is spread: the highest bits of an f16 in the last half byte
        blocks[:, 55] = blocks[:, 55] & 0x0f | 0x30
    if name == 'NVFP4':  # whose scales have no sign, and are numbers
        blocks[:, :4] = blocks[:, :4] % 0x7f
    elements = gguf.quants.dequantize(blocks, kind)
    return {'bytes': blocks.flatten().tolist(), 'elements': elements.flatten().tolist()}


rng = np.random.default_rng(1)
print(json.dumps({name: vector(name, rng) for name in SCALES}))

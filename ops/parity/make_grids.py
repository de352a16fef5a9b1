#!/usr/bin/env python3
"""Writes the patterns that elements of GGUF's IQ1 to IQ3 formats make up, as the gguf package has
them: 16-bit words, lowest byte first, the first element in the lowest bits.

Needs numpy and gguf.    make_grids.py worker/engine/src/load/blocks/grids.bin
"""
import sys

import gguf
import numpy as np

# In this order; `grids.rs` says where each begins.
NAMES = ['IQ2_XXS', 'IQ2_XS', 'IQ2_S', 'IQ3_XXS', 'IQ3_S', 'IQ1_S']


def words(name):
    """A pattern is eight elements of 2 bits, or four of 3: which of the format's levels each is."""
    kind = getattr(gguf.quants, name)
    kind.init_grid()
    levels = list(kind.grid_map)
    patterns = kind.grid.reshape(kind.grid_shape)
    bits = 2 if len(levels) == 3 else 3
    index = np.vectorize(levels.index)(patterns.astype(np.int64))
    shifts = np.arange(patterns.shape[1]) * bits
    return (index << shifts).sum(axis=1).astype('<u2')


with open(sys.argv[1], 'wb') as out:
    for name in NAMES:
        out.write(words(name).tobytes())

#!/usr/bin/env python3
"""Runs `aqueduct eval logits` on every case of make_models.py and compares with its logits.

Needs numpy and safetensors.    compare.py DIR [--binary target/release/aqueduct] [--workers 1,4]

Prints a line for every run and exits with 1 if any differs by more than the tolerance. Those
runs compute in full precision (--kv f32). Then a real model's Q8_0 file is run as a user runs it,
with bf16 keys and values and weights of eight-bit integers, and held to QUANTISED.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


# What the logits of a quantised model may be off, as a share of their spread (root mean squares).
# Integers of normally distributed groups of 128, whose largest is 2.7 deviations, are off by
# 2.7 / (127 sqrt(12)) = 0.6 % of a deviation, on either side of a product: 0.9 % of the product.
# The shipped model has 6 layers of 4 products and a head. Where each adds its own and nothing
# dampens them, that is 0.9 % sqrt(25).
QUANTISED = 0.045


def run(args, case, workers, out, kv='f32'):
    """The logits that the binary computes, or its last line on the way out."""
    command = [args.binary, 'eval', 'logits', '--model', args.dir / case['model'],
               '--tokens-file', args.dir / case['tokens'], '--policy', 'dense', '--kv', kv,
               '--chunk', args.chunk, '--workers', workers, '--out', out]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ['no message']
        return None, f'exit code {done.returncode}: {lines[-1]}'
    return load_file(out)['logits'], None


def judge(seen, want, tolerance):
    """What is wrong, if anything, and the largest difference."""
    if seen.shape != want.shape or seen.dtype != np.float32:
        return f'shape {seen.shape} {seen.dtype}, not {want.shape} float32', np.nan
    worst = float(np.abs(seen - want).max())
    return (None if worst <= tolerance else f'above {tolerance}'), worst


def check_quantised(args, case, out):
    """Whether the defaults keep to QUANTISED."""
    want = load_file(args.dir / case['logits'])['logits']
    seen, wrong = run(args, case, '1', out, kv='bf16')
    off = np.nan
    if wrong is None:
        spread = (want - want.mean(axis=-1, keepdims=True)).std()
        off = float(np.sqrt(np.mean((seen - want) ** 2)) / spread)
        wrong = None if off <= QUANTISED else f'above {QUANTISED}'
    print(f'{case["model"]:<28} as int8    {off:9.2e}  {wrong or "ok"}')
    return wrong is None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('dir', type=Path)
    parser.add_argument('--binary', default='target/release/aqueduct')
    parser.add_argument('--chunk', type=int, default=16)
    parser.add_argument('--workers', default='1,4')
    parser.add_argument('--tolerance', type=float, default=2e-3)
    args = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        cases = json.loads((args.dir / 'cases.json').read_text())
        for case in (case for case in cases if case['model'] == 'shipped-Q8_0.gguf'):
            failures += not check_quantised(args, case, Path(folder) / 'logits.safetensors')
        for case in cases:
            want = load_file(args.dir / case['logits'])['logits']
            for workers in args.workers.split(','):
                seen, wrong = run(args, case, workers, Path(folder) / 'logits.safetensors')
                worst = np.nan
                if wrong is None:
                    wrong, worst = judge(seen, want, args.tolerance)
                failures += wrong is not None
                verdict = wrong or 'ok'
                print(f'{case["model"]:<28} workers {workers:<3} {worst:9.2e}  {verdict}')
    if failures:
        sys.exit(f'{failures} runs failed')


if __name__ == '__main__':
    main()

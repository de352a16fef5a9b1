#!/usr/bin/env python3
"""Runs `aqueduct eval logits` on every case of make_models.py and compares with its logits.

Needs numpy and safetensors.    compare.py DIR [--binary target/release/aqueduct] [--workers 1,4]

Prints a line for every run and exits with 1 if any differs by more than the tolerance.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def run(args, case, workers, out):
    """The logits that the binary computes, or its last line on the way out."""
    command = [args.binary, 'eval', 'logits', '--model', args.dir / case['model'],
               '--tokens-file', args.dir / case['tokens'], '--policy', 'dense', '--kv', 'f32',
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
        for case in json.loads((args.dir / 'cases.json').read_text()):
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

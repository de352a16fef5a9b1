#!/usr/bin/env python3
"""Compares `aqueduct eval logits` under h2o and window with the float64 oracle of ops/reference.

Needs what make_models.py needs.    oracle_compare.py [--binary target/release/aqueduct]

Prints a line for every run and exits with 1 if a logit differs by more than the tolerance times
its row's largest.  Keys and values are f32: rounding them to bf16 changes which keys are kept.
"""
import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import transformers
from safetensors.numpy import load_file

import make_models

sys.path.append(str(Path(__file__).parent.parent / 'reference'))
import h2o_reference as oracle  # noqa: E402

MODELS = ['llama-gqa', 'llama-mha-tied', 'qwen3']
# chunk, prompt lengths, sinks, local, heavy, score options
CASES = [
    (16, [1, 15, 16, 17, 131], 2, 4, 5, {}),
    (16, [131], 2, 4, 5, dict(decay=0.95)),
    (16, [131], 2, 4, 5, dict(window=4)),
    (16, [131], 2, 4, 5, dict(age_normalised=True)),
    (16, [131], 2, 4, 5, dict(age_normalised=True, decay=0.9, window=5)),
    (33, [131], 0, 6, 9, {}),
    (16, [64], 4, 300, 300, {}),
    (5, [40], 20, 2, 2, {}),
    (1, [30], 1, 3, 3, {}),
]


def block(config, weights, memories, tokens, start, policy):
    """One block through every layer of a Llama or Qwen3, in float64."""
    heads, groups, eps = config.num_attention_heads, config.num_key_value_heads, config.rms_norm_eps
    head_dim = config.head_dim or config.hidden_size // heads
    theta = config.rope_parameters['rope_theta']
    positions = np.arange(start, start + len(tokens))

    def heads_of(x, name, count):
        y = (x @ weights[f'{name}_proj.weight'].T).reshape(len(tokens), count, head_dim)
        norm = weights.get(f'{name}_norm.weight')
        y = y if norm is None else oracle.rms_norm(y, norm, eps)
        return y.transpose(1, 0, 2)

    x, after = weights['model.embed_tokens.weight'][tokens], []
    for idx, memory in enumerate(memories):
        layer = f'model.layers.{idx}'
        attn, mlp = f'{layer}.self_attn', f'{layer}.mlp'
        h = oracle.rms_norm(x, weights[f'{layer}.input_layernorm.weight'], eps)
        q = oracle.rotate(heads_of(h, f'{attn}.q', heads), positions, theta)
        k = oracle.rotate(heads_of(h, f'{attn}.k', groups), positions, theta)
        out, memory = oracle.advance(memory, q, k, heads_of(h, f'{attn}.v', groups), start, policy)
        out = out.transpose(1, 0, 2).reshape(len(tokens), -1)
        x = x + out @ weights[f'{attn}.o_proj.weight'].T
        h = oracle.rms_norm(x, weights[f'{layer}.post_attention_layernorm.weight'], eps)
        gate = h @ weights[f'{mlp}.gate_proj.weight'].T
        up = h @ weights[f'{mlp}.up_proj.weight'].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[f'{mlp}.down_proj.weight'].T
        after.append(memory)
    logits = oracle.rms_norm(x, weights['model.norm.weight'], eps) @ weights['lm_head.weight'].T
    return logits, after


def expected(config, weights, tokens, chunk, policy):
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    empty = oracle.Memory.empty(config.num_key_value_heads, head_dim)
    memories, rows = [empty] * config.num_hidden_layers, []
    for start in range(0, len(tokens), chunk):
        part = tokens[start:start + chunk]
        logits, memories = block(config, weights, memories, part, start, policy)
        rows.append(logits)
    return np.concatenate(rows)


def computed(binary, folder, tokens, flags):
    (folder / 'tokens.txt').write_text(' '.join(map(str, tokens)))
    out = folder / 'logits.safetensors'
    command = [binary, 'eval', 'logits', '--model', folder, '--kv', 'f32', '--workers', 2,
               '--tokens-file', folder / 'tokens.txt', '--out', out, *flags]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    return load_file(out)['logits']


def flags_of(kind, chunk, sinks, local, heavy, options):
    flags = ['--policy', kind, '--chunk', chunk, '--sinks', sinks, '--local', local,
             '--heavy', heavy]
    for name, value in options.items():
        flags += [f'--{name.replace("_", "-")}'] + ([] if value is True else [value])
    return flags


def runs():
    for chunk, lengths, sinks, local, heavy, options in CASES:
        for kind in ('h2o',) if options else ('h2o', 'window'):
            budget = oracle.clamp(sinks, local, heavy if kind == 'h2o' else 0, chunk)
            policy = oracle.Policy(sinks, *budget, **options)
            flags = flags_of(kind, chunk, sinks, local, heavy, options)
            for length in lengths:
                yield chunk, length, policy, flags


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--binary', default='target/release/aqueduct')
    parser.add_argument('--tolerance', type=float, default=1e-4)
    args = parser.parse_args()
    transformers.logging.disable_progress_bar()
    rng, failures = np.random.default_rng(3), 0
    for name in MODELS:
        model = make_models.make(name)
        weights = {key: value.double().numpy() for key, value in model.state_dict().items()}
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            for chunk, length, policy, flags in runs():
                tokens = rng.integers(0, model.config.vocab_size, length)
                want = expected(model.config, weights, tokens, chunk, policy)
                seen = computed(args.binary, Path(folder), tokens, flags)
                worst = (np.abs(seen - want).max(1) / np.abs(want).max(1)).max()
                ok = worst <= args.tolerance
                failures += not ok
                print(f'{name:<15} {length:4} tokens {worst:9.2e}  {"ok" if ok else "WRONG"} ',
                      *flags)
    if failures:
        sys.exit(f'{failures} runs failed')


if __name__ == '__main__':
    main()

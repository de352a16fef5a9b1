#!/usr/bin/env python3
"""Measures peers and Aqueduct alternately on one model; run it as `ops/bench/peers`.

Rounds go through all engines, one after the other, so that whatever else the machine does hits
all of them alike. Every round prefills a prompt and decodes behind it. PyTorch and llama.cpp
each live in one process that is asked by lines and sleeps in between; Aqueduct is started anew
for every measurement, which begins with a chunk that does not count. Without --json the
sections of docs/performance.md are rewritten; with it rows are printed:

  engine, policy, phase (prefill, decode or gemm), prompt_tokens, depth_tokens,
  tokens_per_second, spread, runs, note

tokens_per_second is the median over the runs, spread the best less the worst, null with a
reason in `note` where an engine could not be measured. Rows of phase gemm have the rows of a
product as prompt_tokens, the shape as policy, and gflop_per_second.
"""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import model  # noqa: E402
import performance  # noqa: E402

ROOT = model.ROOT
HERE = ROOT / 'ops/bench'
# What one engine at one length may take before it is not asked again, and before it is killed.
REPEATED_WITHIN_SECONDS = 150
KILLED_AFTER_SECONDS = 1200


class Gone(Exception):
    """An engine that cannot be measured, and why."""


class Peer:
    """A process that measures when it is sent a line. Variants are tried in turn."""

    policy = 'dense'

    def __init__(self, engine, variants, at_most=None):
        self.engine, self.variants, self.at_most = engine, list(variants), at_most or {}
        self.process, self.gone, self.version, self.note = None, None, None, None

    def rounds(self, tokens, rounds):
        return min(rounds, self.at_most.get(tokens, 0 if self.at_most else rounds))

    def measure(self, tokens, decoded, prompt):
        prefill = self.ask(phase='prefill', of=prompt)
        decode = self.ask(phase='decode', of=prompt, tokens=decoded)
        return tokens / prefill, decoded / decode

    def ask(self, **what):
        while True:
            if self.gone:
                raise Gone(self.gone)
            try:
                self.start()
                said = self.exchange(what)
            except Gone as reason:
                self.fall_back(str(reason))
                continue
            if 'error' in said:
                raise Gone(said['error'][:160])
            return said['seconds']

    def start(self):
        if self.process is None:
            argv, self.note = self.variants[0]
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE, text=True)
            self.said = []
            threading.Thread(target=self.listen, args=(self.process,), daemon=True).start()
            self.version = self.exchange(None)['ready']

    def listen(self, process):
        for line in process.stderr:
            self.said = [*self.said, line.strip()][-20:]

    def exchange(self, what):
        killer = threading.Timer(KILLED_AFTER_SECONDS, self.process.kill)
        killer.start()
        try:
            if what is not None:
                self.process.stdin.write(json.dumps(what) + '\n')
                self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ''
        finally:
            killer.cancel()
        if not line:
            raise Gone(self.last_words())
        return json.loads(line)

    def last_words(self):
        code = self.process.wait()
        last = next((line for line in reversed(self.said) if line), '')
        if code < 0:
            return f'killed by {signal.Signals(-code).name}'
        return f'exit code {code}: {last}'[:160]

    def fall_back(self, reason):
        self.process = None
        self.variants.pop(0)
        if not self.variants:
            self.gone = reason

    def stop(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()


class Aqueduct:
    """This build: `bench decode` prefills and decodes, in a process of its own."""

    gone = note = None

    def __init__(self, kind, policy, path, options):
        self.engine, self.policy, self.path, self.options = f'aqueduct {kind}', policy, path, options

    def rounds(self, tokens, rounds):
        if tokens > 8192:
            return rounds if self.policy == 'h2o' else 0
        return rounds

    def measure(self, tokens, decoded, _prompt):
        row, = aqueduct(self.options, 'bench', 'decode', '--model', self.path, '--policy',
                        self.policy, '--depth-tokens', tokens, '--tokens', decoded, '--reps', 1)
        return row['prefill_tokens_per_second'], row['tokens_per_second']

    def stop(self):
        pass


def aqueduct(options, *argv):
    """The rows of one command of this build."""
    argv = [os.environ['AQUEDUCT'], *map(str, argv), '--threads', str(options.threads), '--json']
    if options.isa:
        argv += ['--isa', options.isa]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise Gone(done.stderr.strip().splitlines()[-1][:160])
    return [json.loads(line) for line in done.stdout.splitlines()]


def contestants(options, folder):
    threads, python = str(options.threads), sys.executable
    few = None if not options.quick else {512: 3, 2048: 3}
    llama = [python, HERE / 'engine_llama.py']
    context = str((32768 if options.deep else 8192) + 256)

    def llama_cpp(kind, at_most):
        argv = [*llama, folder / f'{kind}.gguf', threads, context]
        again = 'weight repacking off: with it the process died'
        variants = [([*argv, 'repack'], None), ([*argv, 'plain'], again)]
        return Peer(f'llama.cpp {kind}', variants, at_most)

    torch = [python, HERE / 'engine_torch.py', folder / 'hf', threads]
    upto = {512: 5, 2048: 5, 8192: 5}
    deep = {32768: 1} if options.deep else {}
    list_ = [Peer('torch bf16', [(torch, None)], few or upto),
             llama_cpp('Q8_0', few or upto | deep)]
    if not options.quick:
        # Beside Q8_0 it says little that is new, and takes as long.
        list_.append(llama_cpp('F16', {512: 5, 2048: 3, 8192: 1}))
    for kind, path in (('bf16', folder / 'hf'), ('Q8_0', folder / 'Q8_0.gguf')):
        for policy in ('dense', 'h2o'):
            list_.append(Aqueduct(kind, policy, path, options))
    return list_


class Bench:
    """Rows as they come."""

    def __init__(self, options, folder):
        self.options, self.rows = options, []
        self.contestants = contestants(options, folder)

    def run(self):
        lengths = [512, 2048] if self.options.quick else [512, 2048, 8192, 32768, 65536]
        for tokens in lengths:
            self.length(tokens, 3 if self.options.quick or tokens > 8192 else 5)
        self.products(1 if self.options.quick else 3)
        for contestant in self.contestants:
            contestant.stop()
        return self.rows

    def length(self, tokens, rounds):
        """Prefill of `tokens` and decode behind them, round after round."""
        prompt = random.Random(tokens).choices(range(4, 4000), k=tokens)
        decoded = 8 if self.options.quick else 32 if tokens <= 2048 else 16
        racing = [c for c in self.contestants if c.rounds(tokens, rounds)]
        runs, took = {c: [] for c in racing}, dict.fromkeys(racing, 0)
        reasons = {}
        for idx in range(-1 if tokens <= 2048 else 0, rounds):
            for c in racing:
                if c in reasons or idx >= c.rounds(tokens, rounds):
                    continue
                if took[c] > REPEATED_WITHIN_SECONDS:
                    continue
                say(f'{tokens} tokens, round {idx + 1}: {c.engine} {c.policy}')
                start = time.monotonic()
                try:
                    speeds = c.measure(tokens, decoded, prompt)
                except Gone as reason:
                    reasons[c] = str(reason)
                    continue
                took[c] += time.monotonic() - start
                if idx >= 0:  # the round before finds caches and memory cold
                    runs[c].append(speeds)
        for phase in ('prefill', 'decode'):
            for c in racing:
                self.row(c, phase, tokens, [speeds[phase == 'decode'] for speeds in runs[c]],
                         reasons.get(c) or c.note)

    def row(self, contestant, phase, tokens, speeds, note):
        self.tell({
            'engine': contestant.engine, 'policy': contestant.policy, 'phase': phase,
            'prompt_tokens': tokens if phase == 'prefill' else 0,
            'depth_tokens': tokens if phase == 'decode' else 0,
            **summary(speeds), 'note': note})

    def products(self, rounds):
        """Linear maps alone: PyTorch's beside ours."""
        torch = self.contestants[0]
        shapes = {'qkv': (1024, 4096), 'out': (2048, 1024), 'gate_up': (1024, 6144),
                  'down': (3072, 1024)}
        sizes = (512, 2048)
        speeds = {}
        for idx in range(rounds):
            say(f'products, round {idx + 1}')
            for row in aqueduct(self.options, 'bench', 'kernels', '--filter', 'linear'):
                name, _, size = row['shape'].rpartition(' ')
                rows = int(size.split('x')[0])
                if name in shapes and rows in sizes:
                    key = (f'aqueduct {row["path"]}', row['shape'], rows, row['flop'])
                    speeds.setdefault(key, []).append(rows / row['us'] * 1e6)
            for dtype in ('bf16', 'f32'):
                for rows in sizes:
                    for name, (inputs, outputs) in shapes.items():
                        shape = f'{name} {rows}x{inputs}x{outputs}'
                        key = (f'torch {dtype}', shape, rows, 2 * rows * inputs * outputs)
                        try:
                            seconds = torch.ask(phase='gemm', dtype=dtype, name=name, rows=rows)
                        except Gone:
                            continue
                        speeds.setdefault(key, []).append(rows / seconds)
        for (engine, shape, rows, flop), values in speeds.items():
            measured = summary(values)
            gflop = measured['tokens_per_second'] * flop / rows / 1e9
            self.tell({'engine': engine, 'policy': shape, 'phase': 'gemm',
                       'prompt_tokens': rows, 'depth_tokens': 0, **measured,
                       'gflop_per_second': round(gflop, 1), 'note': None})

    def tell(self, row):
        self.rows.append(row)
        if self.options.json:
            print(json.dumps(row), flush=True)


def summary(speeds):
    if not speeds:
        return {'tokens_per_second': None, 'spread': None, 'runs': 0}
    return {'tokens_per_second': round(statistics.median(speeds), 2),
            'spread': round(max(speeds) - min(speeds), 2), 'runs': len(speeds)}


def say(text):
    print(f'{time.strftime("%H:%M:%S")} {text}', file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(
        prog='ops/bench/peers', description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--json', action='store_true', help='print rows, rewrite nothing')
    parser.add_argument('--quick', action='store_true', help='512 and 2048 tokens, three rounds')
    parser.add_argument('--deep', action='store_true',
                        help='llama.cpp at 32,768 tokens too, which takes minutes')
    parser.add_argument('--isa', help='instruction set that Aqueduct is held to, as in bench')
    parser.add_argument('--threads', type=int, default=2)
    options = parser.parse_args()
    os.chdir(ROOT)
    folder = ROOT / 'target/peers/model'
    model.make(folder)
    started = time.monotonic()
    bench = Bench(options, folder)
    rows = bench.run()
    if not options.json:
        versions = [f'{c.engine}: {c.version}' for c in bench.contestants
                    if isinstance(c, Peer) and c.version]
        say('kernels and profile')
        kernels = aqueduct(options, 'bench', 'kernels')
        profile = aqueduct(options, 'bench', 'profile', '--model', folder / 'hf', '--policy',
                           'h2o,dense', '--prompt-tokens', 2048 if options.quick else 8192)
        performance.write(rows, kernels, profile, versions)
    say(f'{time.monotonic() - started:.0f} s')


if __name__ == '__main__':
    main()

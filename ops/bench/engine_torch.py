"""transformers on PyTorch, asked for one measurement a line: see `peers.py`."""
import json
import sys
import time

import torch
import torch.nn.functional as F
import transformers

MAPS = {'qkv': (1024, 4096), 'out': (2048, 1024), 'gate_up': (1024, 6144), 'down': (3072, 1024)}


class Engine:
    """bf16, scaled-dot-product attention, a KV cache, logits of the last token only."""

    def __init__(self, folder, threads):
        torch.set_num_threads(threads)
        load = transformers.AutoModelForCausalLM.from_pretrained
        self.model = load(folder, dtype=torch.bfloat16, attn_implementation='sdpa').eval()
        self.cache, self.depth = None, 0

    def prefill(self, tokens, of):
        self.cache = None
        ids = torch.tensor([of])
        start = time.perf_counter()
        out = self.model(ids, logits_to_keep=1, use_cache=True)
        seconds = time.perf_counter() - start
        self.cache, self.depth = out.past_key_values, tokens
        return seconds

    def decode(self, depth, tokens, of):
        if self.depth != depth or self.cache is None:
            self.prefill(depth, of)
        beyond = self.cache.get_seq_length() - depth
        if beyond:
            self.cache.crop(-beyond)
        token = torch.tensor([[1]])
        start = None
        for idx in range(tokens + 1):
            if idx == 1:  # the first finds caches and memory as they were left
                start = time.perf_counter()
            out = self.model(token, past_key_values=self.cache, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
        return time.perf_counter() - start

    def gemm(self, dtype, name, rows):
        """The median of a third of a second, on copies of the weight that no cache holds."""
        kind = {'bf16': torch.bfloat16, 'f32': torch.float32}[dtype]
        inputs, outputs = MAPS[name]
        x = torch.randn(rows, inputs).to(kind)
        weight = torch.randn(outputs, inputs).to(kind)
        copies = [weight.clone() for _ in range(max(2, (256 << 20) // weight.nbytes))]
        F.linear(x, copies[0])
        times, begun = [], time.perf_counter()
        while len(times) < 3 or time.perf_counter() - begun < 0.3:
            start = time.perf_counter()
            F.linear(x, copies[len(times) % len(copies)])
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]


def main():
    folder, threads = sys.argv[1:3]
    engine = Engine(folder, int(threads))
    print(json.dumps({'ready': f'torch {torch.__version__}, '
                               f'transformers {transformers.__version__}'}), flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            try:
                said = {'seconds': answer(engine, json.loads(line))}
            except Exception as error:  # the next measurement may go well
                said = {'error': f'{type(error).__name__}: {error}'}
            print(json.dumps(said), flush=True)


def answer(engine, ask):
    if ask['phase'] == 'prefill':
        return engine.prefill(len(ask['of']), ask['of'])
    if ask['phase'] == 'decode':
        return engine.decode(len(ask['of']), ask['tokens'], ask['of'])
    return engine.gemm(ask['dtype'], ask['name'], ask['rows'])


main()

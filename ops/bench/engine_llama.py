"""llama.cpp through its Python package, asked for one measurement a line: see `peers.py`."""
import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np


class Engine:
    """Flash attention, an f16 KV cache, logits of the last token only."""

    def __init__(self, file, threads, context, repack):
        if not repack:
            defaults = llama_cpp.llama_model_default_params

            def without_repacking():
                params = defaults()
                params.use_extra_bufts = False
                return params
            llama_cpp.llama_cpp.llama_model_default_params = without_repacking
        self.llm = llama_cpp.Llama(
            model_path=file, n_ctx=context, n_batch=2048, n_ubatch=512, n_threads=threads,
            n_threads_batch=threads, flash_attn=True, verbose=False)
        self.depth = 0

    def prefill(self, of):
        self.llm.n_tokens = 0  # what lies behind is removed when the next token comes
        start = time.perf_counter()
        self.llm.eval(of)
        self.best()
        seconds = time.perf_counter() - start
        self.depth = len(of)
        return seconds

    def decode(self, of, tokens):
        if self.depth != len(of):
            self.prefill(of)
        self.llm.n_tokens = len(of)
        token, start = 1, None
        for idx in range(tokens + 1):
            if idx == 1:  # the first finds caches and memory as they were left
                start = time.perf_counter()
            self.llm.eval([token])
            token = self.best()
        return time.perf_counter() - start

    def best(self):
        logits = self.llm._ctx.get_logits()
        logits = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * self.llm.n_vocab()))
        return int(np.frombuffer(logits.contents, dtype=np.float32).argmax())


def main():
    file, threads, context, repack = sys.argv[1:5]
    engine = Engine(file, int(threads), int(context), repack == 'repack')
    print(json.dumps({'ready': f'llama-cpp-python {llama_cpp.__version__}'}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        if ask['phase'] == 'prefill':
            seconds = engine.prefill(ask['of'])
        else:
            seconds = engine.decode(ask['of'], ask['tokens'])
        print(json.dumps({'seconds': seconds}), flush=True)


main()

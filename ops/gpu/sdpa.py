"""PyTorch's attention at the shapes of `aqueduct gpu bench`, a JSON line for each backend."""

import json
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

CHUNK, MEMORY, HEADS, KV_HEADS, HEAD_DIM, DEPTH = 4096, 1024, 32, 8, 128, 32768
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def noise(heads, rows):
    return torch.randn(1, heads, rows, HEAD_DIM, device="cuda", dtype=torch.bfloat16)


def seconds(work, reps=9, calls=20):
    """Median over repetitions of the time of one call of many."""
    for _ in range(3):
        work()
    runs = []
    for _ in range(reps):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            work()
        end.record()
        torch.cuda.synchronize()
        runs.append(start.elapsed_time(end) / 1e3 / calls)
    return statistics.median(runs)


def tell(what, backend, took, flop):
    row = {"what": what, "backend": backend, "us": round(took * 1e6, 1)}
    say(row | {"tflops": round(flop / took / 1e12, 1)})


def say(row):
    print(json.dumps(row, separators=(",", ":")), flush=True)


def main():
    q, own = noise(HEADS, CHUNK), (noise(KV_HEADS, CHUNK), noise(KV_HEADS, CHUNK))
    past = (noise(KV_HEADS, MEMORY), noise(KV_HEADS, MEMORY))
    one, deep = noise(HEADS, 1), (noise(KV_HEADS, DEPTH), noise(KV_HEADS, DEPTH))
    own_flop = 4 * HEAD_DIM * HEADS * CHUNK * (CHUNK + 1) // 2
    past_flop = 4 * HEAD_DIM * HEADS * CHUNK * MEMORY
    for name, backend in BACKENDS.items():
        with sdpa_kernel(backend):
            try:
                causal = seconds(lambda: sdpa(q, *own, is_causal=True, enable_gqa=True))
                full = seconds(lambda: sdpa(q, *past, enable_gqa=True))
                tell("own keys, causal", name, causal, own_flop)
                tell("past keys", name, full, past_flop)
                both = causal + full
                tell("past and own keys, apart and not merged", name, both, own_flop + past_flop)
                # Last: a backend may refuse one row and have the others.
                step = seconds(lambda: sdpa(one, *deep, enable_gqa=True))
                tell("one row over 32768 keys", name, step, 4 * HEAD_DIM * HEADS * DEPTH)
            except RuntimeError as error:
                say({"what": str(error).splitlines()[0], "backend": name})


if __name__ == "__main__":
    main()

"""The model that peers and Aqueduct are measured on: 159 M random parameters."""
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'ops/parity'))

SHAPE = dict(vocab_size=32000, hidden_size=1024, intermediate_size=3072, num_hidden_layers=8,
             num_attention_heads=16, num_key_value_heads=8, head_dim=128,
             max_position_embeddings=131072, tie_word_embeddings=True, bos_token_id=0,
             eos_token_id=0)


def make(folder):
    """Writes `folder`/hf (bf16), `folder`/Q8_0.gguf and `folder`/F16.gguf unless they are there.

    Tokens are those of the shipped model, and 27904 that never come up: speed does not depend
    on what they mean.
    """
    done = folder / 'done.json'
    if done.exists() and json.loads(done.read_text()) == SHAPE:
        return
    import torch
    import transformers

    import gguf_files
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**SHAPE)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder / 'hf')
    tokenizer = json.loads((ROOT / 'model/tokenizer.json').read_text())
    (folder / 'hf/tokenizer.json').write_text(json.dumps(tokenizer))
    vocab = tokenizer['model']['vocab']
    taken = max([*vocab.values(), *(token['id'] for token in tokenizer['added_tokens'])])
    for idx in range(taken + 1, SHAPE['vocab_size']):
        vocab[f'<unused{idx}>'] = idx
    for kind in ('Q8_0', 'F16'):
        gguf_files.write(folder / f'{kind}.gguf', model, kind, tokenizer)
    done.write_text(json.dumps(SHAPE))


if __name__ == '__main__':
    make(Path(sys.argv[1]))

#!/usr/bin/env python3
"""Small models of random weights, each in safetensors and as torch.save writes it.

The folders beside this file are what it wrote with torch 2.15 and transformers 5.24; tests load
both files of a folder and compare.    make.py [DIR]

Needs torch, transformers, safetensors.
"""
import json
import sys
from collections import OrderedDict
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers import OPTConfig, OPTForCausalLM

OUT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
IDS = {'bos_token_id': 1, 'eos_token_id': 2}


def make(name, model, dtype):
    """Writes the safetensors; the state dictionary, with the head that is tied."""
    model = model.to(dtype).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(OUT / name)
    (OUT / name / 'generation_config.json').unlink(missing_ok=True)
    return model.state_dict()


def gpt2():
    """Saved as the base class, with masks, as transformers did until 4.30."""
    config = GPT2Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=1, n_head=2, **IDS)
    state = make('gpt2', GPT2LMHeadModel(config), torch.float32)
    base = OrderedDict((key.removeprefix('transformer.'), tensor) for key, tensor in state.items()
                       if key != 'lm_head.weight')
    base._metadata = state._metadata
    base['h.0.attn.bias'] = torch.ones(16, 16).tril().to(torch.uint8).view(1, 1, 16, 16)
    base['h.0.attn.masked_bias'] = torch.tensor(-1e4)
    torch.save(base, OUT / 'gpt2' / 'pytorch_model.bin')


def opt():
    """Shards and an index, by the base class's names."""
    config = OPTConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1, ffn_dim=16,
                       max_position_embeddings=16, num_attention_heads=2,
                       word_embed_proj_dim=8, pad_token_id=1, **IDS)
    state = make('opt', OPTForCausalLM(config), torch.float16)
    names = [key for key in state if key != 'lm_head.weight']
    places = {}
    for idx, some in enumerate((names[:9], names[9:])):
        file = f'pytorch_model-{idx + 1:05}-of-00002.bin'
        shard = {key.removeprefix('model.'): state[key] for key in some}
        torch.save(shard, OUT / 'opt' / file, pickle_protocol=4)
        places |= dict.fromkeys(shard, file)
    index = {'metadata': {'total_size': 0}, 'weight_map': places}
    (OUT / 'opt' / 'pytorch_model.bin.index.json').write_text(json.dumps(index) + '\n')


def llama():
    """Parameters that are parts of one storage, a tied head, and integers that nobody reads."""
    config = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=1,
                         max_position_embeddings=16, tie_word_embeddings=True, **IDS)
    state = make('llama', LlamaForCausalLM(config), torch.bfloat16)
    head = state.pop('lm_head.weight')
    assert torch.equal(head, state['model.embed_tokens.weight'])
    flat = torch.cat([tensor.flatten() for tensor in state.values()])
    parts = flat.split([tensor.numel() for tensor in state.values()])
    saved = {key: part.view(tensor.shape) for (key, tensor), part in zip(state.items(), parts)}
    saved['lm_head.weight'] = torch.nn.Parameter(saved['model.embed_tokens.weight'])
    saved['model.layers.0.self_attn.rotary_emb.inv_freq'] = torch.ones(4, 2).t()
    saved['model.position_ids'] = torch.arange(16).expand((1, -1))
    saved['model.mask'] = torch.ones(1, dtype=torch.bool).expand((16, 16))
    torch.save(saved, OUT / 'llama' / 'pytorch_model.bin', pickle_protocol=5)


torch.manual_seed(1)
gpt2()
opt()
llama()

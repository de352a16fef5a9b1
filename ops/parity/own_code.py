"""Folders of models that bring their own code, as transformers has none for them: each is one that
it has, by other names."""
import json
import math

import torch
from safetensors.torch import load_file, save_file

EXAONE = [
    ('model.embed_tokens', 'transformer.wte'), ('model.norm', 'transformer.ln_f'),
    ('model.layers', 'transformer.h'), ('input_layernorm', 'ln_1'),
    ('post_attention_layernorm', 'ln_2'), ('self_attn.o_proj', 'attn.attention.out_proj'),
    ('self_attn', 'attn.attention'), ('gate_proj', 'c_fc_0'), ('up_proj', 'c_fc_1'),
    ('down_proj', 'c_proj'),
]
INTERNLM2 = [
    ('embed_tokens', 'tok_embeddings'), ('lm_head', 'output'),
    ('input_layernorm', 'attention_norm'), ('post_attention_layernorm', 'ffn_norm'),
    ('self_attn.o_proj', 'attention.wo'), ('mlp.gate_proj', 'feed_forward.w1'),
    ('mlp.up_proj', 'feed_forward.w3'), ('mlp.down_proj', 'feed_forward.w2'),
]


def renamed(tensors, names):
    def of(key):
        for one, other in names:
            key = key.replace(one, other)
        return key
    return {of(key): tensor for key, tensor in tensors.items()}


def exaone(tensors, config):
    for name, own in [('num_hidden_layers', 'num_layers'), ('hidden_act', 'activation_function'),
                      ('rms_norm_eps', 'layer_norm_epsilon')]:
        config[own] = config.pop(name)
    return renamed(tensors, EXAONE)


def internlm2(tensors, config):
    """The queries of a KV head stand before its key and value."""
    config['bias'] = config.pop('attention_bias')
    dim, kv_heads = config['head_dim'], config['num_key_value_heads']
    for layer in range(config['num_hidden_layers']):
        at = f'model.layers.{layer}'
        for kind in ('weight', 'bias'):
            parts = [tensors.pop(f'{at}.self_attn.{part}_proj.{kind}', None) for part in 'qkv']
            if parts[0] is not None:
                parts = [part.reshape(kv_heads, -1, dim, *part.shape[1:]) for part in parts]
                tensors[f'{at}.attention.wqkv.{kind}'] = torch.cat(parts, 1).flatten(0, 2)
    return renamed(tensors, INTERNLM2)


def minicpm(tensors, config):
    config.pop('attention_multiplier')  # which must be what it is in others
    config['scale_emb'] = config.pop('embedding_multiplier')
    config['scale_depth'] = (config.pop('residual_multiplier')
                             * math.sqrt(config['num_hidden_layers']))
    config['dim_model_base'] = config['hidden_size'] / config.pop('logits_scaling')
    return tensors


# Their types and architectures, and of which model they are made.
FORMS = {
    'exaone': ('ExaoneForCausalLM', 'llama31', exaone),
    'internlm2': ('InternLM2ForCausalLM', 'llama-attention-biases', internlm2),
    'minicpm': ('MiniCPMForCausalLM', 'granite', minicpm),
}


def own_code_case(cases, form, make, read, dtype):
    """That of `form`; `make` and `read` are make_models.py's."""
    architecture, name, rename = FORMS[form]
    folder = cases.out / form
    model = make(name)
    if form == 'minicpm':
        heads = model.config.num_attention_heads
        model.config.attention_multiplier = (model.config.hidden_size / heads) ** -0.5
    model.to(dtype).save_pretrained(folder)
    model = read(folder)  # as it was saved
    tensors = load_file(folder / 'model.safetensors')
    config = json.loads((folder / 'config.json').read_text())
    tensors = {key: tensor.contiguous() for key, tensor in rename(tensors, config).items()}
    config.update(architectures=[architecture], model_type=form)
    (folder / 'config.json').write_text(json.dumps(config, indent=2) + '\n')
    save_file(tensors, folder / 'model.safetensors', metadata={'format': 'pt'})
    cases.add(form, model)

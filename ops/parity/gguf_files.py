"""Writes a transformers model as a GGUF file, as llama.cpp's convert_hf_to_gguf.py does."""
import json
import math

import gguf
import numpy as np
import torch

import few_bits
import gguf_gemma4
import gguf_alibi
import gguf_gpt2
import gguf_llama4
import gguf_hybrid

ARCHITECTURES = {'llama': 'llama', 'mistral': 'llama', 'ministral3': 'mistral3',
                 'qwen2': 'qwen2', 'qwen3': 'qwen3', 'phi3': 'phi3', 'granite': 'granite',
                 'smollm3': 'smollm3', 'seed_oss': 'seed_oss', 'ernie4_5': 'ernie4_5',
                 'glm': 'chatglm',
                 'glm4': 'glm4', 'gemma': 'gemma', 'gemma3_text': 'gemma3',
                 'gemma4_text': 'gemma4', 'llama4_text': 'llama4',
                 'mixtral': 'llama', 'qwen2_moe': 'qwen2moe', 'qwen3_moe': 'qwen3moe',
                 'granitemoe': 'granitemoe', 'glm4_moe': 'glm4moe', 'olmo2': 'olmo2',
                 'olmo3': 'olmo2', 'olmoe': 'olmoe', 'exaone4': 'exaone4',
                 'exaone_moe': 'exaone-moe', 'ernie4_5_moe': 'ernie4_5-moe',
                 'minimax_m2': 'minimax-m2', 'gemma2': 'gemma2', 'gpt_oss': 'gpt-oss',
                 'cohere': 'command-r', 'cohere2': 'cohere2', 'olmo': 'olmo',
                 'stablelm': 'stablelm', 'starcoder2': 'starcoder2', 'gpt_neox': 'gptneox',
                 'phi': 'phi2', 'nemotron': 'nemotron', 'arcee': 'arcee', 'apertus': 'apertus',
                 'jais2': 'jais2', 'deepseek_v2': 'deepseek2', 'deepseek_v3': 'deepseek2',
                 'glm4_moe_lite': 'deepseek2', 'youtu': 'deepseek2', 'minicpm3': 'minicpm3',
                 'hunyuan_v1_dense': 'hunyuan-dense', 'hunyuan_v1_moe': 'hunyuan-moe',
                 'falcon': 'falcon', 'mistral4': 'mistral4', 'dots1': 'dots1', 'afmoe': 'afmoe',
                 **gguf_gpt2.ARCHITECTURES, **gguf_alibi.ARCHITECTURES,
                 **gguf_hybrid.ARCHITECTURES}
# Which rotate nothing.
STILL = {**gguf_gpt2.ARCHITECTURES, **gguf_alibi.ARCHITECTURES}
# Whose norms take the mean away first.
LAYER_NORMS = {'cohere', 'cohere2', 'olmo', 'stablelm', 'starcoder2', 'gpt_neox', 'phi',
               'nemotron', 'jais2', 'falcon'}
# Whose query and key rows the converter re-orders for rotation of neighbours.
REORDERED = {'llama', 'mistral3', 'granite', 'smollm3', 'granitemoe', 'olmo', 'arcee',
             'granitehybrid'}

NAMES = {
    'model.embed_tokens': 'token_embd', 'model.norm': 'output_norm', 'lm_head': 'output',
    'input_layernorm': 'attn_norm', 'post_attention_layernorm': 'ffn_norm',
    'self_attn.q_proj': 'attn_q', 'self_attn.k_proj': 'attn_k', 'self_attn.v_proj': 'attn_v',
    'mlp.gate': 'ffn_gate_inp', 'block_sparse_moe.router': 'ffn_gate_inp',
    'mlp.router': 'ffn_gate_inp', 'self_attn': 'attn_sinks',
    'mlp.shared_expert_gate': 'ffn_gate_inp_shexp',
    **{f'mlp.shared_expert{s}.{which}_proj': f'ffn_{which}_shexp'
       for s in ('', 's') for which in ('gate', 'up', 'down')},
    **{f'mlp.shared_mlp.{which}_proj': f'ffn_{which}_shexp' for which in ('gate', 'up', 'down')},
    'transformer.word_embeddings': 'token_embd', 'transformer.ln_f': 'output_norm',
    'self_attention.query_key_value': 'attn_qkv', 'self_attention.dense': 'attn_output',
    'ln_attn': 'attn_norm_2', 'ln_mlp': 'attn_norm',
    'mlp.gate.wg': 'ffn_gate_inp', 'self_attn.query_layernorm': 'attn_q_norm',
    'self_attn.key_layernorm': 'attn_k_norm',
    'self_attn.q_norm': 'attn_q_norm', 'self_attn.k_norm': 'attn_k_norm',
    'self_attn.o_proj': 'attn_output', 'mlp.gate_proj': 'ffn_gate', 'mlp.up_proj': 'ffn_up',
    'mlp.down_proj': 'ffn_down', 'self_attn.qkv_proj': 'attn_qkv', 'mlp.gate_up_proj': 'ffn_up',
    'mlp.c_fc': 'ffn_up', 'mlp.c_proj': 'ffn_down', 'mlp.fc1': 'ffn_up', 'mlp.fc2': 'ffn_down',
    'self_attn.dense': 'attn_output', 'model.final_layernorm': 'output_norm',
    'gpt_neox.embed_in': 'token_embd', 'gpt_neox.final_layer_norm': 'output_norm',
    'attention.query_key_value': 'attn_qkv', 'attention.dense': 'attn_output',
    'mlp.dense_h_to_4h': 'ffn_up', 'mlp.dense_4h_to_h': 'ffn_down',
    'self_attn.q_a_proj': 'attn_q_a', 'self_attn.q_a_layernorm': 'attn_q_a_norm',
    'self_attn.q_b_proj': 'attn_q_b', 'self_attn.kv_a_proj_with_mqa': 'attn_kv_a_mqa',
    'self_attn.kv_a_layernorm': 'attn_kv_a_norm', 'self_attn.kv_b_proj': 'attn_kv_b',
    'feed_forward.router': 'ffn_gate_inp',
    **{f'feed_forward.{which}_proj': f'ffn_{which}' for which in ('gate', 'up', 'down')},
    **{f'feed_forward.shared_expert.{which}_proj': f'ffn_{which}_shexp'
       for which in ('gate', 'up', 'down')},
    'attention_layernorm': 'attn_norm', 'feedforward_layernorm': 'ffn_norm',
}
OLMO2 = {'post_attention_layernorm': 'post_attention_norm',
         'post_feedforward_layernorm': 'post_ffw_norm'}
GEMMA = {'post_attention_layernorm': 'post_attention_norm',
         'pre_feedforward_layernorm': 'ffn_norm', 'post_feedforward_layernorm': 'post_ffw_norm'}
# Families whose layers have norms behind their parts call others by these.
POST_NORMS = {
    'gemma2': GEMMA, 'gemma3_text': GEMMA,
    'gemma4_text': {**GEMMA, 'router.proj': 'ffn_gate_inp', 'router': 'ffn_gate_inp',
                    'pre_feedforward_layernorm_2': 'pre_ffw_norm_2',
                    'post_feedforward_layernorm_1': 'post_ffw_norm_1',
                    'model.embed_tokens_per_layer': 'per_layer_token_embd',
                    'model.per_layer_model_projection': 'per_layer_model_proj',
                    'model.per_layer_projection_norm': 'per_layer_proj_norm',
                    'per_layer_input_gate': 'inp_gate', 'per_layer_projection': 'proj',
                    'post_per_layer_input_norm': 'post_norm',
                    'post_feedforward_layernorm_2': 'post_ffw_norm_2'},
    'gpt_oss': {'post_attention_layernorm': 'post_attention_norm'},
    'glm4': {'post_self_attn_layernorm': 'post_attention_norm',
             'post_mlp_layernorm': 'post_ffw_norm'},
    'seed_oss': {'post_attention_layernorm': 'post_attention_norm'},
    'glm4_moe': {'post_attention_layernorm': 'post_attention_norm'},
    'olmo2': OLMO2, 'olmo3': OLMO2, 'exaone4': OLMO2,
    'afmoe': {'post_attention_layernorm': 'post_attention_norm', 'pre_mlp_layernorm': 'ffn_norm',
              'post_mlp_layernorm': 'post_ffw_norm', 'self_attn.gate_proj': 'attn_gate',
              'mlp.router.gate': 'ffn_gate_inp'},
}


def write(path, model, kind, tokenizer=None, sections=None, whole=False):
    """Writes `model` with matrices as `kind`; returns the state dict that the file holds.

    What makes keys and values of a few numbers, or goes into Qwen3-Next's layers, is in one tensor
    where it is `whole`, as it was at first. With `sections` it is a GLM 4 that sees pictures and
    turns by several positions: rows of queries and keys stand in halves then.
    """
    config = model.config
    config.allow_global_per_layer_attribute_access = True  # Gemma 4's, of most layers
    has_parts = config.model_type in gguf_hybrid.PARTS
    moe = '_moe' if gguf_hybrid.has_experts(config) else ''
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config.model_type] + moe)
    head_dim = getattr(config, 'head_dim', None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    if config.model_type == 'falcon':  # which has names of its own for what is written
        config.intermediate_size = config.ffn_hidden_size
        config.num_key_value_heads = config.num_kv_heads if config.new_decoder_architecture else 1
    if has_parts:
        gguf_hybrid.add_parts_metadata(writer, config)
    elif config.model_type in gguf_gpt2.ARCHITECTURES:
        gguf_gpt2.add_metadata(writer, config)
    elif config.model_type in gguf_alibi.ARCHITECTURES:
        gguf_alibi.add_metadata(writer, config)
    else:
        add_metadata(writer, config, head_dim)
    if hasattr(config, 'kv_lora_rank'):
        add_latent_metadata(writer, config, whole)
    if gguf_hybrid.is_hybrid(config):
        gguf_hybrid.add_metadata(writer, config)
    if tokenizer is not None:
        add_tokenizer(writer, tokenizer, config)
    if sections:
        writer.add_rope_dimension_sections(sections)
    stored = {}
    for key, tensor in model.state_dict().items():
        if sections and key.split('.')[-2] in ('q_proj', 'k_proj'):
            tensor = in_halves(tensor, head_dim, head_dim // 2)
        if key == 'lm_head.weight' and config.tie_word_embeddings:
            continue
        if '.act_fn.' in key:  # in the metadata
            stored[key] = tensor
            continue
        if config.model_type == 'gpt_oss' and '.experts.' in key:
            stored[key] = add_oss_experts(writer, key, tensor, kind)
        elif key.endswith('kv_b_proj.weight') and config.model_type != 'minicpm3' and not whole:
            stored[key] = add_by_heads(writer, key, tensor, kind, config)
        elif gguf_llama4.is_piece(key, config):
            # These modules have columns for rows.
            rows = add_experts(writer, key, tensor.swapaxes(1, 2), kind)
            stored[key] = rows.swapaxes(1, 2).contiguous()
        elif gguf_gemma4.is_piece(key, config):
            stored[key] = gguf_gemma4.add_tensor(writer, key, tensor, kind)
        elif gguf_hybrid.is_piece(key, config):
            stored[key] = gguf_hybrid.add_tensor(writer, key, tensor, kind, config, whole)
        elif '.experts.' in key:
            stored[key] = add_experts(writer, key, tensor, kind)
        else:
            stored[key] = add_tensor(writer, key, tensor, kind, config)
    if config.model_type == 'apertus':
        add_xielu(writer, model)
    turns = not has_parts and config.model_type not in STILL
    for name, factors in (rope_factors(config, head_dim) if turns else {}).items():
        writer.add_tensor(f'{name}.weight', np.array(factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if config.tie_word_embeddings:
        names = ('embed_tokens.weight', 'word_embeddings.weight', 'wte.weight')
        embed = [key for key in stored if key.endswith(names)]
        stored['lm_head.weight'] = stored[embed[0]]
    return stored


def add_metadata(writer, config, head_dim):
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    if config.model_type != 'qwen3_5_moe_text':  # whose layers all have experts
        ffn = getattr(config, 'intermediate_size_mlp', None)  # Llama 4's, of layers without experts
        writer.add_feed_forward_length(ffn or gguf_gemma4.feed_forward_length(config))
    writer.add_head_count(config.num_attention_heads)
    if not hasattr(config, 'kv_lora_rank'):
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rope = config.rope_parameters
    rope = rope.get('full_attention', rope)
    writer.add_rope_dimension_count(int(head_dim * rope.get('partial_rotary_factor', 1.0)))
    if config.model_type in LAYER_NORMS:
        names = [name for name in ('layer_norm_eps', 'layer_norm_epsilon', 'norm_epsilon',
                                   'norm_eps') if hasattr(config, name)]
        writer.add_layer_norm_eps(getattr(config, names[0]) if names else 1e-5)
    else:
        eps = config.norm_eps if hasattr(config, 'norm_eps') else config.rms_norm_eps
        writer.add_layer_norm_rms_eps(eps)
    if config.model_type == 'gpt_neox':
        writer.add_parallel_residual(config.use_parallel_residual)
    if getattr(config, 'clip_qkv', None):
        writer.add_clamp_kqv(config.clip_qkv)
    if hasattr(config, 'logit_scale'):
        writer.add_logit_scale(config.logit_scale)
    writer.add_vocab_size(config.vocab_size)
    theta = rope['rope_theta']
    if rope['rope_type'] == 'dynamic':  # of Hunyuan: a stretched base, and nothing else
        theta *= rope['alpha'] ** (head_dim / (head_dim - 2))
    writer.add_rope_freq_base(theta)
    if rope['rope_type'] in ('linear', 'yarn'):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope['rope_type']))
        writer.add_rope_scaling_factor(rope['factor'])
    if rope['rope_type'] == 'yarn':
        writer.add_rope_scaling_orig_ctx_len(rope['original_max_position_embeddings'])
        if config.model_type == 'olmo3':
            # All of it: what OLMo 3 is published with, and transformers takes if nothing is said.
            inferred = 0.1 * math.log(rope['factor']) + 1
            writer.add_rope_scaling_attn_factors(rope.get('attention_factor', inferred))
    if config.model_type == 'ministral3':
        writer.add_rope_scaling_yarn_log_mul(rope['mscale_all_dim'])
        writer.add_attn_temperature_scale(rope['llama_4_scaling_beta'])
    if rope['rope_type'] == 'longrope':
        original = rope['original_max_position_embeddings']
        factor = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(factor) / math.log(original)))
    if getattr(config, 'sliding_window', None):
        writer.add_sliding_window(config.sliding_window)
        if config.model_type in ('olmo3', 'exaone4', 'exaone_moe'):
            slides = [name == 'sliding_attention' for name in config.layer_types]
            writer.add_sliding_window_pattern(slides)
    experts = getattr(config, 'num_local_experts', 0) or getattr(config, 'num_experts', 0)
    if experts:
        writer.add_expert_count(experts)
        chosen = getattr(config, 'top_k_experts', None) or config.num_experts_per_tok
        writer.add_expert_used_count(chosen)
    if getattr(config, 'moe_intermediate_size', None):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type == 'hunyuan_v1_moe':
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.intermediate_size)
    if config.model_type == 'qwen2_moe':
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if config.model_type == 'ernie4_5_moe':
        writer.add_interleave_moe_layer_step(config.moe_layer_interval)
        writer.add_leading_dense_block_count(config.moe_layer_start_index)
        writer.add_expert_shared_count(config.moe_num_shared_experts)
        shared = config.intermediate_size // config.num_key_value_heads
        writer.add_expert_shared_feed_forward_length(shared)
    if config.model_type == 'gemma4_text':
        gguf_gemma4.add_metadata(writer, config)
    if config.model_type == 'llama4_text':
        gguf_llama4.add_metadata(writer, config)
    if config.model_type == 'gemma2':
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.model_type in ('minimax_m2', 'gpt_oss'):
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if config.model_type == 'minimax_m2':
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.model_type in ('glm4_moe', 'exaone_moe', 'dots1'):
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_shared_count(
            config.num_shared_experts if config.model_type == 'exaone_moe'
            else config.n_shared_experts)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.model_type == 'afmoe':
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_shared_count(config.num_shared_experts)
        writer.add_expert_weights_scale(config.route_scale)
        writer.add_expert_weights_norm(True)
    if config.model_type in ('granite', 'granitemoe', 'granitemoehybrid'):
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def add_latent_metadata(writer, config, whole):
    """Of attention to a few numbers: its heads have one key then, and the numbers are its value."""
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    rank, rotated = config.kv_lora_rank, config.qk_rope_head_dim
    head_dim = config.qk_nope_head_dim + rotated
    is_minicpm = config.model_type == 'minicpm3'
    writer.add_kv_lora_rank(rank)
    writer.add_head_count_kv(config.num_attention_heads if whole or is_minicpm else 1)
    writer.add_key_length(head_dim if whole or is_minicpm else rank + rotated)
    if is_minicpm:
        return
    writer.add_value_length(config.v_head_dim if whole else rank)
    if not whole:
        writer.add_key_length_mla(head_dim)
        writer.add_value_length_mla(config.v_head_dim)
    # Files of Mistral's models say that it is 1, whether attention's scale grows by it or not.
    all_dim = config.rope_parameters.get('mscale_all_dim')
    all_dim = 1.0 if config.model_type == 'mistral4' else all_dim
    if all_dim:
        writer.add_rope_scaling_yarn_log_mul(0.1 * all_dim)
    if config.model_type == 'youtu':
        writer.add_leading_dense_block_count(config.num_hidden_layers)
        return
    is_glm = config.model_type == 'glm4_moe_lite'
    is_mistral = config.model_type == 'mistral4'
    writer.add_leading_dense_block_count(1 if is_glm else config.first_k_dense_replace)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if config.n_group:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if is_mistral:
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_attn_temperature_scale(config.rope_parameters['llama_4_scaling_beta'])
    elif config.model_type != 'deepseek_v2':
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def add_by_heads(writer, key, tensor, kind, config):
    """What makes keys and values of a few numbers, in a tensor of keys for each head, turned, and
    one of values."""
    layer, data = key.split('.')[2], tensor.float().numpy()
    heads = data.reshape(config.num_attention_heads, -1, data.shape[-1])
    split = config.qk_nope_head_dim
    made = []
    for name, part in (('k', heads[:, :split].swapaxes(1, 2)), ('v', heads[:, split:])):
        part = np.ascontiguousarray(part)
        its = gguf.GGMLQuantizationType[kind]
        if part.shape[-1] % gguf.GGML_QUANT_SIZES[its][0]:
            its = gguf.GGMLQuantizationType.F32
        quantised = gguf.quants.quantize(part, its)
        writer.add_tensor(f'blk.{layer}.attn_{name}_b.weight', quantised, raw_dtype=its)
        made.append(gguf.quants.dequantize(quantised, its).reshape(part.shape))
    rows = np.concatenate((made[0].swapaxes(1, 2), made[1]), axis=1).reshape(data.shape)
    return torch.from_numpy(np.ascontiguousarray(rows.astype(np.float32)))


def add_xielu(writer, model):
    """Apertus' parameters, as they are trained."""
    def of_each(name):
        return [getattr(layer.mlp.act_fn, name).item() for layer in model.model.layers]
    writer.add_xielu_alpha_p(of_each('alpha_p'))
    writer.add_xielu_alpha_n(of_each('alpha_n'))
    writer.add_xielu_beta(of_each('beta'))
    writer.add_xielu_eps(of_each('eps'))


def add_oss_experts(writer, key, tensor, kind):
    """gpt-oss', whose modules have columns for rows, and gate and up by turns."""
    layer, which = key.split('.')[2], key.rpartition('.')[2]
    name, _, is_bias = which.partition('_proj')
    data = tensor.float().numpy()
    rows = data if is_bias else data.swapaxes(1, 2)
    parts = [('gate', rows[:, ::2]), ('up', rows[:, 1::2])] if name == 'gate_up' else [(name, rows)]
    kind = gguf.GGMLQuantizationType['F32' if is_bias else kind]
    if rows.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = gguf.GGMLQuantizationType.F32
    made = []
    for name, part in parts:
        quantised = gguf.quants.quantize(np.ascontiguousarray(part), kind)
        suffix = 'bias' if is_bias else 'weight'
        writer.add_tensor(f'blk.{layer}.ffn_{name}_exps.{suffix}', quantised, raw_dtype=kind)
        made.append(gguf.quants.dequantize(quantised, kind).reshape(part.shape))
    rows = np.stack(made, 2).reshape(rows.shape)
    data = rows if is_bias else rows.swapaxes(1, 2)
    return torch.from_numpy(np.ascontiguousarray(data.astype(np.float32)))


def add_matrices(writer, name, data, kind):
    """Adds one tensor, of NVFP4 with a factor for each matrix; returns what a reader gets."""
    factors = np.float32(1.0)
    if kind == gguf.GGMLQuantizationType.NVFP4:
        made = [nvfp4(matrix) for matrix in data.reshape(-1, *data.shape[-2:])]
        quantised = np.stack([blocks for blocks, _ in made]).reshape(*data.shape[:-1], -1)
        factors = np.stack([factor for _, factor in made])
        writer.add_tensor(name.replace('.weight', '.scale'), factors)
        factors = factors.reshape(*data.shape[:-2], 1, 1)
    else:
        quantised = gguf.quants.quantize(np.ascontiguousarray(data), kind)
    writer.add_tensor(name, quantised, raw_dtype=kind)
    made = gguf.quants.dequantize(quantised, kind).reshape(data.shape)
    return made.astype(np.float32) * factors


def nvfp4(matrix):
    """Rows of blocks, which the gguf package reads and cannot make, and what multiplies them."""
    tensors, _ = few_bits.nvfp4(torch.from_numpy(matrix), True)
    pairs = tensors['weight'].numpy()
    runs = np.stack([pairs & 15, pairs >> 4], -1).reshape(-1, 2, 8)
    runs = (runs[:, 0] | runs[:, 1] << 4).reshape(-1, 32)
    scales = tensors['weight_scale'].view(torch.uint8).numpy().reshape(-1, 4)
    blocks = np.concatenate([scales, runs], 1).reshape(len(matrix), -1)
    return blocks, tensors['weight_scale_2'].numpy()


def add_experts(writer, key, tensor, kind):
    """All experts of a layer, gate and up in tensors of their own; returns what a reader gets."""
    layer, which = key.split('.')[2], key.rpartition('.')[2]
    data = tensor.float().numpy()
    half = data.shape[1] // 2
    parts = {'gate_up_proj': [('gate', data[:, :half]), ('up', data[:, half:])],
             'down_proj': [('down', data)]}[which]
    kind = gguf.GGMLQuantizationType[kind]
    if data.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = gguf.GGMLQuantizationType.F32
    made = []
    for name, part in parts:
        made.append(add_matrices(writer, f'blk.{layer}.ffn_{name}_exps.weight', part, kind))
    return torch.from_numpy(np.concatenate(made, axis=1).astype(np.float32))


def add_tensor(writer, key, tensor, kind, config):
    """Adds one tensor; returns what a reader of the file gets, in transformers' row order."""
    if key.endswith(('.e_score_correction_bias', '.mlp.expert_bias')):
        key = f'blk.{key.split(".")[2]}.exp_probs_b.bias'
        writer.add_tensor(key, tensor.float().flatten().numpy())
        return tensor
    module, _, suffix = key.rpartition('.')
    parts = module.split('.')
    names = {**NAMES, **gguf_gpt2.NAMES, **gguf_alibi.NAMES,
             **POST_NORMS.get(config.model_type, {}),
             **gguf_hybrid.NAMES.get(config.model_type, {})}
    name = names[module] if module in names else f'blk.{parts[2]}.{names[".".join(parts[3:])]}'
    adds_one = (module.endswith('norm') and suffix == 'weight'
                and config.model_type.startswith(('gemma', 'nemotron', 'qwen3_next', 'qwen3_5'))
                and not config.model_type.startswith(('nemotron_h', 'gemma4')))
    data = tensor.float().numpy() + (1.0 if adds_one else 0.0)
    is_turned = gguf_gpt2.is_turned(key, config)
    data = np.ascontiguousarray(data.T) if is_turned else data
    heads = {'q_proj': config.num_attention_heads,
             'k_proj': getattr(config, 'num_key_value_heads', None)}
    heads = heads.get(parts[-1]) if ARCHITECTURES[config.model_type] in REORDERED else None
    if heads:
        data = swap_rows(data, heads, 2)
    falcon = config.model_type == 'falcon'
    groups = config.num_key_value_heads if falcon else config.num_attention_heads
    if parts[-1] == 'query_key_value':
        order = queries_first(data.shape[0], groups, config.num_attention_heads)
        data = data[order]
    exact = 'ffn_gate_inp' in name or data.ndim != 2 or name.endswith('_norm')
    kind = gguf.GGMLQuantizationType['F32' if exact else kind]
    block_elements, _ = gguf.GGML_QUANT_SIZES[kind]
    if data.shape[-1] % block_elements:
        kind = gguf.GGMLQuantizationType.F32
    suffix = 'weight' if suffix == 'sinks' else suffix
    data = add_matrices(writer, f'{name}.{suffix}', data, kind)
    if heads:
        data = swap_rows(data, heads, data.shape[0] // heads // 2)
    if parts[-1] == 'query_key_value':
        data = data[np.argsort(order)]
    data = data - 1.0 if adds_one else data
    data = data.T if is_turned else data
    return torch.from_numpy(np.ascontiguousarray(data.astype(np.float32)))


def queries_first(rows, groups, heads):
    """Where the rows of all queries, all keys and all values stand in a tensor that has those of
    a group of heads together: its queries, and then its key and its value."""
    index = np.arange(rows).reshape(groups, heads // groups + 2, -1)
    return np.concatenate([index[:, :-2].ravel(), index[:, -2].ravel(), index[:, -1].ravel()])


def in_halves(tensor, head_dim, rotary_dim):
    """The rotated rows of every head, of which pairs stand beside each other."""
    heads = tensor.reshape(tensor.shape[0] // head_dim, head_dim, -1)
    turned, still = heads[:, :rotary_dim], heads[:, rotary_dim:]
    return torch.cat((turned[:, ::2], turned[:, 1::2], still), 1).reshape(tensor.shape)


def swap_rows(data, heads, outer):
    """Row (o, i) of every head to (i, o): with outer = 2 halves become neighbours."""
    rows = data.reshape(heads, outer, data.shape[0] // heads // outer, *data.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(data.shape)


def rope_factors(config, head_dim):
    """What the converter makes of llama3 scaling and longrope: a divisor for every frequency."""
    rope = config.rope_parameters
    rope = rope.get('full_attention', rope)
    if gguf_gemma4.is_gemma4(config):
        return gguf_gemma4.rope_factors(config)
    if rope['rope_type'] == 'longrope':
        return {f'rope_factors_{which}': rope[f'{which}_factor'] for which in ('long', 'short')}
    if rope['rope_type'] != 'llama3':
        return {}
    low = rope['original_max_position_embeddings'] / rope['low_freq_factor']
    high = rope['original_max_position_embeddings'] / rope['high_freq_factor']
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope['rope_theta'] ** (i / head_dim)
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(rope['factor'])
        else:
            span = rope['high_freq_factor'] - rope['low_freq_factor']
            original = rope['original_max_position_embeddings']
            smooth = (original / wavelength - rope['low_freq_factor']) / span
            factors.append(1 / ((1 - smooth) / rope['factor'] + smooth))
    return {'rope_freqs': factors}


def add_tokenizer(writer, tokenizer, config):
    """A byte-level BPE tokenizer.json, as its parsed JSON."""
    model = tokenizer['model']
    special = {token['id'] for token in tokenizer['added_tokens'] if token['special']}
    tokens = sorted({**model['vocab'], **{token['content']: token['id']
                     for token in tokenizer['added_tokens']}}.items(), key=lambda item: item[1])
    merges = [merge if isinstance(merge, str) else ' '.join(merge) for merge in model['merges']]
    # llama.cpp's names: `smollm` splits digits one by one and then as gpt-2 does.
    digits = 'Digits' in json.dumps(tokenizer['pre_tokenizer'])
    writer.add_tokenizer_model('gpt2')
    writer.add_tokenizer_pre('smollm' if digits else 'gpt-2')
    writer.add_token_list([token for token, _ in tokens])
    types = gguf.TokenType
    writer.add_token_types([types.CONTROL if i in special else types.NORMAL for _, i in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)

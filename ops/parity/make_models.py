#!/usr/bin/env python3
"""Small randomly initialised models and the logits that transformers computes for them.

Needs torch, transformers, safetensors, gguf.
    make_models.py OUT [--only NAME,...] [--shipped model]
    make_models.py worker/engine/tests/transformers --fixture

OUT gets, for every case, a Hugging Face folder or a .gguf file of the same weights, a token
file, the f32 logits (eager attention) as safetensors tensor `logits`, and cases.json, which
names them: [{"model": ..., "tokens": ..., "logits": ...}].  compare.py reads it.
"""
import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

import few_bits
import gguf_files
import own_code
import wrapped

TOKENS = 75
TINY = dict(vocab_size=160, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
            initializer_range=0.2, bos_token_id=0, eos_token_id=0)
LLAMA3 = dict(rope_type='llama3', rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = dict(rope_type='yarn', rope_theta=10000.0, factor=4.0,
            original_max_position_embeddings=32)
LINEAR = dict(rope_type='linear', rope_theta=10000.0, factor=2.0)
NTK_ALPHA = dict(rope_type='dynamic', rope_theta=10000.0, factor=1.0, alpha=50.0)
# Queries of the second 32 positions are larger than those of the first.
MINISTRAL3 = dict(mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4, **YARN)


def longrope(pairs, **others):
    """Factors of which every one differs, for prompts longer than the original length."""
    return dict(rope_type='longrope', rope_theta=10000.0,
                short_factor=[1 + 0.01 * i for i in range(pairs)],
                long_factor=[1.5 + 0.5 * i for i in range(pairs)], **others)


PHI4_MINI = dict(original_max_position_embeddings=32,
                 rope_parameters=longrope(6, partial_rotary_factor=0.75))
GRANITE = dict(embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.07,
               logits_scaling=1.6)

# Wide heads whose values are their keys, and experts beside a dense part.
GEMMA4_MOE = dict(
    head_dim=16, global_head_dim=64, num_global_key_value_heads=1, attention_k_eq_v=True,
    num_hidden_layers=4, layer_types=['sliding_attention', 'full_attention'] * 2, sliding_window=9,
    hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=8, top_k_experts=3,
    moe_intermediate_size=48)
# Layers with inputs of their own, and the last ones with keys of earlier ones.
GEMMA4_SMALL = dict(
    head_dim=16, global_head_dim=32, num_key_value_heads=1, num_hidden_layers=9, sliding_window=9,
    layer_types=['sliding_attention', 'sliding_attention', 'full_attention'] * 3,
    hidden_size_per_layer_input=32, vocab_size_per_layer_input=TINY['vocab_size'],
    num_kv_shared_layers=4, use_double_wide_mlp=True, final_logit_softcapping=2.0)
GEMMA4_UNIFIED = dict(
    head_dim=16, global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True,
    num_hidden_layers=4, layer_types=['sliding_attention', 'full_attention'] * 2, sliding_window=9,
    final_logit_softcapping=2.0)
GEMMA3 = dict(full_attention=dict(rope_type='linear', rope_theta=1e6, factor=8.0),
              sliding_attention=dict(rope_type='default', rope_theta=1e4))

OLMO3 = dict(full_attention=YARN, sliding_attention=dict(rope_type='default', rope_theta=10000.0))

# Rows that see their block of positions, layers that do not rotate, and experts of weighed rows.
LLAMA4 = dict(
    head_dim=16, intermediate_size=48, intermediate_size_mlp=96, num_hidden_layers=5,
    num_local_experts=4, num_experts_per_tok=1, attention_chunk_size=20, floor_scale=16,
    attn_scale=0.5)

# name -> (configuration class, what differs from TINY)
MODELS = {
    'llama-gqa': ('LlamaConfig', {}),
    'llama-mha-tied': ('LlamaConfig', dict(num_key_value_heads=4, tie_word_embeddings=True)),
    'llama-wide-head': ('LlamaConfig', dict(head_dim=24, rms_norm_eps=1e-5)),
    'llama-biases': ('LlamaConfig', dict(attention_bias=True, mlp_bias=True)),
    'llama-attention-biases': ('LlamaConfig', dict(attention_bias=True)),
    'llama31': ('LlamaConfig', dict(rope_parameters=LLAMA3)),
    'llama-linear': ('LlamaConfig', dict(rope_parameters=LINEAR)),
    'llama-dynamic': ('LlamaConfig', dict(rope_parameters=dict(
        rope_type='dynamic', rope_theta=10000.0, factor=2.0))),
    'internlm3': ('InternLM3Config', dict(head_dim=16, attention_bias=True, mlp_bias=True)),
    'iquestcoder': ('IQuestCoderConfig', dict(head_dim=32)),
    'llama4': ('Llama4TextConfig', LLAMA4),
    'llama4-odd': ('Llama4TextConfig', dict(
        LLAMA4, use_qk_norm=False, interleave_moe_layer_step=2, no_rope_layers=[1, 0, 1, 1, 0],
        num_experts_per_tok=2, attention_bias=True, attn_temperature_tuning=False)),
    'llama4-usual': ('Llama4TextConfig', dict(
        LLAMA4, attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1,
        interleave_moe_layer_step=2, rope_parameters=LLAMA3)),
    'mistral': ('MistralConfig', dict(sliding_window=None)),
    'mistral-window': ('MistralConfig', dict(sliding_window=9, head_dim=32)),
    'qwen2': ('Qwen2Config', dict(tie_word_embeddings=True)),
    'qwen2-yarn': ('Qwen2Config', dict(rope_parameters=YARN)),
    'qwen2-window': ('Qwen2Config', dict(use_sliding_window=True, sliding_window=11,
                                         max_window_layers=1)),
    'qwen3': ('Qwen3Config', dict(head_dim=32, tie_word_embeddings=True)),
    'qwen3-mha': ('Qwen3Config', dict(head_dim=16, num_key_value_heads=4, attention_bias=True)),
    'phi3': ('Phi3Config', dict(pad_token_id=0)),
    'phi3-window': ('Phi3Config', dict(pad_token_id=0, sliding_window=9)),
    'phi3-longrope': ('Phi3Config', dict(pad_token_id=0, original_max_position_embeddings=32,
                                         rope_parameters=longrope(8))),
    'bitnet': ('BitNetConfig', dict(tie_word_embeddings=True)),
    # transformers turns by the short factors, however long a prompt is.
    'phimoe': ('PhimoeConfig', dict(
        num_local_experts=6, attention_bias=True, lm_head_bias=True, max_position_embeddings=512,
        rope_parameters=dict(
            longrope(8, short_mscale=1.1, long_mscale=1.2, original_max_position_embeddings=32),
            short_factor=[1.5 + 0.5 * i for i in range(8)]))),
    'phimoe-window': ('PhimoeConfig', dict(
        num_local_experts=4, sliding_window=9, tie_word_embeddings=True)),
    'dbrx': ('DbrxConfig', dict(
        d_model=64, attn_config=dict(kv_n_heads=2, clip_qkv=0.7, rope_theta=5e5),
        rope_parameters=dict(rope_type='default', rope_theta=5e5),
        ffn_config=dict(ffn_hidden_size=48, moe_num_experts=6, moe_top_k=3,
                        moe_normalize_expert_weights=1.0))),
    'dbrx-plain': ('DbrxConfig', dict(
        d_model=64, attn_config=dict(kv_n_heads=4, clip_qkv=100.0, rope_theta=1e4), ffn_config=dict(
            ffn_hidden_size=40, moe_num_experts=5, moe_top_k=1,
            moe_normalize_expert_weights=None))),
    'phi3-partial': ('Phi3Config', dict(pad_token_id=0, tie_word_embeddings=True, **PHI4_MINI)),
    'ministral': ('MinistralConfig', dict(sliding_window=9, head_dim=32, layer_types=[
        'full_attention', 'sliding_attention', 'full_attention'])),
    'ministral3': ('Ministral3Config', dict(head_dim=32, rope_parameters=MINISTRAL3)),
    'ministral3-window': ('Ministral3Config', dict(
        head_dim=16, sliding_window=9, tie_word_embeddings=True,
        rope_parameters=dict(MINISTRAL3, mscale_all_dim=0.5))),
    'cwm': ('CwmConfig', dict(sliding_window=9, head_dim=16, rope_parameters=LLAMA3)),
    'helium': ('HeliumConfig', dict(head_dim=16, attention_bias=True, mlp_bias=True,
                                    pad_token_id=0)),
    'granite': ('GraniteConfig', GRANITE),
    'granite-tied': ('GraniteConfig', dict(tie_word_embeddings=True, attention_bias=True,
                                           mlp_bias=True, **GRANITE)),
    'granite4': ('GraniteMoeHybridConfig', dict(num_local_experts=0, layer_types=['attention'] * 3,
                                                shared_intermediate_size=80, pad_token_id=0,
                                                position_embedding_type='rope', **GRANITE)),
    'granite4-still': ('GraniteMoeHybridConfig', dict(num_local_experts=0, pad_token_id=0,
                                                      layer_types=['attention'] * 3, **GRANITE)),
    'smollm3': ('SmolLM3Config', dict(num_hidden_layers=5, pad_token_id=0)),
    'smollm3-window': ('SmolLM3Config', dict(no_rope_layers=[1, 0, 1], use_sliding_window=True,
                                             sliding_window=9, pad_token_id=0)),
    'seed-oss': ('SeedOssConfig', dict(head_dim=32, pad_token_id=0)),
    'seed-oss-biases': ('SeedOssConfig', dict(head_dim=16, pad_token_id=0, mlp_bias=True,
                                              attention_out_bias=True)),
    'ernie45': ('Ernie4_5Config', dict(head_dim=32)),
    'ernie45-biases': ('Ernie4_5Config', dict(head_dim=16, use_bias=True,
                                              tie_word_embeddings=False)),
    'glm': ('GlmConfig', dict(head_dim=16, pad_token_id=0)),
    'glm-quarter': ('GlmConfig', dict(head_dim=32, pad_token_id=0, attention_bias=False,
                                      partial_rotary_factor=0.25)),
    'glm4': ('Glm4Config', dict(head_dim=16, pad_token_id=0)),
    'gemma': ('GemmaConfig', dict(head_dim=32, num_key_value_heads=1)),
    'gemma-biases': ('GemmaConfig', dict(head_dim=16, attention_bias=True, hidden_act='gelu')),
    'gemma2': ('Gemma2Config', dict(head_dim=32, num_hidden_layers=4, sliding_window=9,
                                    query_pre_attn_scalar=32, attn_logit_softcapping=4.0,
                                    final_logit_softcapping=3.0)),
    'gemma2-odd': ('Gemma2Config', dict(head_dim=24, sliding_window=9, attention_bias=True,
                                        query_pre_attn_scalar=40, attn_logit_softcapping=None,
                                        layer_types=['full_attention', 'sliding_attention',
                                                     'full_attention'])),
    'gemma3': ('Gemma3TextConfig', dict(head_dim=32, num_hidden_layers=7, sliding_window=9,
                                        query_pre_attn_scalar=32, rope_parameters=GEMMA3)),
    'gemma4': ('Gemma4TextConfig', dict(
        head_dim=16, global_head_dim=32, num_hidden_layers=7, sliding_window=9,
        hidden_size_per_layer_input=0, final_logit_softcapping=2.0)),
    'gemma4-moe': ('Gemma4TextConfig', GEMMA4_MOE),
    'gemma4-small': ('Gemma4TextConfig', GEMMA4_SMALL),
    'gemma4-unified': ('Gemma4UnifiedTextConfig', GEMMA4_UNIFIED),
    'gemma4-inputs': ('Gemma4TextConfig', dict(
        GEMMA4_SMALL, num_kv_shared_layers=0, hidden_size_per_layer_input=24)),
    'gemma4-shared': ('Gemma4TextConfig', dict(
        GEMMA4_SMALL, hidden_size_per_layer_input=8, use_double_wide_mlp=False,
        global_head_dim=16, num_key_value_heads=2)),
    'gemma3-odd': ('Gemma3TextConfig', dict(head_dim=24, sliding_window=9, attention_bias=True,
                                            query_pre_attn_scalar=40, layer_types=[
                                                'full_attention', 'sliding_attention',
                                                'full_attention'])),
    'hunyuan': ('HunYuanDenseV1Config', dict(head_dim=32, rope_parameters=NTK_ALPHA)),
    'hunyuan-biases': ('HunYuanDenseV1Config', dict(head_dim=16, attention_bias=True,
                                                    tie_word_embeddings=True)),
    'olmo2': ('Olmo2Config', dict(pad_token_id=0, attention_bias=True)),
    'olmo3': ('Olmo3Config', dict(pad_token_id=0, num_hidden_layers=4, sliding_window=9,
                                  rope_parameters=OLMO3)),
    'exaone4': ('Exaone4Config', dict(head_dim=32, num_hidden_layers=4, sliding_window=9)),
    'exaone4-global': ('Exaone4Config', dict(head_dim=16, sliding_window=None,
                                             layer_types=['full_attention'] * 3)),
}
MOE = dict(moe_intermediate_size=48, num_experts_per_tok=3)
MODELS.update({
    'mixtral': ('MixtralConfig', dict(num_local_experts=5, num_experts_per_tok=2)),
    'mixtral-window': ('MixtralConfig', dict(num_local_experts=4, num_experts_per_tok=1,
                                             sliding_window=9, head_dim=32)),
    'aria': ('AriaTextConfig', dict(
        moe_num_experts=6, moe_topk=3, intermediate_size=48, pad_token_id=0)),
    'aria-biases': ('AriaTextConfig', dict(
        moe_num_experts=6, moe_num_shared_experts=1, intermediate_size=40, attention_bias=True,
        rope_parameters=YARN, tie_word_embeddings=True, pad_token_id=0)),
    'qwen2-moe': ('Qwen2MoeConfig', dict(num_experts=6, shared_expert_intermediate_size=40, **MOE)),
    'qwen2-moe-window': ('Qwen2MoeConfig', dict(
        num_experts=6, shared_expert_intermediate_size=40, qkv_bias=False, norm_topk_prob=True,
        use_sliding_window=True, sliding_window=11, max_window_layers=2, **MOE)),
    'qwen3-moe': ('Qwen3MoeConfig', dict(num_experts=8, head_dim=32, norm_topk_prob=True, **MOE)),
    'qwen3-moe-64': ('Qwen3MoeConfig', dict(
        hidden_size=64, num_experts=3, head_dim=32, moe_intermediate_size=64,
        num_experts_per_tok=2, norm_topk_prob=True)),
    'qwen3-moe-some': ('Qwen3MoeConfig', dict(num_experts=8, head_dim=16, num_hidden_layers=4,
                                              attention_bias=True, decoder_sparse_step=2,
                                              mlp_only_layers=[3], use_sliding_window=True,
                                              sliding_window=9, **MOE)),
    'granite-moe': ('GraniteMoeConfig', dict(num_local_experts=5, num_experts_per_tok=2,
                                             **GRANITE)),
    'glm4-moe': ('Glm4MoeConfig', dict(n_routed_experts=8, head_dim=16, pad_token_id=0,
                                       attention_bias=True, routed_scaling_factor=1.5, **MOE)),
    'dots1': ('Dots1Config', dict(n_routed_experts=8, n_shared_experts=2, first_k_dense_replace=1,
                                  max_window_layers=2, sliding_window=9, attention_bias=True,
                                  routed_scaling_factor=2.5, **MOE)),
    'dots1-global': ('Dots1Config', dict(n_routed_experts=8, n_shared_experts=2,
                                         first_k_dense_replace=1, norm_topk_prob=True, **MOE)),
    'solar-open': ('SolarOpenConfig', dict(n_routed_experts=8, head_dim=32, **MOE)),
    'olmoe': ('OlmoeConfig', dict(num_experts=8, num_experts_per_tok=3, pad_token_id=0)),
    'flex-olmo': ('FlexOlmoConfig', dict(num_experts=5, num_experts_per_tok=2, pad_token_id=0,
                                         norm_topk_prob=True)),
    'exaone-moe': ('ExaoneMoeConfig', dict(num_experts=6, head_dim=32, num_hidden_layers=5,
                                           sliding_window=9, num_shared_experts=2,
                                           **MOE)),
    'ernie45-moe': ('Ernie4_5_MoeConfig', dict(moe_num_experts=6, moe_k=2, head_dim=16,
                                               moe_intermediate_size=48)),
    'minimax-m2': ('MiniMaxM2Config', dict(num_local_experts=6, num_experts_per_tok=2,
                                           head_dim=32, rotary_dim=16)),
    'hunyuan-moe': ('HunYuanMoEV1Config', dict(num_experts=6, moe_topk=2, head_dim=16,
                                               rope_parameters=NTK_ALPHA)),
    'cohere': ('CohereConfig', dict(logit_scale=0.25, pad_token_id=0)),
    'cohere-biases': ('CohereConfig', dict(attention_bias=True, tie_word_embeddings=False,
                                           num_key_value_heads=4, pad_token_id=0)),
    'cohere-norms': ('CohereConfig', dict(use_qk_norm=True, attention_bias=True, pad_token_id=0)),
    'cohere2': ('Cohere2Config', dict(num_hidden_layers=5, sliding_window=9, pad_token_id=0)),
    'cohere2-global': ('Cohere2Config', dict(layer_types=['full_attention'] * 3, pad_token_id=0)),
    'cohere-compass': ('CohereCompassTextConfig', dict(
        head_dim=16, num_hidden_layers=4, sliding_window=9, logit_scale=0.25, pad_token_id=0,
        layer_types=['sliding_attention', 'full_attention'] * 2, rope_parameters=dict(
            sliding_attention=dict(rope_type='default', rope_theta=1e4, mrope_section=[2, 3, 3]),
            full_attention=None))),
    'cohere-compass-turned': ('CohereCompassTextConfig', dict(
        num_key_value_heads=4, attention_bias=True, pad_token_id=0, tie_word_embeddings=False,
        rope_parameters=dict(full_attention=dict(
            rope_type='default', rope_theta=1e5, mrope_section=[2, 3, 3])))),
    'cohere2-moe': ('Cohere2MoeConfig', dict(
        head_dim=16, num_hidden_layers=5, sliding_window=9, num_experts=6, num_experts_per_tok=3,
        num_shared_experts=2, first_k_dense_replace=1, prefix_dense_intermediate_size=80,
        intermediate_size=48, pad_token_id=0)),
    'cohere2-moe-sigmoid': ('Cohere2MoeConfig', dict(
        head_dim=32, num_hidden_layers=6, sliding_window=9, num_experts=6, num_experts_per_tok=3,
        num_shared_experts=1, shared_expert_combination_strategy='sum', intermediate_size=48,
        expert_selection_fn='sigmoid', first_k_dense_replace=2, tie_word_embeddings=False,
        prefix_dense_sliding_window_pattern=2, attention_bias=True, pad_token_id=0)),
    'cohere2-moe-rms': ('Cohere2MoeConfig', dict(
        head_dim=16, sliding_window=9, num_experts=6, intermediate_size=48, rms_norm_eps=1e-3,
        expert_selection_fn='sigmoid', norm_topk_prob=False, pad_token_id=0)),
    'olmo': ('OlmoConfig', dict(pad_token_id=0)),
    'olmo-tied': ('OlmoConfig', dict(tie_word_embeddings=True, attention_bias=True,
                                     pad_token_id=0)),
    'olmo-clipped': ('OlmoConfig', dict(clip_qkv=0.4, pad_token_id=0)),
    'olmoe-clipped': ('OlmoeConfig', dict(num_experts=8, num_experts_per_tok=3, clip_qkv=0.7,
                                          pad_token_id=0)),
    'stablelm-norms': ('StableLmConfig', dict(qk_layernorm=True, use_qkv_bias=True,
                                              pad_token_id=0)),
    'stablelm': ('StableLmConfig', dict(pad_token_id=0, num_attention_heads=2)),
    'stablelm-parallel': ('StableLmConfig', dict(pad_token_id=0, use_qkv_bias=True,
                                                 use_parallel_residual=True,
                                                 tie_word_embeddings=True)),
    'gpt-oss': ('GptOssConfig', dict(num_local_experts=6, num_experts_per_tok=3, head_dim=32,
                                     intermediate_size=64, num_hidden_layers=4, sliding_window=9,
                                     rope_parameters=dict(truncate=False, **YARN))),
    'gpt-oss-plain': ('GptOssConfig', dict(num_local_experts=5, num_experts_per_tok=2, head_dim=16,
                                           attention_bias=False, sliding_window=9, layer_types=[
                                               'full_attention', 'sliding_attention',
                                               'full_attention'])),
    'glm4-moe-norm': ('Glm4MoeConfig', dict(n_routed_experts=8, head_dim=32, pad_token_id=0,
                                            use_qk_norm=True, n_shared_experts=2,
                                            norm_topk_prob=False, first_k_dense_replace=2, **MOE)),
})
# Whose feed-forward parts have no gate.
MODELS.update({
    'starcoder2': ('Starcoder2Config', dict(sliding_window=9, pad_token_id=0)),
    'starcoder2-untied': ('Starcoder2Config', dict(use_bias=False, tie_word_embeddings=False,
                                                   hidden_act='gelu', pad_token_id=0)),
    'gpt-neox': ('GPTNeoXConfig', dict(num_key_value_heads=4, pad_token_id=0)),
    'gpt-neox-serial': ('GPTNeoXConfig', dict(num_key_value_heads=4, use_parallel_residual=False,
                                              attention_bias=False, pad_token_id=0)),
    'gpt-neox-tanh': ('GPTNeoXConfig', dict(hidden_act='gelu_fast', tie_word_embeddings=True,
                                            pad_token_id=0)),
    'falcon': ('FalconConfig', dict(ffn_hidden_size=96)),
    'falcon-new': ('FalconConfig', dict(new_decoder_architecture=True, num_kv_heads=2)),
    'falcon-biases': ('FalconConfig', dict(new_decoder_architecture=True, num_kv_heads=2, bias=True,
                                           num_ln_in_parallel_attn=1, tie_word_embeddings=False)),
    'falcon-serial': ('FalconConfig', dict(multi_query=False, parallel_attn=False, bias=True)),
    'gptj': ('GPTJConfig', dict(rotary_dim=8)),
    'codegen': ('CodeGenConfig', dict(rotary_dim=8)),
    'codegen-two': ('CodeGenConfig', dict(
        rotary_dim=16, num_attention_heads=2, tie_word_embeddings=True, n_inner=80)),
    'gpt2': ('GPT2Config', dict(n_inner=80)),
    'gpt2-untied': ('GPT2Config', dict(tie_word_embeddings=False, activation_function='relu')),
    'gpt-neo': ('GPTNeoConfig', dict(window_size=9, attention_types=[
        [['global', 'local'], 1], [['global'], 1]])),
    'gpt-neo-untied': ('GPTNeoConfig', dict(window_size=7, intermediate_size=80,
                                            tie_word_embeddings=False,
                                            attention_types=[[['local'], 3]])),
    'gpt-bigcode': ('GPTBigCodeConfig', {}),
    'gpt-bigcode-mha': ('GPTBigCodeConfig', dict(multi_query=False, n_inner=80)),
    'opt': ('OPTConfig', dict(ffn_dim=96, pad_token_id=0)),
    'opt-plain': ('OPTConfig', dict(ffn_dim=80, pad_token_id=0, enable_bias=False,
                                    activation_function='gelu')),
    'bloom': ('BloomConfig', {}),
    'bloom-odd': ('BloomConfig', dict(num_attention_heads=6, hidden_size=96,
                                      tie_word_embeddings=False)),
    'bloom-many': ('BloomConfig', dict(num_attention_heads=16)),
    'mpt': ('MptConfig', dict(max_seq_len=512)),
    'mpt-odd': ('MptConfig', dict(num_attention_heads=6, hidden_size=96, max_seq_len=512,
                                  attn_config=dict(clip_qkv=0.5, softmax_scale=0.5))),
    'mpt-steep': ('MptConfig', dict(max_seq_len=512, attn_config=dict(
        alibi_bias_max=16, clip_qkv=0.5))),
    'falcon-alibi': ('FalconConfig', dict(multi_query=False, parallel_attn=False, bias=True,
                                          alibi=True)),
    'phi': ('PhiConfig', dict(pad_token_id=0)),
    'phi-mha-tied': ('PhiConfig', dict(num_key_value_heads=4, tie_word_embeddings=True,
                                       pad_token_id=0)),
    'nemotron': ('NemotronConfig', dict(head_dim=24, pad_token_id=0)),
    'nemotron-biases': ('NemotronConfig', dict(attention_bias=True, mlp_bias=True,
                                               tie_word_embeddings=True, pad_token_id=0)),
    'arcee': ('ArceeConfig', dict(rope_parameters=YARN, pad_token_id=0)),
    'arcee-biases': ('ArceeConfig', dict(attention_bias=True, mlp_bias=True, head_dim=32,
                                         tie_word_embeddings=True, pad_token_id=0)),
    'jais2': ('Jais2Config', dict(pad_token_id=0)),
    'jais2-plain': ('Jais2Config', dict(attention_bias=False, mlp_bias=False, head_dim=32,
                                        tie_word_embeddings=True, pad_token_id=0)),
    'apertus': ('ApertusConfig', dict(rope_parameters=LLAMA3, pad_token_id=0)),
    'apertus15': ('Apertus1p5TextConfig', dict(
        rope_parameters=LLAMA3, output_vocab_size=30, pad_token_id=0)),
    'apertus-biases': ('ApertusConfig', dict(attention_bias=True, rope_parameters=LINEAR,
                                             tie_word_embeddings=True, pad_token_id=0)),
})
# Those of another family by other names.
MODELS.update({
    'sarvam-moe': ('SarvamMoEConfig', dict(n_routed_experts=8, head_dim=16, **MOE)),
    'sarvam-moe-biases': ('SarvamMoEConfig', dict(
        n_routed_experts=8, head_dim=32, n_shared_experts=2, attention_bias=True,
        use_qk_norm=False, first_k_dense_replace=0, rope_parameters=YARN, **MOE)),
    'sarvam-mla': ('SarvamMLAConfig', dict(
        num_key_value_heads=4, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=12,
        v_head_dim=32, n_routed_experts=8, **MOE)),
})
# Whose keys and values come of a few numbers that heads share.
LATENT = dict(num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=20,
              qk_rope_head_dim=12, v_head_dim=18, pad_token_id=0)
WIDER = dict(LATENT, qk_nope_head_dim=32, v_head_dim=32)
V2_YARN = dict(mscale=0.707, mscale_all_dim=0.707, **YARN)
V3_YARN = dict(mscale=1.0, mscale_all_dim=1.0, **YARN)
# Published with mscale_all_dim=1, by which transformers multiplies attention's scale and Mistral's
# own params.json (apply_scale: false) does not; 0 is without, and then cosine and sine have to be
# told that they are not multiplied either.
MISTRAL4 = dict(llama_4_scaling_beta=0.4, mscale=1.0, mscale_all_dim=0.0, attention_factor=1.0,
                **YARN)
MODELS.update({
    'deepseek-v2': ('DeepseekV2Config', dict(
        LATENT, n_routed_experts=8, n_group=4, topk_group=2, topk_method='group_limited_greedy',
        routed_scaling_factor=1.5, first_k_dense_replace=1, rope_parameters=V2_YARN, **MOE)),
    'deepseek-v2-lite': ('DeepseekV2Config', dict(
        WIDER, q_lora_rank=None, n_routed_experts=6, first_k_dense_replace=1, **MOE)),
    'deepseek-v3': ('DeepseekV3Config', dict(
        WIDER, n_routed_experts=8, n_group=4, topk_group=2, n_shared_experts=2,
        first_k_dense_replace=1, rope_parameters=V3_YARN, **MOE)),
    'deepseek-v3-halves': ('DeepseekV3Config', dict(
        LATENT, n_routed_experts=8, n_group=1, topk_group=1, norm_topk_prob=False,
        first_k_dense_replace=0, rope_interleave=False, q_lora_rank=None,
        rope_parameters=dict(mscale=0.5, mscale_all_dim=0.8, **YARN), **MOE)),
    'axk1': ('AXK1Config', dict(
        WIDER, n_routed_experts=8, n_group=4, topk_group=2, rope_parameters=V3_YARN, **MOE)),
    'axk1-halves': ('AXK1Config', dict(
        LATENT, n_routed_experts=8, n_group=1, topk_group=1, norm_topk_prob=False,
        n_shared_experts=2, rope_interleave=False,
        mlp_layer_types=['sparse', 'dense', 'sparse'], **MOE)),
    'glm4-moe-lite': ('Glm4MoeLiteConfig', dict(
        WIDER, v_head_dim=44, n_routed_experts=8, **MOE)),
    'youtu': ('YoutuConfig', LATENT),
    'mistral4': ('Mistral4Config', dict(
        WIDER, qk_nope_head_dim=36, n_routed_experts=8, n_shared_experts=2,
        first_k_dense_replace=1, rope_parameters=MISTRAL4, **MOE)),
    'mistral4-odd': ('Mistral4Config', dict(
        LATENT, n_routed_experts=8, n_group=4, topk_group=2, norm_topk_prob=False,
        rope_interleave=False, q_lora_rank=None, routed_scaling_factor=1.5,
        rope_parameters=MISTRAL4, **MOE)),
    'minicpm3': ('MiniCPM3Config', dict(LATENT, v_head_dim=16, rope_parameters=longrope(
        6, original_max_position_embeddings=32))),
    'minicpm3-plain': ('MiniCPM3Config', dict(
        LATENT, scale_depth=None, dim_model_base=None, scale_emb=2, mlp_bias=True,
        tie_word_embeddings=False)),
})
# Whose parts others brought.
SWA = dict(sliding_window=9, num_hidden_layers=5)
THETAS = dict(layer_rope_theta=[0, 1e4, 1e4, 0, 5e4], layer_types=[
    'full_attention', 'sliding_attention', 'sliding_attention', 'sliding_attention',
    'full_attention'])
MULTIPLIERS = dict(GRANITE, logits_scaling=0.6)
MELLUM = dict(full_attention=YARN, sliding_attention=dict(rope_type='default', rope_theta=3e3))
MODELS.update({
    'nanochat': ('NanoChatConfig', dict(final_logit_softcapping=3.0)),
    'nanochat-tied': ('NanoChatConfig', dict(
        tie_word_embeddings=True, attention_bias=True, head_dim=32, final_logit_softcapping=None,
        rms_norm_eps=1e-2)),
    'vaultgemma': ('VaultGemmaConfig', dict(
        head_dim=32, num_hidden_layers=4, sliding_window=9, query_pre_attn_scalar=32,
        attn_logit_softcapping=4.0, final_logit_softcapping=3.0)),
    'hyperclovax': ('HyperCLOVAXConfig', dict(head_dim=32, **MULTIPLIERS)),
    'hyperclovax-plain': ('HyperCLOVAXConfig', dict(
        tie_word_embeddings=True, attention_bias=True, mlp_bias=True)),
    'granite-moe-shared': ('GraniteMoeSharedConfig', dict(
        num_local_experts=5, num_experts_per_tok=2, intermediate_size=48,
        shared_intermediate_size=80, **GRANITE)),
    'granite-moe-shared-none': ('GraniteMoeSharedConfig', dict(
        num_local_experts=5, num_experts_per_tok=2, intermediate_size=48)),
    'granite-swa': ('GraniteSWAConfig', dict(SWA, **GRANITE)),
    'granite-swa-thetas': ('GraniteSWAConfig', dict(
        SWA, tie_word_embeddings=False, attention_bias=True, mlp_bias=True, **THETAS)),
    'granite-moe-swa': ('GraniteMoeSWAConfig', dict(
        SWA, num_local_experts=5, num_experts_per_tok=2, intermediate_size=48,
        shared_intermediate_size=80, **GRANITE)),
    'granite-moe-swa-thetas': ('GraniteMoeSWAConfig', dict(
        SWA, num_local_experts=5, num_experts_per_tok=2, intermediate_size=48, **THETAS)),
    'mellum': ('MellumConfig', dict(
        SWA, num_experts=6, head_dim=32, rope_parameters=MELLUM, layer_types=(
            ['sliding_attention'] * 3 + ['full_attention', 'sliding_attention']),
        mlp_layer_types=['dense'] + ['sparse'] * 4, **MOE)),
    'mellum-plain': ('MellumConfig', dict(
        num_experts=6, head_dim=16, attention_bias=True, norm_topk_prob=False, **MOE)),
    'flint': ('FlintConfig', dict(
        sliding_window=9, num_hidden_layers=6, num_experts=6, head_dim=32,
        shared_expert_intermediate_size=40, **MOE)),
    'flint-odd': ('FlintConfig', dict(
        sliding_window=9, num_experts=6, head_dim=16, shared_expert_intermediate_size=40,
        norm_topk_prob=False, attention_bias=True, mlp_only_layers=[2], layer_types=[
            'sliding_attention', 'full_attention', 'sliding_attention'], **MOE)),
    'hy-v3': ('HYV3Config', dict(num_experts=6, head_dim=32, **MOE)),
    'hy-v3-biases': ('HYV3Config', dict(
        num_experts=6, head_dim=16, num_shared_experts=2, router_scaling_factor=1.5,
        attention_bias=True, rope_parameters=YARN, mlp_layer_types=['sparse', 'dense', 'sparse'],
        **MOE)),
    'afmoe': ('AfmoeConfig', dict(
        SWA, num_experts=6, head_dim=32, mup_enabled=True, route_scale=2.5, **MOE)),
    'afmoe-plain': ('AfmoeConfig', dict(
        sliding_window=9, num_experts=6, head_dim=16, num_shared_experts=1, num_dense_layers=0,
        global_attn_every_n_layers=2, num_key_value_heads=None, **MOE)),
})
# Some of whose layers remember in a state instead of keys.
DELTA = dict(num_hidden_layers=4, linear_key_head_dim=8, linear_value_head_dim=12,
             linear_num_key_heads=2, linear_num_value_heads=4, pad_token_id=0)
# As many heads of keys as of values, convolutions of two inputs, and other layers.
DELTA_ODD = dict(DELTA, num_hidden_layers=3, linear_num_value_heads=2, linear_conv_kernel_dim=2,
                 layer_types=['full_attention', 'linear_attention', 'linear_attention'])
MAMBA = dict(num_hidden_layers=3, mamba_n_heads=8, mamba_d_state=12, pad_token_id=0)
MAMBA_LAYERS = dict(layer_types=['linear_attention', 'full_attention', 'linear_attention'])
SHARED_MOE = dict(num_experts=6, shared_expert_intermediate_size=40, **MOE)
# transformers keeps time steps above the least one that they begin with, as no other runtime does.
NEMOTRON_H = dict(mamba_num_heads=8, mamba_head_dim=12, ssm_state_size=20, n_groups=2, head_dim=32,
                  chunk_size=16, time_step_min=1e-30)
SCAN_OF_H1 = dict(mamba_n_heads=8, mamba_d_head=12, mamba_d_state=20, mamba_chunk_size=16)
# As its smallest model has them, but for those that are the same.
FALCON_H1 = dict(
    embedding_multiplier=5.65, lm_head_multiplier=0.4, attention_in_multiplier=0.9,
    attention_out_multiplier=0.9375, key_multiplier=0.39, ssm_in_multiplier=1.25,
    ssm_out_multiplier=0.236, mlp_multipliers=[0.88, 0.586],
    ssm_multipliers=[0.354, 0.25, 0.7, 0.5, 0.3], **SCAN_OF_H1)
LFM3_ROPE = dict(sliding_attention=dict(rope_type='default', rope_theta=1e4),
                 full_attention=dict(rope_type='proportional', rope_theta=1e6,
                                     partial_rotary_factor=0.5))


def parts(letters):
    """What Nemotron-H is made of, one after the other."""
    names = {'M': 'linear_attention', '*': 'full_attention', '-': 'mlp', 'E': 'moe'}
    return [names[letter] for letter in letters]


MODELS.update({
    'qwen3-next': ('Qwen3NextConfig', dict(DELTA, head_dim=32, **SHARED_MOE)),
    'qwen3-next-odd': ('Qwen3NextConfig', dict(
        DELTA_ODD, head_dim=16, attention_bias=True, norm_topk_prob=False, mlp_only_layers=[1],
        tie_word_embeddings=True, **SHARED_MOE)),
    'qwen35': ('Qwen3_5TextConfig', dict(DELTA, head_dim=32)),
    'qwen35-odd': ('Qwen3_5TextConfig', dict(DELTA_ODD, head_dim=16, attention_bias=True,
                                             tie_word_embeddings=True)),
    'qwen35-moe': ('Qwen3_5MoeTextConfig', dict(DELTA, head_dim=32, **SHARED_MOE)),
    'lara-mini': ('LaraMiniConfig', dict(
        DELTA, head_dim=32, num_hidden_layers=6, sliding_window=9, **SHARED_MOE)),
    'lara-mini-odd': ('LaraMiniConfig', dict(
        DELTA_ODD, head_dim=16, sliding_window=9, attention_bias=True, norm_topk_prob=False,
        tie_word_embeddings=False, **{**SHARED_MOE, 'shared_expert_intermediate_size': 24})),
    'lfm2': ('Lfm2Config', dict(num_hidden_layers=4, full_attn_idxs=[1, 3], block_multiple_of=16)),
    'lfm2-biases': ('Lfm2Config', dict(
        num_hidden_layers=3, conv_bias=True, conv_L_cache=4, tie_word_embeddings=False,
        block_auto_adjust_ff_dim=False, layer_types=['conv', 'full_attention', 'conv'])),
    'lfm2-moe': ('Lfm2MoeConfig', dict(
        num_hidden_layers=3, num_experts=6, num_dense_layers=1, routed_scaling_factor=1.5,
        layer_types=['conv', 'full_attention', 'conv'], **MOE)),
    'lfm2-moe-plain': ('Lfm2MoeConfig', dict(
        num_hidden_layers=3, num_experts=6, num_dense_layers=1, use_expert_bias=False,
        norm_topk_prob=False, layer_types=['full_attention', 'conv', 'conv'], **MOE)),
    'granite4-mamba': ('GraniteMoeHybridConfig', dict(
        num_local_experts=0, shared_intermediate_size=80, mamba_n_groups=2,
        **MAMBA, **MAMBA_LAYERS, **GRANITE)),
    'granite4-moe': ('GraniteMoeHybridConfig', dict(
        num_local_experts=5, num_experts_per_tok=2, shared_intermediate_size=80,
        intermediate_size=48, mamba_expand=3, mamba_conv_bias=False, mamba_proj_bias=True,
        mamba_d_conv=3,
        position_embedding_type='rope', attention_bias=True, time_step_limit=[0.3, 0.9],
        tie_word_embeddings=True, **MAMBA, **MAMBA_LAYERS, **GRANITE)),
    'granite4-moe-whole': ('GraniteMoeHybridConfig', dict(
        num_local_experts=5, num_experts_per_tok=2, shared_intermediate_size=80,
        intermediate_size=48, tie_word_embeddings=True, **MAMBA, **MAMBA_LAYERS, **GRANITE)),
    'bamba': ('BambaConfig', dict(attn_layer_indices=[1], mamba_n_groups=2, **MAMBA)),
    'bamba-whole': ('BambaConfig', dict(attn_layer_indices=[1], rope_parameters=dict(
        rope_type='default', rope_theta=1e4, partial_rotary_factor=1.0), **MAMBA)),
    'bamba-biases': ('BambaConfig', dict(
        attn_layer_indices=[0, 2], attention_bias=True, mlp_bias=True, mamba_proj_bias=True,
        mamba_conv_bias=False, mamba_expand=1, **MAMBA)),
    'falcon-h1': ('FalconH1Config', dict(
        mamba_n_groups=2, mamba_d_ssm=96, mamba_conv_bias=True, **FALCON_H1)),
    'falcon-h1-norms': ('FalconH1Config', dict(
        mamba_n_groups=2, mamba_d_ssm=96, mamba_rms_norm=True, mamba_norm_before_gate=False,
        mamba_conv_bias=False, mamba_d_conv=3, head_dim=24, time_step_limit=[0.3, 0.9],
        tie_word_embeddings=True, **FALCON_H1)),
    # As converters leave it, which multiply weights instead.
    'falcon-h1-plain': ('FalconH1Config', dict(mamba_n_groups=2, mamba_d_ssm=96, **SCAN_OF_H1)),
    'nemotron-h': ('NemotronHConfig', dict(layers_block_type=parts('M-M*-M'), **NEMOTRON_H)),
    # A feed-forward part that nothing stands before, and one behind another.
    'nemotron-h-biases': ('NemotronHConfig', dict(
        layers_block_type=parts('-M--*-M'), use_bias=True, mlp_bias=True, use_conv_bias=False,
        conv_kernel=3, layer_norm_epsilon=1e-3, **NEMOTRON_H)),
    'nemotron-h-moe': ('NemotronHConfig', dict(
        layers_block_type=parts('MEM*EME'), n_routed_experts=6,
        moe_shared_expert_intermediate_size=40, routed_scaling_factor=2.5, **NEMOTRON_H, **MOE)),
    # No GGUF file has both kinds of feed-forward parts, or groups.
    'nemotron-h-moe-groups': ('NemotronHConfig', dict(
        layers_block_type=parts('M-*EM'), n_routed_experts=8, n_group=4, topk_group=2,
        moe_shared_expert_intermediate_size=40, norm_topk_prob=False, **NEMOTRON_H, **MOE)),
    # All of whose layers do.
    'mamba2': ('Mamba2Config', dict(
        num_heads=8, head_dim=16, state_size=12, n_groups=2, chunk_size=16)),
    'mamba2-biases': ('Mamba2Config', dict(
        num_heads=16, head_dim=8, state_size=20, n_groups=1, chunk_size=16, conv_kernel=3,
        use_bias=True, use_conv_bias=False, tie_word_embeddings=True,
        time_step_limit=[0.3, 0.9])),
    'lfm3': ('Lfm3Config', dict(
        head_dim=32, num_hidden_layers=5, sliding_window=9, pad_token_id=0,
        rope_parameters=LFM3_ROPE)),
    'lfm3-odd': ('Lfm3Config', dict(
        head_dim=24, sliding_window=9, pad_token_id=0, attention_bias=True, conv_bias=True,
        conv_L_cache=3, tie_word_embeddings=False,
        layer_types=['sliding_attention', 'conv', 'full_attention'], rope_parameters=dict(
            LFM3_ROPE, full_attention=dict(rope_type='default', rope_theta=1e5)))),
    # transformers cuts their convolutions into three equal parts, whatever queries and values have.
    'olmo-hybrid': ('OlmoHybridConfig', dict(
        DELTA, num_key_value_heads=4, rms_norm_eps=1e-3, linear_key_head_dim=24,
        rope_parameters=dict(rope_type='default', rope_theta=None))),
    'olmo-hybrid-rotated': ('OlmoHybridConfig', dict(
        DELTA_ODD, linear_key_head_dim=12, attention_bias=True, linear_allow_neg_eigval=False,
        rope_parameters=dict(rope_type='default', rope_theta=1e4))),
})
VISION = dict(hidden_size=16, intermediate_size=16)
QWEN_SEES = dict(depth=1, num_heads=2, patch_size=4, **VISION)
QWEN_IDS = dict(image_token_id=150, video_token_id=151, vision_start_token_id=152,
                vision_end_token_id=153)
MROPE = dict(rope_type='default', rope_theta=1e6, mrope_section=[2, 3, 3])
# Models that read pictures too: of their text models, what differs from TINY, and the rest.
INSIDE = {
    'gemma3-inside': ('Gemma3Config', MODELS['gemma3'][1], dict(
        mm_tokens_per_image=4, image_token_index=150, boi_token_index=151, eoi_token_index=152,
        vision_config=dict(num_hidden_layers=1, image_size=8, num_attention_heads=2, patch_size=4,
                           **VISION))),
    'cohere-compass-inside': ('CohereCompassConfig', MODELS['cohere-compass'][1], dict(
        vision_config=dict(out_hidden_size=64, deepstack_visual_indexes=[0], **QWEN_SEES),
        image_token_id=150, video_token_id=151, vision_start_token_id=152,
        vision_end_token_id=153)),
    'gemma4-inside': ('Gemma4Config', MODELS['gemma4'][1], dict(
        audio_config=None, vision_config=dict(
            num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8,
            **VISION))),
    'gemma4-small-inside': ('Gemma4Config', MODELS['gemma4-small'][1], dict(
        audio_config=None, vision_config=dict(
            num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8,
            **VISION))),
    'gemma4-unified-inside': ('Gemma4UnifiedConfig', GEMMA4_UNIFIED, dict(
        audio_config=dict(audio_embed_dim=16), vision_config=dict(
            mm_embed_dim=16, output_proj_dims=16, mm_posemb_size=4))),
    'aria-inside': ('AriaConfig', dict(MODELS['aria'][1], model_type='aria_text'), dict(
        projector_patch_to_query_dict={'4': 2}, vision_config=dict(
            model_type='idefics3_vision', num_hidden_layers=1, image_size=8,
            num_attention_heads=2, patch_size=4, **VISION))),
    'llama4-inside': ('Llama4Config', MODELS['llama4'][1], dict(
        tie_word_embeddings=False, vision_config=dict(
            num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4,
            vision_output_dim=32, projector_input_dim=32, projector_output_dim=32, **VISION))),
    'mistral3-inside': ('Mistral3Config', dict(model_type='mistral', sliding_window=None), dict(
        image_token_index=150, vision_feature_layer=-1, tie_word_embeddings=False,
        vision_config=dict(model_type='pixtral', head_dim=8, num_hidden_layers=1, image_size=8,
                           num_attention_heads=2, patch_size=4, **VISION))),
    'ministral3-inside': ('Mistral3Config', dict(
        model_type='ministral3', head_dim=16, rope_parameters=MINISTRAL3), dict(
        image_token_index=150, vision_feature_layer=-1, tie_word_embeddings=False,
        vision_config=dict(model_type='pixtral', head_dim=8, num_hidden_layers=1, image_size=8,
                           num_attention_heads=2, patch_size=4, **VISION))),
    'mistral4-inside': ('Mistral3Config', dict(
        MODELS['mistral4'][1], model_type='mistral4'), dict(
        image_token_index=150, vision_feature_layer=-1, tie_word_embeddings=False,
        vision_config=dict(model_type='pixtral', head_dim=8, num_hidden_layers=1, image_size=8,
                           num_attention_heads=2, patch_size=4, **VISION))),
    'qwen2-vl-inside': ('Qwen2VLConfig', dict(rope_parameters=MROPE), dict(
        vision_config=dict(depth=1, embed_dim=16, hidden_size=64, num_heads=2, patch_size=4),
        **QWEN_IDS)),
    'qwen25-vl-inside': ('Qwen2_5_VLConfig', dict(rope_parameters=MROPE), dict(
        vision_config=dict(out_hidden_size=64, fullatt_block_indexes=[0], **QWEN_SEES),
        **QWEN_IDS)),
    'qwen3-vl-inside': ('Qwen3VLConfig', dict(
        head_dim=16, rope_parameters=dict(mrope_interleaved=True, **MROPE)), dict(
        vision_config=dict(out_hidden_size=64, deepstack_visual_indexes=[0], **QWEN_SEES),
        **QWEN_IDS)),
    'qwen35-inside': ('Qwen3_5Config', dict(
        MODELS['qwen35'][1], rope_parameters=dict(
            mrope_interleaved=True, partial_rotary_factor=0.5, **MROPE)), dict(
        vision_config=dict(out_hidden_size=64, **QWEN_SEES), tie_word_embeddings=False,
        **QWEN_IDS)),
    'qwen35-moe-inside': ('Qwen3_5MoeConfig', dict(
        MODELS['qwen35-moe'][1], rope_parameters=dict(
            mrope_interleaved=True, partial_rotary_factor=0.5, **MROPE)), dict(
        vision_config=dict(out_hidden_size=64, **QWEN_SEES), tie_word_embeddings=False,
        **QWEN_IDS)),
}
GEMMA3_INSIDE = 'gemma3-inside'
# The same around models of other families.
WRAPPED = wrapped.models(MODELS, MROPE)
INSIDE.update(WRAPPED)
# Models that are written as GGUF too, and the tensor types they are written in.  llama.cpp has
# no place for qwen2's windows per layer.
GGUF_MODELS = ['mixtral', 'qwen2-moe', 'qwen3-moe', 'qwen3-moe-64', 'granite-moe', 'glm4-moe',
               'glm4-moe-norm', 'llama-gqa', 'llama-mha-tied', 'llama-wide-head', 'llama-biases',
               'llama31', 'llama-linear', 'mistral', 'mistral-window', 'ministral3',
               'qwen2', 'qwen2-yarn', 'qwen3', 'phi3', 'phi3-window', 'phi3-longrope',
               'phi3-partial', 'granite', 'granite-tied',
               'smollm3', 'seed-oss', 'ernie45', 'glm', 'glm4', 'gemma', 'gemma3',
               'gemma4', 'gemma4-moe', 'gemma4-small', 'gemma4-shared', 'llama4-usual',
               'olmo2', 'olmo3', 'olmoe', 'exaone4', 'exaone4-global', 'exaone-moe', 'ernie45-moe',
               'minimax-m2', 'gemma2', 'gpt-oss', 'cohere', 'cohere-biases', 'cohere2', 'olmo',
               'stablelm', 'stablelm-parallel', 'starcoder2', 'gpt-neox', 'gpt-neox-serial', 'phi',
               'phi-mha-tied', 'nemotron', 'nemotron-biases', 'arcee', 'apertus', 'jais2',
               'deepseek-v2', 'deepseek-v2-lite', 'deepseek-v3', 'glm4-moe-lite', 'youtu',
               'minicpm3', 'hunyuan', 'hunyuan-biases', 'hunyuan-moe', 'falcon',
               'falcon-new', 'gpt2', 'gpt-bigcode', 'bloom', 'bloom-odd', 'mpt', 'mpt-steep',
               'mistral4', 'dots1-global', 'afmoe',
               'qwen3-next', 'qwen35', 'qwen35-moe',
               'lfm2', 'lfm2-moe', 'granite4-mamba', 'granite4-moe-whole', 'bamba-whole',
               'falcon-h1-plain', 'nemotron-h', 'nemotron-h-biases', 'nemotron-h-moe']
# Those of few models.
FP4_TYPES = {'gpt-oss': ['MXFP4'], 'qwen3-moe-64': ['NVFP4']}
GGUF_TYPES = ['F32', 'F16', 'BF16', 'Q8_0', 'Q4_0', 'Q4_1', 'Q5_0', 'Q5_1']
# What is committed beside the engine's tests: smaller still, one case for each family.
FIXTURE = dict(vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=2)
FEW_EXPERTS = dict(moe_num_experts=4, num_local_experts=4, num_experts=4, n_routed_experts=4,
                   num_experts_per_tok=2, moe_intermediate_size=32,
                   shared_expert_intermediate_size=32)
FIXTURE_TOKENS = 40


def make(name):
    """A model with every parameter random: norms, biases and heads too, so none can be lost."""
    kind = transformers.AutoModelForCausalLM
    if name in INSIDE:
        config_class, changes, whole = INSIDE[name]
        config = getattr(transformers, config_class)(text_config={**TINY, **changes}, **whole)
        if name != GEMMA3_INSIDE:
            kind = transformers.AutoModelForImageTextToText
        if name in WRAPPED:
            kind = transformers.AutoModelForMultimodalLM
    else:
        config_class, changes = MODELS[name]
        config = getattr(transformers, config_class)(**{**TINY, **changes})
    torch.manual_seed(sum(name.encode()))
    build = kind.from_config
    if config.model_type == 'mistral4':  # which no automatic class knows
        build = transformers.Mistral4ForCausalLM._from_config
    model = build(config, attn_implementation=attention_of(config))
    # To the weights of its norms.
    adds_one = config.model_type.startswith(('gemma', 'nemotron', 'qwen3_next', 'qwen3_5'))
    adds_one = adds_one and not config.model_type.startswith(('nemotron_h', 'gemma4'))
    for key, parameter in model.named_parameters():
        if key.endswith('.A_log'):  # some heads forget fast and some slowly
            parameter.data = torch.randn_like(parameter) - 1.0
        elif parameter.dim() == 1:
            is_one = 'norm' in key and (not adds_one or 'linear_attn.norm' in key)
            is_one = is_one or key.endswith(('router.scale', 'per_expert_scale'))
            centre = 1.0 if is_one or key.endswith('.D') else 0.0
            parameter.data = centre + 0.2 * torch.randn_like(parameter)
        elif key.endswith('e_score_correction_bias'):  # a row of them
            parameter.data = 0.1 * torch.randn_like(parameter)
        elif key.endswith('_proj_bias'):  # of experts: some go beyond what gates are clamped to
            parameter.data = 4.0 * torch.randn_like(parameter)
    for key, buffer in model.named_buffers():
        if key.endswith(('e_score_correction_bias', 'expert_bias')):
            buffer.data = 0.2 * torch.randn_like(buffer)
        elif key.endswith('layer_scalar'):
            buffer.data = 0.8 + 0.2 * torch.randn_like(buffer)
    return fall_as_said(model.float().eval())


def attention_of(config):
    # Falcon's eager attention of transformers 5.24 adds what falls with distance twice.
    return 'sdpa' if getattr(config, 'alibi', False) else 'eager'


def fall_as_said(model):
    """MPT by its own code, which transformers 5.24 takes all of but for `alibi_bias_max`."""
    if model.config.model_type == 'mpt':
        build = model.transformer.build_mpt_alibi_tensor
        most = model.config.attn_config.alibi_bias_max
        model.transformer.build_mpt_alibi_tensor = (
            lambda heads, length, device=None: build(heads, length, most, device))
    return model


def read(folder):
    kind = transformers.AutoModelForCausalLM
    if json.loads((folder / 'config.json').read_text())['model_type'] == 'mistral4':
        kind = transformers.Mistral4ForCausalLM  # which no automatic class knows
    load = kind.from_pretrained
    attention = attention_of(transformers.AutoConfig.from_pretrained(folder))
    return fall_as_said(load(folder, dtype=torch.float32, attn_implementation=attention).eval())


class Cases:
    """Writes the cases and remembers them."""

    def __init__(self, out, tokens):
        self.out, self.list = out, []
        seed = torch.Generator().manual_seed(7)
        ids = torch.randint(0, TINY['vocab_size'], (tokens,), generator=seed)
        self.ids = ids[None]
        self.tokens = 'tokens.txt'
        (out / self.tokens).write_text(' '.join(map(str, ids.tolist())) + '\n')

    def add(self, path, model):
        """The model at `path` must give the logits of `model`."""
        with torch.no_grad():
            logits = model(self.ids).logits[0].float()
        # Of tokens that are only read there may be none.
        none = model.get_input_embeddings().num_embeddings - logits.shape[1]
        logits = torch.nn.functional.pad(logits, (0, none), value=-1e30).contiguous()
        file = f'{path}.logits.safetensors'
        save_file({'logits': logits}, self.out / file)
        self.list.append({'model': path, 'tokens': self.tokens, 'logits': file})
        (self.out / 'cases.json').write_text(json.dumps(self.list, indent=1) + '\n')

    def folder(self, path, model, **options):
        model.save_pretrained(self.out / path, **options)
        self.add(path, model)


def hf_cases(cases, name):
    cases.folder(name, make(name))
    if name in ('lfm2', 'granite4-mamba'):
        narrow_case(cases, name, torch.bfloat16)
    if name in ('llama-gqa', 'qwen3', 'qwen3-next-odd'):
        for dtype in (torch.bfloat16, torch.float16):
            narrow_case(cases, name, dtype)
    if name == 'mistral':
        cases.folder(f'{name}-sharded', make(name), max_shard_size='60KB')
    if name in ('llama31', 'qwen2-yarn', 'gpt-neox', 'phi', 'nemotron', 'deepseek-v2',
                'deepseek-v3', 'minicpm3'):
        old_layout(cases, name)
    if name == 'olmo3':
        old_olmo3(cases, name)
    if name == 'phi3-partial':
        with_adapters(cases, name)
    if name == 'axk1':
        without_bias(cases, name)
    if name == 'sarvam-mla':
        old_sarvam(cases, name)
    if name == 'qwen2':
        for other in INSIDE:
            if other != GEMMA3_INSIDE and other not in WRAPPED:
                cases.folder(other, make(other))
    if name == 'nemotron-h':
        old_nemotron_h(cases, name)
    if name == 'llama-gqa':
        for other in WRAPPED:
            wrapped.add(cases, other, make)
    if name in ('qwen3-moe', 'qwen35-moe', 'lfm2-moe', 'nemotron-h-moe'):
        stacked_experts(cases, name)
    if name == 'gpt-oss':
        four_bits(cases, name)
    if name == 'llama4':
        experts_apart(cases, name)
    if name == 'gemma4-moe':
        experts_apart(cases, name, '.moe')
    if name in EIGHT_BITS:
        eight_bits(cases, name)
    for form in [form for form, of in few_bits.FORMATS.items() if of[0] == name]:
        few_bits_case(cases, form)
    for form in [form for form, of in own_code.FORMS.items() if of[1] == name]:
        own_code.own_code_case(cases, form, make, read, torch.float32)
    if name == 'gemma3':
        cases.folder(GEMMA3_INSIDE, make(GEMMA3_INSIDE))
        old_gemma3(cases, name)
        old_gemma3(cases, GEMMA3_INSIDE)


def old_layout(cases, name):
    """The same folder with config.json as transformers 4 wrote it."""
    path = f'{name}-v4'
    model = make(name)
    model.save_pretrained(cases.out / path)
    file = cases.out / path / 'config.json'
    config = json.loads(file.read_text())
    rope = config.pop('rope_parameters')
    is_neox = config['model_type'] == 'gpt_neox'
    config['rotary_emb_base' if is_neox else 'rope_theta'] = rope.pop('rope_theta')
    if 'partial_rotary_factor' in rope:
        config['rotary_pct' if is_neox else 'partial_rotary_factor'] = rope.pop(
            'partial_rotary_factor')
    if rope['rope_type'] == 'default':
        config['rope_scaling'] = None
    else:
        config['rope_scaling'] = {**rope, 'type': rope['rope_type']}
    config['torch_dtype'] = config.pop('dtype', 'float32')
    for absent in ('head_dim', 'layer_types'):
        if name == 'nemotron':
            break  # whose heads are not what its width would give them
        config.pop(absent, None)
    file.write_text(json.dumps(config))
    cases.add(path, model)


def old_olmo3(cases, name):
    """The same as transformers 4 wrote it: scaling of which only the modelling code knew for which
    layers it is."""
    path, model = f'{name}-v4', make(name)
    model.save_pretrained(cases.out / path)
    file = cases.out / path / 'config.json'
    config = json.loads(file.read_text())
    scaling = config.pop('rope_parameters')['full_attention']
    config['rope_theta'] = scaling.pop('rope_theta')
    config['rope_scaling'] = scaling
    config.pop('layer_types')
    file.write_text(json.dumps(config))
    cases.add(path, model)


def with_adapters(cases, name):
    """The same as Microsoft has it in a model that reads pictures too, with adapters for these."""
    path, model = 'phi4-mm', make(name)
    model.save_pretrained(cases.out / path)
    file = cases.out / path / 'config.json'
    config = json.loads(file.read_text())
    config.update(architectures=['Phi4MMForCausalLM'], model_type='phi4mm')
    file.write_text(json.dumps(config))
    tensors = {}
    for key, tensor in load_file(cases.out / path / 'model.safetensors').items():
        module = key.removesuffix('.weight')
        if not module.endswith('_proj'):
            tensors[key] = tensor
            continue
        tensors[f'{module}.base_layer.weight'] = tensor
        tensors[f'{module}.lora_A.vision.weight'] = torch.ones(2, tensor.shape[1])
        tensors[f'{module}.lora_B.vision.weight'] = torch.ones(tensor.shape[0], 2)
    save_file(tensors, cases.out / path / 'model.safetensors', metadata={'format': 'pt'})
    cases.add(path, model)


def without_bias(cases, name):
    """The same as SK Telecom has it: scores have no bias, and dense layers norms of no use."""
    path, model = f'{name}-unbiased', make(name)
    for key, buffer in model.named_buffers():
        if key.endswith('e_score_correction_bias'):
            buffer.data = torch.zeros_like(buffer)
    model.save_pretrained(cases.out / path)
    tensors = load_file(cases.out / path / 'model.safetensors')
    tensors = {key: tensor for key, tensor in tensors.items() if not key.endswith('_bias')}
    tensors['model.layers.0.post_mlp_layernorm.weight'] = torch.ones(model.config.hidden_size)
    save_file(tensors, cases.out / path / 'model.safetensors', metadata={'format': 'pt'})
    cases.add(path, model)


def old_sarvam(cases, name):
    """The same as Sarvam's own files have it."""
    path, model = f'{name}-own', make(name)
    model.save_pretrained(cases.out / path)
    file = cases.out / path / 'config.json'
    config = json.loads(file.read_text())
    config.update(architectures=['SarvamMLAForCausalLM'], head_dim=44, q_head_dim=44)
    for own, name in (('num_experts', 'n_routed_experts'),
                      ('num_shared_experts', 'n_shared_experts')):
        config[own] = config.pop(name)
    config.pop('rope_parameters')
    config['rope_scaling'] = dict(YARN, type='deepseek_yarn', mscale=1.0, mscale_all_dim=1.0)
    config['rope_scaling'].pop('rope_type')
    config['rope_theta'] = config['rope_scaling'].pop('rope_theta')
    file.write_text(json.dumps(config))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        cases.out / path, dtype=torch.float32, attn_implementation='eager').eval()
    cases.add(path, model)


def old_nemotron_h(cases, name):
    """The same as NVIDIA's own files have it: parts as letters, and a word that is no JSON."""
    path, model = f'{name}-nvidia', make(name)
    model.save_pretrained(cases.out / path)
    file = cases.out / path / 'config.json'
    config = json.loads(file.read_text())
    config['hybrid_override_pattern'] = model.config.hybrid_override_pattern
    config['num_hidden_layers'] = len(config.pop('layers_block_type'))
    config['time_step_limit'] = [0.0, float('inf')]
    config['rms_norm_eps'] = 0.5  # which nobody reads
    file.write_text(json.dumps(config))
    cases.add(path, model)


def stacked_experts(cases, name):
    """The same folder with all experts of a layer in one tensor, as the modules have them."""
    path = f'{name}-stacked'
    model = make(name)
    model.save_pretrained(cases.out / path)
    tensors = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop('lm_head.weight')
    save_file(tensors, cases.out / path / 'model.safetensors', metadata={'format': 'pt'})
    cases.add(path, model)


def experts_apart(cases, name, inside=''):
    """The same folder with experts one by one, as quantised files have those of models whose
    modules have all of a layer in one tensor."""
    path, model = f'{name}-apart', make(name)
    model.half().save_pretrained(cases.out / path)
    tensors = {}
    for key, tensor in load_file(cases.out / path / 'model.safetensors').items():
        module, _, part = key.rpartition('.')
        if not module.endswith('.experts'):
            tensors[key] = tensor
            continue
        module = module.replace('.experts', f'{inside}.experts')
        rows = tensor.swapaxes(1, 2) if 'feed_forward' in module else tensor
        for expert, matrix in enumerate(rows):
            halves = matrix.chunk(2) if part == 'gate_up_proj' else [matrix]
            names = ['gate_proj', 'up_proj'] if part == 'gate_up_proj' else [part]
            for which, half in zip(names, halves):
                tensors[f'{module}.{expert}.{which}.weight'] = half.contiguous()
    model = read(cases.out / path)  # as it was saved
    save_file(tensors, cases.out / path / 'model.safetensors', metadata={'format': 'pt'})
    cases.add(path, model)


# Of these models linear maps are written in floats of eight bits too: by blocks of so many rows and
# columns, as DeepSeek, Qwen and MiniMax do, by rows, or by tensors; Mistral 4's experts by matrices
# of one tensor.
EIGHT_BITS = {
    'qwen3': dict(quant_method='fp8', weight_block_size=[24, 40]),
    'minimax-m2': dict(quant_method='fp8', weight_block_size=[32, 32]),
    'deepseek-v3': dict(quant_method='fp8', weight_block_size=[24, 40]),
    # Which cuts heads of queries and their gates, and key heads with their values.
    'qwen3-next': dict(quant_method='fp8', weight_block_size=[20, 40]),
    'qwen2': dict(quant_method='fp8', weight_block_size=None),
    'mistral4': dict(quant_method='fp8', weight_block_size=None, activation_scheme='static'),
    'llama-gqa': dict(quant_method='compressed-tensors', format='float-quantized', config_groups={
        'group_0': dict(weights=dict(num_bits=8, type='float', symmetric=True,
                                     strategy='channel'))}),
}


def eight_bits(cases, name):
    """The same folder in floats of eight bits beside scales."""
    path, model, method = f'{name}-fp8', make(name), EIGHT_BITS[name]
    model.save_pretrained(cases.out / path)
    file = cases.out / path / 'model.safetensors'
    tensors, said = load_file(file), {}
    for key, tensor in list(tensors.items()):
        if key.endswith(('experts.gate_up_proj', 'experts.down_proj')):
            scales = tensor.abs().amax((1, 2), keepdim=True) / 448
            tensors[key] = (tensor / scales).to(torch.float8_e4m3fn)
            is_flat = key.endswith('down_proj')  # both shapes are seen
            tensors[f'{key}_scale_inv'] = scales.flatten() if is_flat else scales
            tensors[f'{key}_activation_scale'] = torch.ones(len(scales))
            said[key] = tensors[key].float() * scales
            continue
        if not key.endswith(('_proj.weight', '_mqa.weight', '_qkvz.weight', '.w1.weight',
                             '.w2.weight', '.w3.weight')):
            continue
        rows, columns = tensor.shape
        whole = [rows, columns]
        block = method.get('weight_block_size') or (
            [1, columns] if 'config_groups' in method else whole)
        suffix = '_scale' if 'config_groups' in method else '_scale_inv'
        scales = torch.zeros(-(-rows // block[0]), -(-columns // block[1]))
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                part = tensor[i * block[0]:, j * block[1]:][:block[0], :block[1]]
                scales[i, j] = part.abs().max() / 448
        spread = scales.repeat_interleave(block[0], 0)[:rows]
        spread = spread.repeat_interleave(block[1], 1)[:, :columns]
        tensors[key] = (tensor / spread).to(torch.float8_e4m3fn)
        tensors[f'{key}{suffix}'] = scales[0, 0] if block == whole else scales
        said[key] = tensors[key].float() * spread
    what_is_said(cases, path, model, tensors, said, method)


def what_is_said(cases, path, model, tensors, said, method):
    """Writes tensors and `method` to a folder that was made of `model`, and adds the model that
    they say, some matrices of which are `said`."""
    save_file(tensors, cases.out / path / 'model.safetensors', metadata={'format': 'pt'})
    # Read as any other.
    plain = cases.out / f'{path}.said'
    model.save_pretrained(plain)
    save_file({**load_file(plain / 'model.safetensors'), **said}, plain / 'model.safetensors',
              metadata={'format': 'pt'})
    model = read(plain)
    shutil.rmtree(plain)
    config = json.loads((cases.out / path / 'config.json').read_text())
    config['quantization_config'] = method
    (cases.out / path / 'config.json').write_text(json.dumps(config))
    cases.add(path, model)


def few_bits_case(cases, form):
    """A folder whose linear maps are integers of a few bits."""
    name, method, packed = few_bits.FORMATS[form]
    path, model = f'{name}-{form}', make(name)
    if method['quant_method'] in ('gptq', 'awq'):
        model.half()  # as these files have all else
    model.save_pretrained(cases.out / path)
    tensors, said = load_file(cases.out / path / 'model.safetensors'), {}
    for key in [key for key in tensors if key.endswith('_proj.weight')]:
        made, said[key] = packed(tensors.pop(key).float())
        module = key.removesuffix('.weight')
        tensors.update({f'{module}.{part}': tensor for part, tensor in made.items()})
    what_is_said(cases, path, model, tensors, said, method)


def four_bits(cases, name):
    """The same folder with experts in MXFP4, as OpenAI has them."""
    path = f'{name}-mxfp4'
    model = make(name)
    model.save_pretrained(cases.out / path)
    tensors = {}
    for key, tensor in model.state_dict().items():
        if key.endswith(('experts.gate_up_proj', 'experts.down_proj')):
            rows = tensor.transpose(1, 2).contiguous()
            made, said = few_bits.mxfp4(rows.flatten(0, 1))
            tensors[f'{key}_scales'] = made['weight_scale'].reshape(*rows.shape[:2], -1)
            tensors[f'{key}_blocks'] = made['weight_packed'].reshape(*rows.shape[:2], -1, 16)
            tensor.copy_(said.reshape(rows.shape).transpose(1, 2))
        else:
            tensors[key] = tensor.contiguous()
    save_file(tensors, cases.out / path / 'model.safetensors', metadata={'format': 'pt'})
    file = cases.out / path / 'config.json'
    config = json.loads(file.read_text())
    config['quantization_config'] = dict(quant_method='mxfp4', modules_to_not_convert=[])
    file.write_text(json.dumps(config))
    cases.add(path, model)


def old_gemma3(cases, name):
    """The same folder as transformers 4 wrote it: one pattern of windows, two fields of rope, and
    of a model inside another its own names and only what differs from its class."""
    path = f'{name}-v4'
    model = make(name)
    model.save_pretrained(cases.out / path)
    file = cases.out / path / 'config.json'
    config = json.loads(file.read_text())
    text = config.get('text_config', config)
    text.pop('layer_types')
    rope = text.pop('rope_parameters')
    text['sliding_window_pattern'] = 6
    text['rope_theta'] = rope['full_attention'].pop('rope_theta')
    text['rope_local_base_freq'] = rope['sliding_attention']['rope_theta']
    text['rope_scaling'] = rope['full_attention']
    if text is not config:
        for default in ('rms_norm_eps', 'rope_theta', 'rope_local_base_freq',
                        'sliding_window_pattern', 'hidden_activation', 'attention_bias'):
            text.pop(default, None)
        tensors = {f'language_model.{key}': tensor.contiguous()
                   for key, tensor in model.model.language_model.state_dict(prefix='model.').items()}
        save_file(tensors, cases.out / path / 'model.safetensors', metadata={'format': 'pt'})
    file.write_text(json.dumps(config))
    cases.add(path, model)


def gguf_case(cases, name, kind, whole=False):
    model = make(name)
    path = f'{name}-whole-{kind}.gguf' if whole else f'{name}-{kind}.gguf'
    stored = gguf_files.write(cases.out / path, model, kind, whole=whole)
    # What the file holds, not what was written: quantisation is the file's, not ours.
    model.load_state_dict(stored, strict=False)
    cases.add(path, model)


def glm4_that_sees(cases):
    path, model = 'glm4-sections-F32.gguf', make('glm4')
    gguf_files.write(cases.out / path, model, 'F32', sections=[2, 1, 1, 0])
    cases.add(path, model)


def shipped_cases(cases, folder):
    """A real model, with its tokenizer in the GGUF files' metadata."""
    model = read(folder)
    model.save_pretrained(cases.out / 'shipped')
    cases.add('shipped', model)
    tokenizer = json.loads((folder / 'tokenizer.json').read_text())
    for kind in ('F16', 'Q8_0'):
        path = f'shipped-{kind}.gguf'
        model = read(folder)
        stored = gguf_files.write(cases.out / path, model, kind, tokenizer)
        model.load_state_dict(stored, strict=False)
        cases.add(path, model)


def shrink():
    TINY.update(FIXTURE)
    for _, changes in MODELS.values():
        if 'head_dim' in changes:
            changes['head_dim'] = 16
        changes.update({key: value for key, value in FEW_EXPERTS.items() if key in changes})
    MODELS['qwen3-moe-64'][1]['moe_intermediate_size'] = 64
    for name in ('bloom-odd', 'mpt-odd'):
        MODELS[name][1]['hidden_size'] = 48  # of six heads
    MODELS['phimoe'][1]['rope_parameters'].update(short_factor=[1.5, 2.0, 2.5, 3.0],
                                                  long_factor=[1.5, 2.0, 2.5, 3.0])
    MODELS['dbrx'][1].update(d_model=32)
    MODELS['dbrx'][1]['ffn_config'].update(ffn_hidden_size=32, moe_num_experts=4, moe_top_k=2)
    MODELS['phi3-partial'][1]['rope_parameters'] = longrope(3, partial_rotary_factor=0.75)
    MODELS['smollm3-window'][1]['no_rope_layers'] = [1, 0]
    MODELS['ministral'][1]['layer_types'] = ['full_attention', 'sliding_attention']
    MODELS['helium'][1]['head_dim'] = 8  # its heads are as wide as the model
    MROPE['mrope_section'] = [1, 1, 2]
    wrapped.HALF['mrope_section'] = [1, 1, 0]
    MODELS['dots1'][1]['max_window_layers'] = 1
    MODELS['minimax-m2'][1]['rotary_dim'] = 8
    MODELS['gemma3'][1]['query_pre_attn_scalar'] = 16
    MODELS['gemma4-moe'][1].update(num_hidden_layers=2, top_k_experts=2, layer_types=[
        'sliding_attention', 'full_attention'])
    narrow = dict(intermediate_size=32, intermediate_size_mlp=32)
    MODELS['llama4'][1].update(num_hidden_layers=2, no_rope_layers=[1, 0], **narrow)
    # No GGUF file says which layers rotate.
    MODELS['llama4-usual'][1].update(num_hidden_layers=4, **narrow)
    MODELS['gemma4-small'][1].update(
        num_hidden_layers=4, num_kv_shared_layers=2, vocab_size_per_layer_input=32,
        layer_types=['sliding_attention', 'full_attention'] * 2)
    MODELS['gemma4-unified'][1].update(num_hidden_layers=2, layer_types=[
        'sliding_attention', 'full_attention'])
    MODELS['gemma3-odd'][1]['layer_types'] = ['full_attention', 'sliding_attention']
    MODELS['gemma2'][1].update(query_pre_attn_scalar=16, num_hidden_layers=2)
    MODELS['gpt-oss'][1].update(num_hidden_layers=2, intermediate_size=32)
    MODELS['gpt-neo'][1]['attention_types'] = [[['global', 'local'], 1]]
    for name in ('deepseek-v2', 'deepseek-v3', 'axk1'):
        MODELS[name][1].update(n_group=2, topk_group=1)
    EIGHT_BITS['deepseek-v3']['weight_block_size'] = [24, 20]
    MODELS['minicpm3'][1]['v_head_dim'] = 8  # as wide as its heads, as no GGUF file says it
    MODELS['cohere2'][1]['num_hidden_layers'] = 4  # one of which sees all positions
    MODELS['cohere-compass'][1].update(num_hidden_layers=2, layer_types=[
        'sliding_attention', 'full_attention'])
    MODELS['cohere2-moe'][1].update(num_hidden_layers=3, sliding_window_pattern=2)
    MODELS['vaultgemma'][1].update(query_pre_attn_scalar=16, num_hidden_layers=2)
    MODELS['granite-moe-swa-thetas'][1].update(
        num_hidden_layers=3, layer_rope_theta=[0, 1e4, 5e4], layer_types=[
            'full_attention', 'sliding_attention', 'full_attention'])
    MODELS['mellum'][1].update(num_hidden_layers=2, mlp_layer_types=['dense', 'sparse'],
                               layer_types=['sliding_attention', 'full_attention'])
    MODELS['flint'][1]['num_hidden_layers'] = 4  # of which the third has a window
    MODELS['afmoe'][1]['num_hidden_layers'] = 4  # one of which sees all positions
    # Of which there is one of each kind, or one of each kind of feed-forward part.
    MODELS['qwen35'][1].update(num_hidden_layers=2, layer_types=[
        'linear_attention', 'full_attention'])
    MODELS['qwen3-next'][1].update(num_hidden_layers=2, layer_types=[
        'linear_attention', 'full_attention'])
    MODELS['lara-mini'][1].update(num_hidden_layers=3, layer_types=[
        'linear_attention', 'sliding_attention', 'full_attention'])
    for name in ('falcon-h1', 'falcon-h1-norms', 'falcon-h1-plain'):
        MODELS[name][1].update(mamba_d_ssm=64, mamba_d_head=8)  # whole blocks of Q8_0
    MODELS['mamba2-biases'][1].update(num_heads=4)
    MODELS['lfm2-moe'][1].update(num_hidden_layers=2, layer_types=['conv', 'full_attention'])
    MODELS['granite4-moe-whole'][1].update(num_hidden_layers=2, layer_types=[
        'linear_attention', 'full_attention'])


def narrow_case(cases, name, dtype):
    path = f'{name}-{str(dtype).removeprefix("torch.")}'
    make(name).to(dtype).save_pretrained(cases.out / path)
    # Read back: .to(dtype).float() would leave rounded rotation frequencies behind.
    cases.add(path, read(cases.out / path))


def fixture_cases(cases):
    narrow_case(cases, 'llama31', torch.bfloat16)
    gguf_case(cases, 'mistral-window', 'Q8_0')
    gguf_case(cases, 'qwen2-yarn', 'Q4_0')
    narrow_case(cases, 'qwen3', torch.float16)
    narrow_case(cases, 'phi3-partial', torch.bfloat16)
    gguf_case(cases, 'granite-tied', 'Q8_0')
    narrow_case(cases, 'smollm3-window', torch.float16)
    gguf_case(cases, 'seed-oss', 'Q4_0')
    narrow_case(cases, 'ernie45', torch.bfloat16)
    gguf_case(cases, 'glm', 'Q8_0')
    gguf_case(cases, 'glm4', 'Q4_0')
    narrow_case(cases, 'gemma', torch.bfloat16)
    gguf_case(cases, 'gemma3', 'Q8_0')
    narrow_case(cases, 'gemma3-odd', torch.float16)
    narrow_case(cases, 'gemma4-moe', torch.bfloat16)
    narrow_case(cases, 'llama4', torch.bfloat16)
    experts_apart(cases, 'llama4')
    experts_apart(cases, 'gemma4-moe', '.moe')
    gguf_case(cases, 'llama4-usual', 'Q8_0')
    gguf_case(cases, 'gemma4-small', 'Q8_0')
    narrow_case(cases, 'gemma4-small', torch.float16)
    narrow_case(cases, 'mixtral', torch.bfloat16)
    gguf_case(cases, 'qwen2-moe', 'Q8_0')
    gguf_case(cases, 'qwen3-moe', 'Q4_0')
    gguf_case(cases, 'qwen3-moe-64', 'NVFP4')
    narrow_case(cases, 'granite-moe', torch.bfloat16)
    narrow_case(cases, 'glm4-moe', torch.float16)
    narrow_case(cases, 'ministral', torch.bfloat16)
    narrow_case(cases, 'cwm', torch.float16)
    narrow_case(cases, 'helium', torch.bfloat16)
    narrow_case(cases, 'dots1', torch.float16)
    narrow_case(cases, 'solar-open', torch.bfloat16)
    narrow_case(cases, 'olmo2', torch.bfloat16)
    gguf_case(cases, 'olmo3', 'Q8_0')
    narrow_case(cases, 'olmoe', torch.float16)
    narrow_case(cases, 'flex-olmo', torch.bfloat16)
    narrow_case(cases, 'exaone4', torch.float16)
    narrow_case(cases, 'exaone-moe', torch.bfloat16)
    narrow_case(cases, 'ernie45-moe', torch.float16)
    narrow_case(cases, 'minimax-m2', torch.bfloat16)
    narrow_case(cases, 'gpt-oss', torch.bfloat16)
    four_bits(cases, 'gpt-oss')
    gguf_case(cases, 'gpt-oss', 'MXFP4')
    gguf_case(cases, 'gemma2', 'Q8_0')
    gguf_case(cases, 'cohere', 'Q4_0')
    gguf_case(cases, 'cohere-norms', 'Q8_0')
    gguf_case(cases, 'olmo-clipped', 'Q8_0')
    narrow_case(cases, 'olmoe-clipped', torch.bfloat16)
    narrow_case(cases, 'stablelm-norms', torch.float16)
    narrow_case(cases, 'cohere2', torch.bfloat16)
    narrow_case(cases, 'olmo-tied', torch.float16)
    narrow_case(cases, 'stablelm', torch.bfloat16)
    gguf_case(cases, 'stablelm-parallel', 'Q8_0')
    narrow_case(cases, 'starcoder2', torch.bfloat16)
    gguf_case(cases, 'gpt-neox', 'Q8_0')
    narrow_case(cases, 'gpt-neox-serial', torch.float16)
    narrow_case(cases, 'phi', torch.bfloat16)
    gguf_case(cases, 'phi', 'Q4_0')
    narrow_case(cases, 'nemotron', torch.float16)
    gguf_case(cases, 'arcee', 'Q8_0')
    narrow_case(cases, 'apertus', torch.bfloat16)
    gguf_case(cases, 'apertus', 'Q8_0')
    gguf_case(cases, 'jais2', 'Q8_0')
    narrow_case(cases, 'deepseek-v2', torch.float16)
    gguf_case(cases, 'deepseek-v2-lite', 'Q8_0', whole=True)
    eight_bits(cases, 'deepseek-v3')
    gguf_case(cases, 'deepseek-v3', 'Q8_0')
    narrow_case(cases, 'glm4-moe-lite', torch.bfloat16)
    narrow_case(cases, 'youtu', torch.float16)
    narrow_case(cases, 'minicpm3', torch.bfloat16)
    gguf_case(cases, 'minicpm3', 'Q8_0')
    narrow_case(cases, 'ministral3', torch.bfloat16)
    gguf_case(cases, 'ministral3', 'Q8_0')
    gguf_case(cases, 'hunyuan', 'Q8_0')
    narrow_case(cases, 'hunyuan-moe', torch.float16)
    narrow_case(cases, 'falcon', torch.bfloat16)
    gguf_case(cases, 'falcon-new', 'Q8_0')
    narrow_case(cases, 'gptj', torch.float16)
    narrow_case(cases, 'gpt2', torch.bfloat16)
    gguf_case(cases, 'gpt2', 'Q8_0')
    narrow_case(cases, 'bloom-odd', torch.bfloat16)
    gguf_case(cases, 'bloom', 'Q8_0')
    narrow_case(cases, 'mpt-odd', torch.float16)
    gguf_case(cases, 'mpt-steep', 'Q8_0')
    narrow_case(cases, 'falcon-alibi', torch.float16)
    narrow_case(cases, 'gpt-neo', torch.float16)
    narrow_case(cases, 'gpt-bigcode', torch.float16)
    gguf_case(cases, 'gpt-bigcode', 'Q8_0')
    narrow_case(cases, 'opt', torch.bfloat16)
    gguf_case(cases, 'mistral4', 'Q8_0')
    eight_bits(cases, 'mistral4')
    gguf_case(cases, 'qwen3-next', 'Q8_0')
    gguf_case(cases, 'qwen3-next', 'Q4_0', whole=True)
    gguf_case(cases, 'qwen35', 'Q8_0')
    gguf_case(cases, 'lfm2-moe', 'Q8_0')
    gguf_case(cases, 'granite4-moe-whole', 'Q8_0')
    for name in ('mistral3-inside', 'mistral4-inside', 'qwen25-vl-inside', 'qwen3-vl-inside',
                 'qwen35-inside'):
        cases.folder(name, make(name))
    for name in ('llava-inside', 'smolvlm-inside', 'glm4v-inside', 'qwen3-vl-moe-inside',
                 'qwen25-omni-inside', 'voxtral-inside'):
        wrapped.add(cases, name, make)
    eight_bits(cases, 'qwen3-next')
    narrow_case(cases, 'qwen35-moe', torch.float16)
    narrow_case(cases, 'lfm2-biases', torch.float16)
    narrow_case(cases, 'lfm2-moe', torch.bfloat16)
    narrow_case(cases, 'granite4-mamba', torch.float16)
    narrow_case(cases, 'granite4-moe', torch.bfloat16)
    narrow_case(cases, 'bamba', torch.bfloat16)
    narrow_case(cases, 'phimoe', torch.bfloat16)
    narrow_case(cases, 'dbrx', torch.float16)
    narrow_case(cases, 'falcon-h1', torch.bfloat16)
    narrow_case(cases, 'falcon-h1-norms', torch.float16)
    gguf_case(cases, 'falcon-h1-plain', 'Q8_0')
    narrow_case(cases, 'nemotron-h-biases', torch.bfloat16)
    gguf_case(cases, 'nemotron-h-moe', 'Q8_0')
    narrow_case(cases, 'mamba2-biases', torch.bfloat16)
    narrow_case(cases, 'lfm3', torch.bfloat16)
    narrow_case(cases, 'olmo-hybrid', torch.float16)
    narrow_case(cases, 'vaultgemma', torch.float16)
    narrow_case(cases, 'hyperclovax', torch.bfloat16)
    narrow_case(cases, 'granite-moe-shared', torch.float16)
    narrow_case(cases, 'granite-moe-swa-thetas', torch.bfloat16)
    narrow_case(cases, 'mellum', torch.float16)
    narrow_case(cases, 'flint', torch.bfloat16)
    narrow_case(cases, 'hy-v3', torch.float16)
    narrow_case(cases, 'afmoe', torch.bfloat16)
    gguf_case(cases, 'afmoe', 'Q8_0')
    narrow_case(cases, 'gemma4-unified', torch.bfloat16)
    narrow_case(cases, 'sarvam-moe', torch.float16)
    narrow_case(cases, 'sarvam-mla', torch.bfloat16)
    with_adapters(cases, 'phi3-partial')
    narrow_case(cases, 'cohere2-moe', torch.bfloat16)
    without_bias(cases, 'axk1')
    narrow_case(cases, 'codegen', torch.bfloat16)
    narrow_case(cases, 'aria', torch.float16)
    narrow_case(cases, 'lara-mini', torch.bfloat16)
    narrow_case(cases, 'apertus15', torch.bfloat16)
    narrow_case(cases, 'nanochat', torch.float16)
    narrow_case(cases, 'cohere-compass', torch.bfloat16)
    for form in few_bits.FORMATS:
        few_bits_case(cases, form)
    for form in own_code.FORMS:
        own_code.own_code_case(cases, form, make, read, torch.bfloat16)


def all_cases(cases, names):
    for name in names:
        hf_cases(cases, name)
        if name == 'glm4':
            glm4_that_sees(cases)
        if name in GGUF_MODELS:
            for kind in GGUF_TYPES + FP4_TYPES.get(name, []):
                gguf_case(cases, name, kind)
                if name.startswith('deepseek') or name == 'qwen3-next':
                    gguf_case(cases, name, kind, whole=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out', type=Path)
    parser.add_argument('--only', help='comma-separated names of models')
    parser.add_argument('--fixture', action='store_true', help='only the committed cases')
    parser.add_argument('--shipped', type=Path, help='a folder with a tokenizer.json')
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.fixture:
        shrink()
    cases = Cases(args.out, FIXTURE_TOKENS if args.fixture else TOKENS)
    if args.fixture:
        fixture_cases(cases)
    else:
        all_cases(cases, args.only.split(',') if args.only else MODELS)
    if args.shipped:
        shipped_cases(cases, args.shipped)
    print(f'{len(cases.list)} cases in {args.out}')


if __name__ == '__main__':
    main()

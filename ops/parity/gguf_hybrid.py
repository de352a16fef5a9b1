"""What llama.cpp's converter makes of layers that remember in a state of fixed size."""
import gguf
import numpy as np
import torch

DELTA = {'qwen3_next', 'qwen3_5_text', 'qwen3_5_moe_text'}
# Whose value heads the converter has go round the key heads; else those of one follow each other.
TILED = {'qwen3_5_text', 'qwen3_5_moe_text'}
SCAN = {'granitemoehybrid', 'bamba', 'falcon_h1'}
GATED = {'lfm2', 'lfm2_moe'}
# Whose files number parts of layers.
PARTS = {'nemotron_h'}

ARCHITECTURES = {'qwen3_next': 'qwen3next', 'qwen3_5_text': 'qwen35',
                 'qwen3_5_moe_text': 'qwen35moe', 'granitemoehybrid': 'granitehybrid',
                 'bamba': 'granitehybrid', 'lfm2': 'lfm2', 'lfm2_moe': 'lfm2moe',
                 'falcon_h1': 'falcon-h1',
                 'nemotron_h': 'nemotron_h'}
# What these families call otherwise.
QWEN = {'post_attention_layernorm': 'post_attention_norm'}
LFM2 = {'model.embedding_norm': 'token_embd_norm', 'operator_norm': 'attn_norm',
        'ffn_norm': 'ffn_norm', 'self_attn.out_proj': 'attn_output',
        'self_attn.q_layernorm': 'attn_q_norm', 'self_attn.k_layernorm': 'attn_k_norm',
        'feed_forward.w1': 'ffn_gate', 'feed_forward.w3': 'ffn_up', 'feed_forward.w2': 'ffn_down',
        'feed_forward.gate': 'ffn_gate_inp'}
SCANS = {'pre_ff_layernorm': 'ffn_norm',
         **{f'feed_forward.{which}_proj': f'ffn_{which}' for which in ('gate', 'up', 'down')}}
NAMES = {**{kind: QWEN for kind in DELTA}, **{kind: LFM2 for kind in GATED},
         **{kind: SCANS for kind in SCAN},
         'nemotron_h': {'model.embeddings': 'token_embd', 'model.norm_f': 'output_norm'}}
# Beginnings of what these layers are made of, and of what converters take apart.
MODULES = ('linear_attn.', 'mamba.', 'conv.', 'shared_mlp.', 'feed_forward.expert_bias')


def is_hybrid(config):
    return config.model_type in DELTA | SCAN | GATED


def add_metadata(writer, config):
    """Behind what all families have, of which some is said otherwise."""
    kind = config.model_type
    if kind in DELTA:
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
        full = [i for i, name in enumerate(config.layer_types) if name == 'full_attention']
        writer.add_full_attention_interval(full[0] + 1)
        if kind in TILED:
            writer.add_rope_dimension_sections([11, 11, 10, 0])
        if kind != 'qwen3_5_text':
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
        return
    if kind == 'falcon_h1':  # of whose layers each is attention too
        add_scan_metadata(writer, config)
        return
    attends = [name in ('attention', 'full_attention') for name in config.layer_types]
    writer.add_head_count_kv([config.num_key_value_heads * one for one in attends])
    if kind in GATED:
        writer.add_shortconv_l_cache(config.conv_L_cache)
        if getattr(config, 'block_auto_adjust_ff_dim', False):
            size = int(config.block_ffn_dim_multiplier * int(2 * config.intermediate_size / 3))
            multiple = config.block_multiple_of
            writer.add_feed_forward_length(-(-size // multiple) * multiple)
        if kind == 'lfm2_moe':
            writer.add_leading_dense_block_count(config.num_dense_layers)
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
            writer.add_expert_weights_scale(config.routed_scaling_factor)
        return
    add_scan_metadata(writer, config)
    rotates = kind == 'bamba' or config.position_embedding_type == 'rope'
    writer.add_rope_scaling_finetuned(rotates)
    if kind == 'bamba':
        return
    if not config.num_local_experts:  # what would be shared is all there is
        writer.add_feed_forward_length(config.shared_intermediate_size)
    else:
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)


def add_scan_metadata(writer, config):
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_group_count(config.mamba_n_groups)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)
    writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)


def has_experts(config):
    return config.model_type in PARTS and 'moe' in config.layers_block_type


def add_parts_metadata(writer, config):
    """All of a model whose files number parts of layers."""
    types = config.layers_block_type
    kind, width = 'mlp', config.intermediate_size
    if has_experts(config):
        kind, width = 'moe', config.moe_intermediate_size
        writer.add_expert_count(config.n_routed_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(width)
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
    writer.add_block_count(len(types))
    writer.add_context_length(2**20)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length([width * (name == kind) for name in types])
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(
        [config.num_key_value_heads * (name == 'full_attention') for name in types])
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_scaling_finetuned(False)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_vocab_size(config.vocab_size)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_state_size(config.ssm_state_size)
    writer.add_ssm_group_count(config.n_groups)
    writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
    writer.add_ssm_time_step_rank(config.mamba_num_heads)


def is_piece(key, config):
    """Whether this is written here."""
    if config.model_type in PARTS:
        return key.startswith('model.layers.')
    return is_hybrid(config) and key.split('.', 3)[-1].startswith(MODULES)


def add_tensor(writer, key, tensor, kind, config, whole):
    """Adds what the converter makes of one tensor; returns what a reader of the file gets.

    What goes into Qwen3-Next's layers is in one tensor where it is `whole`, as it was at first.
    """
    _, _, layer, name = key.split('.', 3)
    data = tensor.float().numpy()
    if whole and name == 'linear_attn.in_proj_qkvz.weight':
        parts, again = [('ssm_in.weight', data)], lambda made: made[0]
    else:
        parts, again = pieces(name, data, config)
    made = [put(writer, f'blk.{layer}.{part}', np.ascontiguousarray(values), kind)
            for part, values in parts]
    return torch.from_numpy(np.ascontiguousarray(again(made).astype(np.float32)))


def put(writer, name, data, kind):
    """Adds one tensor; returns what a reader gets."""
    vectors = ('ssm_conv1d.weight', 'shortconv.conv.weight', 'ssm_norm.weight', 'ssm_a', 'ssm_d',
               'ffn_gate_inp.weight')
    exact = data.ndim < 2 or name.endswith(vectors)
    kind = gguf.GGMLQuantizationType['F32' if exact else kind]
    if data.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = gguf.GGMLQuantizationType.F32
    quantised = gguf.quants.quantize(data, kind)
    writer.add_tensor(name, quantised, raw_dtype=kind)
    return gguf.quants.dequantize(quantised, kind).reshape(data.shape)


def pieces(name, data, config):
    """Names and data of what is written, and what makes the tensor of them again."""
    module, what = name.split('.', 1)
    if config.model_type in PARTS:
        return part_pieces(name, data, config)
    if module == 'linear_attn':
        return delta_pieces(what, data, config)
    if module == 'mamba':
        return scan_pieces(what, data, config)
    if module == 'conv':
        parts = [(f'shortconv.{what}', data.squeeze(1) if what == 'conv.weight' else data)]
        return parts, lambda made: made[0].reshape(data.shape)
    if what == 'expert_bias':
        return [('exp_probs_b.bias', data)], lambda made: made[0]
    shared = '_shexp' if config.num_local_experts else ''
    if what == 'output_linear.weight':
        return [(f'ffn_down{shared}.weight', data)], lambda made: made[0]
    half = data.shape[0] // 2
    parts = [(f'ffn_gate{shared}.weight', data[:half]), (f'ffn_up{shared}.weight', data[half:])]
    return parts, np.concatenate


def part_pieces(name, data, config):
    what = name.removeprefix('mixer.')
    heads = {'q_proj.weight': config.num_attention_heads,
             'k_proj.weight': config.num_key_value_heads}.get(what)
    if heads:  # whose halves become neighbours, though nothing rotates
        order = np.arange(data.shape[0]).reshape(heads, 2, -1).swapaxes(1, 2).ravel()
        parts = [(f'attn_{what[0]}.weight', data[order])]
        return parts, lambda made: made[0][np.argsort(order)]
    names = {'norm.weight': 'attn_norm.weight', 'gate.weight': 'ffn_gate_inp.weight',
             'v_proj.weight': 'attn_v.weight', 'o_proj.weight': 'attn_output.weight',
             'gate.e_score_correction_bias': 'exp_probs_b.bias'}
    for which in ('up', 'down'):
        names[f'experts.{which}_proj'] = f'ffn_{which}_exps.weight'
        for suffix in ('weight', 'bias'):
            names[f'{which}_proj.{suffix}'] = f'ffn_{which}.{suffix}'
            names[f'shared_experts.{which}_proj.{suffix}'] = f'ffn_{which}_shexp.{suffix}'
    if what in names and name != 'mixer.norm.weight':
        return [(names[what], data)], lambda made: made[0]
    return scan_pieces(what, data, config)


def scan_pieces(what, data, config):
    if what == 'A_log':
        return [('ssm_a', -np.exp(data)[:, None])], lambda made: np.log(-made[0][:, 0])
    names = {'D': 'ssm_d', 'dt_bias': 'ssm_dt.bias', 'conv1d.weight': 'ssm_conv1d.weight',
             'conv1d.bias': 'ssm_conv1d.bias', 'norm.weight': 'ssm_norm.weight',
             'in_proj.weight': 'ssm_in.weight', 'in_proj.bias': 'ssm_in.bias',
             'out_proj.weight': 'ssm_out.weight', 'out_proj.bias': 'ssm_out.bias'}
    shapes = {'D': (-1, 1), 'conv1d.weight': (-1, data.shape[-1]),
              'norm.weight': (getattr(config, 'mamba_n_groups', None) or config.n_groups, -1)}
    parts = [(names[what], data.reshape(shapes.get(what, data.shape)))]
    return parts, lambda made: made[0].reshape(data.shape)


def delta_pieces(what, data, config):
    key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
    key_dim, value_dim = config.linear_key_head_dim, config.linear_value_head_dim
    keys, each = key_heads * key_dim, value_heads // key_heads
    if what == 'in_proj_qkvz.weight':  # of each key head q, k, and its v and z
        rows = np.arange(data.shape[0]).reshape(key_heads, -1)
        cuts = np.cumsum([key_dim, key_dim, each * value_dim])
        order = np.concatenate([part.ravel() for part in np.split(rows, cuts, axis=1)])
        parts = np.split(data[order], [2 * keys + value_heads * value_dim])
        named = list(zip(('attn_qkv.weight', 'attn_gate.weight'), parts))
        return named, lambda made: np.concatenate(made)[np.argsort(order)]
    if what == 'A_log':
        data = -np.exp(data)
    names = {'in_proj_qkv.weight': ('attn_qkv.weight', 2 * keys, value_dim),
             'in_proj_z.weight': ('attn_gate.weight', 0, value_dim),
             'in_proj_b.weight': ('ssm_beta.weight', 0, 1),
             'in_proj_a.weight': ('ssm_alpha.weight', 0, 1),
             'in_proj_ba.weight': ('ssm_ba.weight', 0, None), 'A_log': ('ssm_a', 0, 1),
             'dt_bias': ('ssm_dt.bias', 0, 1),
             'conv1d.weight': ('ssm_conv1d.weight', 2 * keys, value_dim),
             'norm.weight': ('ssm_norm.weight', 0, None),
             'out_proj.weight': ('ssm_out.weight', 0, value_dim)}
    name, first, head_dim = names[what]
    shape, axis = data.shape, 1 if what == 'out_proj.weight' else 0
    data = data.squeeze(1) if what == 'conv1d.weight' else data
    order = np.arange(data.shape[axis])
    if config.model_type in TILED and head_dim:
        heads = order[first:].reshape(key_heads, each, head_dim)
        order = np.concatenate((order[:first], heads.swapaxes(0, 1).ravel()))

    def again(made):
        data = np.take(made[0], np.argsort(order), axis).reshape(shape)
        return np.log(-data) if what == 'A_log' else data

    return [(name, np.take(data, order, axis))], again

"""What a GGUF file has of models whose logits fall with distance, as llama.cpp's converter writes
it."""
ARCHITECTURES = {'bloom': 'bloom', 'mpt': 'mpt'}
NAMES = {
    'transformer.word_embeddings_layernorm': 'token_embd_norm', 'transformer.norm_f': 'output_norm',
    'norm_1': 'attn_norm', 'norm_2': 'ffn_norm', 'attn.Wqkv': 'attn_qkv',
    'attn.out_proj': 'attn_output', 'ffn.up_proj': 'ffn_up', 'ffn.down_proj': 'ffn_down',
}


def add_metadata(writer, config):
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(512)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(4 * config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    if config.model_type == 'mpt':
        writer.add_max_alibi_bias(float(config.attn_config.alibi_bias_max))
        if config.attn_config.clip_qkv is not None:
            writer.add_clamp_kqv(config.attn_config.clip_qkv)
    else:
        writer.add_head_count_kv(config.num_attention_heads)

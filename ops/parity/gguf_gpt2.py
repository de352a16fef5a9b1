"""What a GGUF file has of GPT-2 and StarCoder 1, as llama.cpp's converter writes it."""
ARCHITECTURES = {'gpt2': 'gpt2', 'gpt_bigcode': 'starcoder'}
NAMES = {
    'transformer.wte': 'token_embd', 'transformer.wpe': 'position_embd',
    'transformer.ln_f': 'output_norm', 'ln_1': 'attn_norm', 'ln_2': 'ffn_norm',
    'attn.c_attn': 'attn_qkv', 'attn.c_proj': 'attn_output',
}
# Of GPT-2's linear maps, which have their columns one after the other.
MAPS = ('c_attn.weight', 'c_proj.weight', 'c_fc.weight')


def add_metadata(writer, config):
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.n_inner or 4 * config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if config.model_type == 'gpt_bigcode':
        writer.add_head_count_kv(1)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


def is_turned(key, config):
    return config.model_type == 'gpt2' and key.endswith(MAPS)

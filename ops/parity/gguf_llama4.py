"""What a GGUF file says of Llama 4 besides, as llama.cpp's converter writes it."""


def is_llama4(config):
    return config.model_type == 'llama4_text'


def add_metadata(writer, config):
    writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
    writer.add_expert_feed_forward_length(config.intermediate_size)


def is_piece(key, config):
    return is_llama4(config) and '.feed_forward.experts.' in key

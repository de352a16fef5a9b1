"""Models that read more than text, around one of another family that reads text."""
import json

from safetensors.torch import load_file, save_file

SMALL = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
CLIP = dict(model_type='clip_vision_model', image_size=8, patch_size=4, **SMALL)
SIGLIP = dict(CLIP, model_type='siglip_vision_model')
SEES = dict(depth=1, num_heads=2, hidden_size=16, intermediate_size=16, out_hidden_size=64,
            patch_size=4)
HEARS = dict(encoder_layers=1, d_model=16, encoder_attention_heads=2, encoder_ffn_dim=16)
IDS = dict(image_token_id=150, video_token_id=151)
HALF = dict(rope_type='default', rope_theta=1e4, partial_rotary_factor=0.5,
            mrope_section=[1, 1, 2])
EXPERTS = dict(head_dim=16, num_experts=6, moe_intermediate_size=48, num_experts_per_tok=3)


def models(of, rope):
    """Of their text models, what differs from TINY, and the rest. `of` are text models alone, and
    `rope` is that of models whose heads turn by three positions."""
    apart = dict(mrope_interleaved=True, **rope)
    seeing = dict(SEES, deepstack_visual_indexes=[0])
    llama, qwen2 = dict(model_type='llama'), dict(model_type='qwen2')
    idefics = dict(vision_config=dict(image_size=8, patch_size=4, **SMALL), image_token_id=150,
                   scale_factor=1)
    return {
        'llava-inside': ('LlavaConfig', llama, dict(vision_config=CLIP, image_token_index=150)),
        'llava-next-inside': ('LlavaNextConfig', dict(model_type='mistral', sliding_window=None),
                              dict(vision_config=CLIP, image_token_index=150)),
        # transformers leaves out what Granite divides logits by.
        'llava-next-granite-inside': (
            'LlavaNextConfig', dict(of['granite'][1], model_type='granite', logits_scaling=1.0),
            dict(vision_config=SIGLIP, image_token_index=150)),
        'llava-onevision-inside': ('LlavaOnevisionConfig', qwen2, dict(
            vision_config=SIGLIP, image_token_index=150, video_token_index=151,
            tie_word_embeddings=True)),
        'smolvlm-inside': ('SmolVLMConfig', llama, idefics),
        'idefics3-inside': ('Idefics3Config', llama, idefics),
        'internvl-inside': ('InternVLConfig', qwen2, dict(
            vision_config=dict(image_size=[8, 8], patch_size=[4, 4], **SMALL), image_token_id=150,
            tie_word_embeddings=False)),
        # transformers leaves out what Cohere multiplies logits by.
        'cohere2-vision-inside': ('Cohere2VisionConfig', dict(
            model_type='cohere2', logit_scale=1.0, sliding_window=9, num_hidden_layers=4),
            dict(vision_config=SIGLIP, image_token_id=150)),
        'exaone45-inside': ('Exaone4_5_Config', dict(
            model_type='exaone4', sliding_window=9, num_hidden_layers=4, head_dim=16),
            dict(vision_config=SEES, **IDS)),
        'lfm2-vl-inside': ('Lfm2VlConfig', dict(
            model_type='lfm2', layer_types=['conv', 'full_attention', 'conv']), dict(
            vision_config=dict(num_patches=4, patch_size=4, **SMALL), image_token_id=150)),
        'kimi-k25-inside': ('Kimi_K25Config', dict(
            of['deepseek-v3'][1], model_type='deepseek_v3'), dict(
            vision_config=dict(patch_size=4, **SMALL), tie_word_embeddings=False)),
        'glm4v-inside': ('Glm4vConfig', dict(rope_parameters=HALF), dict(
            vision_config=dict(image_size=8, **SEES), **IDS)),
        'glm4v-moe-inside': ('Glm4vMoeConfig', dict(of['glm4-moe'][1], rope_parameters=HALF), dict(
            vision_config=dict(image_size=8, **SEES), **IDS)),
        'qwen3-vl-moe-inside': ('Qwen3VLMoeConfig', dict(
            EXPERTS, tie_word_embeddings=False, rope_parameters=apart), dict(
            vision_config=seeing, vision_start_token_id=152, vision_end_token_id=153, **IDS)),
        'qwen25-omni-inside': ('Qwen2_5OmniThinkerConfig', dict(
            rope_parameters=rope, tie_word_embeddings=False), dict(
            vision_config=dict(SEES, fullatt_block_indexes=[0]),
            audio_config=dict(HEARS, output_dim=64), image_token_index=150,
            video_token_index=151, audio_token_index=152)),
        'qwen3-omni-inside': ('Qwen3OmniMoeThinkerConfig', dict(EXPERTS, rope_parameters=apart),
                              dict(vision_config=seeing, audio_token_id=152, audio_config=dict(
                                  HEARS, output_dim=64, downsample_hidden_size=8), **IDS)),
        'qwen2-audio-inside': ('Qwen2AudioConfig', qwen2, dict(
            audio_config=dict(HEARS, model_type='qwen2_audio_encoder'), audio_token_index=152)),
        'voxtral-inside': ('VoxtralConfig', dict(llama, head_dim=16), dict(
            audio_config=dict(SMALL, model_type='voxtral_encoder'), audio_token_id=152)),
        'ovis2-inside': ('Ovis2Config', qwen2, dict(
            vision_config=dict(image_size=8, patch_size=4, num_visual_indicator_tokens=2,
                               vocab_size=20, **SMALL),
            image_token_id=150, visual_indicator_token_ids=[151, 152], vocab_size=160,
            hidden_size=64, tie_word_embeddings=False)),
        'janus-inside': ('JanusConfig', llama, dict(
            image_token_id=150, tie_word_embeddings=False,
            vision_config=dict(image_size=8, patch_size=4, projection_dim=64, **SMALL))),
    }


def add(cases, name, make):
    """The folder of a model, as its publishers have it where transformers writes another one."""
    model = make(name)
    model.save_pretrained(cases.out / name)
    file = cases.out / name / 'model.safetensors'
    if name == 'kimi-k25-inside':  # transformers calls all layers blocks, as those that see are
        text = model.model.language_model.state_dict(prefix='language_model.model.')
        tensors = {**text, 'language_model.lm_head.weight': model.lm_head.weight.data}
        rewrite(file, {key: tensor.contiguous() for key, tensor in tensors.items()})
    if name == 'qwen3-vl-moe-inside':
        rewrite(file, {key: tensor.swapaxes(1, 2).contiguous() if '.experts.' in key else tensor
                       for key, tensor in load_file(file).items()})
    if name == 'qwen25-omni-inside':  # of which another part speaks
        rewrite(file, {f'thinker.{key}': tensor for key, tensor in load_file(file).items()})
        config = cases.out / name / 'config.json'
        thinker = json.loads(config.read_text())
        whole = dict(architectures=['Qwen2_5OmniModel'], model_type='qwen2_5_omni')
        config.write_text(json.dumps(dict(whole, thinker_config=thinker)))
    cases.add(name, model)


def rewrite(file, tensors):
    save_file(tensors, file, metadata={'format': 'pt'})

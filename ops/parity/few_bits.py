"""Linear maps as integers of a few bits in words of 32: GPTQ, AWQ and compressed-tensors; and as
floats of four bits: NVFP4 and MXFP4.

Each function gives tensors by the ends of their names, and the matrix that they say.
"""
import torch

# The order of eight outputs in a word of AWQ, from the lowest bits up.
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def quantised(groups, bits, symmetric):
    """Integers, zeros and scales of `[outputs, groups, inputs of one]`."""
    most = 2 ** bits - 1
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    if symmetric:
        zeros = torch.full_like(low, 2 ** (bits - 1))
        scales = torch.maximum(high, -low) / (2 ** (bits - 1) - 0.5)
    else:
        scales = (high.clamp(min=0) - low.clamp(max=0)) / most
        zeros = torch.round(-low.clamp(max=0) / scales)
    scales = scales.half()
    integers = torch.clamp(torch.round(groups / scales.float()) + zeros, 0, most)
    said = (integers - zeros) * scales.float()
    return integers.long(), zeros[..., 0].long(), scales[..., 0], said


def words(integers, bits):
    """Integers of each row one after the other, in words of 32 bits: [rows, n] -> [rows, n / k]."""
    rows, count = integers.shape
    each = integers.unsqueeze(-1) >> torch.arange(bits) & 1
    stream = each.reshape(rows, count * bits)
    stream = torch.nn.functional.pad(stream, (0, -count * bits % 32)).reshape(rows, -1, 32)
    made = (stream << torch.arange(32)).sum(-1)
    return torch.where(made >= 2 ** 31, made - 2 ** 32, made).to(torch.int32)


def gptq(weight, bits, group, symmetric=True, in_order=True, zeros_from_one=True):
    """As AutoGPTQ has it; `in_order`: inputs of a group stand together."""
    inputs = weight.shape[1]
    places = torch.arange(inputs) if in_order else torch.randperm(inputs)
    groups = weight[:, places].reshape(len(weight), -1, group)
    integers, zeros, scales, said = quantised(groups, bits, symmetric)
    group_of = torch.empty(inputs, dtype=torch.int32)
    group_of[places] = (torch.arange(inputs) // group).to(torch.int32)
    there = torch.argsort(places)
    integers, said = (x.reshape(weight.shape)[:, there] for x in (integers, said))
    stored = (zeros - int(zeros_from_one)) & (2 ** bits - 1)
    return {
        'qweight': words(integers, bits).T.contiguous(),
        'qzeros': words(stored.T, bits),
        'scales': scales.T.contiguous(),
        'g_idx': group_of,
    }, said


def awq(weight, group):
    """As AutoAWQ has it, of four bits."""
    integers, zeros, scales, said = quantised(weight.reshape(len(weight), -1, group), 4, False)

    def packed(rows):  # [rows, outputs]
        eights = rows.reshape(len(rows), -1, 8)[..., AWQ_ORDER]
        return words(eights.reshape(rows.shape), 4)

    return {
        'qweight': packed(integers.reshape(weight.shape).T),
        'qzeros': packed(zeros.T),
        'scales': scales.T.contiguous(),
    }, said.reshape(weight.shape)


def compressed(weight, bits, group, symmetric=True):
    """As compressed-tensors packs it."""
    groups = weight.reshape(len(weight), -1, group)
    integers, zeros, scales, said = quantised(groups, bits, symmetric)
    tensors = {
        'weight_packed': words(integers.reshape(weight.shape), bits),
        'weight_scale': scales,
        'weight_shape': torch.tensor(weight.shape),
    }
    if not symmetric:
        tensors['weight_zero_point'] = words(zeros.T, bits).T.contiguous()
    return tensors, said.reshape(weight.shape)


def eight(weight):
    """Integers of eight bits beside a scale for each row."""
    scales = weight.abs().amax(-1, keepdim=True) / 127
    integers = torch.round(weight / scales)
    return {'weight': integers.to(torch.int8), 'weight_scale': scales}, integers * scales


def halves(weight, scales, block):
    """Pairs of E2M1 in bytes beside `[rows, blocks]` of scales, and what they say."""
    spread = scales.repeat_interleave(block, 1)
    nearest = (weight / spread).unsqueeze(-1).sub(E2M1).abs().argmin(-1)
    pairs = nearest[:, ::2] | nearest[:, 1::2] << 4
    return pairs.to(torch.uint8), E2M1[nearest] * spread


def nvfp4(weight, is_modelopt):
    """As NVIDIA's ModelOpt or compressed-tensors has it: scales of sixteen, and one of all."""
    factor = 448 * 6 / weight.abs().max()
    most = weight.reshape(len(weight), -1, 16).abs().amax(-1)
    scales = (most / 6 * factor).to(torch.float8_e4m3fn)
    pairs, said = halves(weight, scales.float() / factor, 16)
    if is_modelopt:
        return {'weight': pairs, 'weight_scale': scales, 'weight_scale_2': 1 / factor,
                'input_scale': torch.tensor(1.0)}, said
    return {'weight_packed': pairs, 'weight_scale': scales,
            'weight_global_scale': factor.reshape(1)}, said


def mxfp4(weight):
    """As compressed-tensors has it: powers of two for each 32."""
    most = weight.reshape(len(weight), -1, 32).abs().amax(-1)
    power = torch.floor(torch.log2(most)) - 2
    pairs, said = halves(weight, 2.0 ** power, 32)
    return {'weight_packed': pairs, 'weight_scale': (power + 127).to(torch.uint8)}, said


def ternary(weight):
    """What BitNet rounds to: -1, 0 and 1, and what multiplies them."""
    scale = weight.abs().mean().clamp(min=1e-5)
    return (weight / scale).round().clamp(-1, 1), scale


def bitnet(weight, divides):
    """As BitNet has it packed: four rows in one, each a quarter of all apart."""
    ternaries, scale = ternary(weight)
    stored = (1 / scale if divides else scale).reshape(1).bfloat16()
    quarters = (ternaries + 1).to(torch.uint8).chunk(4)
    packed = sum(quarter << 2 * idx for idx, quarter in enumerate(quarters))
    scale = 1 / stored.float() if divides else stored.float()
    return {'weight': packed, 'weight_scale': stored}, ternaries * scale


def trained(weight):
    """As BitNet is trained, to be rounded by whoever reads it."""
    weight = weight.bfloat16()
    ternaries, scale = ternary(weight.float())
    return {'weight': weight}, ternaries * scale


def config_groups(kind='int', **weights):
    """What compressed-tensors says of them in config.json."""
    return {'group_0': {'weights': dict(type=kind, **weights), 'targets': ['Linear']}}


# What files are made of: the model, what config.json says, and what packs a matrix.
FORMATS = {
    'gptq': ('qwen3', dict(quant_method='gptq', bits=4, group_size=16, sym=True, desc_act=False),
             lambda weight: gptq(weight, 4, 16)),
    'gptq3': ('llama-gqa', dict(quant_method='gptq', bits=3, group_size=16, sym=False,
                                desc_act=True, checkpoint_format='gptq_v2'),
              lambda weight: gptq(weight, 3, 16, False, in_order=False, zeros_from_one=False)),
    'gptq8': ('qwen2', dict(quant_method='gptq', bits=8, group_size=-1, sym=False, desc_act=True),
              lambda weight: gptq(weight, 8, weight.shape[1], False)),
    'awq': ('qwen3-moe', dict(quant_method='awq', bits=4, group_size=16, version='gemm',
                              zero_point=True), lambda weight: awq(weight, 16)),
    'w4a16': ('mistral', dict(
        quant_method='compressed-tensors', format='pack-quantized', config_groups=config_groups(
            num_bits=4, symmetric=True, strategy='group', group_size=16)),
        lambda weight: compressed(weight, 4, 16)),
    'w4a16-asym': ('gemma', dict(
        quant_method='compressed-tensors', format='pack-quantized', config_groups=config_groups(
            num_bits=4, symmetric=False, strategy='channel')),
        lambda weight: compressed(weight, 4, weight.shape[1], False)),
    'w8a8': ('llama-gqa', dict(
        quant_method='compressed-tensors', format='int-quantized', config_groups=config_groups(
            num_bits=8, symmetric=True, strategy='channel')), eight),
    'nvfp4': ('qwen3', dict(
        quant_method='compressed-tensors', format='nvfp4-pack-quantized',
        config_groups=config_groups('float', num_bits=4, symmetric=True, strategy='tensor_group',
                                    group_size=16)), lambda weight: nvfp4(weight, False)),
    'modelopt': ('llama31', dict(quant_method='modelopt', quant_algo='NVFP4'),
                 lambda weight: nvfp4(weight, True)),
    'mxfp4': ('qwen2', dict(
        quant_method='compressed-tensors', format='mxfp4-pack-quantized',
        config_groups=config_groups('float', num_bits=4, symmetric=True, strategy='group',
                                    group_size=32)), mxfp4),
    # transformers rounds rows to eight bits besides; what is expected does not.
    'packed': ('bitnet', dict(quant_method='bitnet', linear_class='autobitlinear',
                              quantization_mode='offline'), lambda weight: bitnet(weight, False)),
    'trained': ('bitnet', dict(quant_method='bitnet', linear_class='autobitlinear',
                               quantization_mode='online'), trained),
    'bitlinear': ('llama-gqa', dict(quant_method='bitnet'), lambda weight: bitnet(weight, True)),
}

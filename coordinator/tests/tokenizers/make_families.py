"""Makes families.gguf and families.json: a byte-level vocabulary whose merges cross words, digits
and punctuation, and what llama.cpp makes of some texts with it, for every name of a pretokeniser
(the Hugging Face library for tekken and gpt-4o, which llama.cpp knows for ASCII's cases only, and
for those which it cuts by code of its own or merges otherwise than who made them).

    pip install gguf tokenizers llama-cpp-python && python3 make_families.py ../../../ops/demo/walden.txt

Where words are cut decides which merges can be made, so other cuts give other tokens.
"""
import json
import random
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
from tokenizers import (
    AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers)

NAMES = [
    'default', 'gpt-2', 'phi-2', 'olmo', 'trillion', 'mellum', 'a.x-4.0', 'smollm', 'starcoder',
    'refact', 'codeshell', 'command-r', 'minerva-7b', 'mellum2', 'llama-bpe', 'llama3', 'llama-v3',
    'falcon3', 'pixtral', 'midm-2.0', 'smaug-bpe', 'dbrx', 'qwen2', 'deepseek-r1-qwen', 'megrez',
    'kormo', 'tekken', 'seed-coder', 'minicpm5', 'viking', 'deepseek-coder', 'deepseek-llm',
    'deepseek-v3', 'gpt-4o', 'glm4', 'chatglm-bpe', 'granite-docling', 'kimi-k2', 'youtu',
    'tiny_aya', 'bailingmoe', 'bailingmoe2', 'hunyuan',
]
TEKKEN = (
    r'[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|'
    r'[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|'
    r'\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)
# o200k_base, as tiktoken has it.
GPT4O = '|'.join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r'\p{N}{1,3}', r' ?[^\s\p{L}\p{N}]+[\r\n/]*', r'\s*[\r\n]+', r'\s+(?!\S)', r'\s+',
])
KIMI_K2 = '|'.join([
    r'[\p{Han}]+',
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r'\p{N}{1,3}', r' ?[^\s\p{L}\p{N}]+[\r\n]*', r'\s*[\r\n]+', r'\s+(?!\S)', r'\s+',
])
YOUTU = r'[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+'
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
    r'\s*[\r\n]|\s+(?!\S)|\s+'
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)
# What cuts words, one after the other, and whether a word that is a token is taken whole.
BY_HUGGING_FACE = {
    'tekken': ([TEKKEN], True), 'gpt-4o': ([GPT4O], False), 'kimi-k2': ([KIMI_K2], True),
    'youtu': ([YOUTU, GPT4O.replace('{1,3}', '')], True),
    'tiny_aya': ([r'\d{1,3}(?=(?:\d{3})*\b)', GPT4O], False), 'bailingmoe': ([BAILING], False),
    'bailingmoe2': ([BAILING], False), 'hunyuan': ([QWEN2], True, True),
}
# In DeepSeek's files `ü` is an added token: text, and not the byte 0xFC, which no text has.
ADDED = ['<|end|>', 'ü']
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
POOLS = [
    'abcdeXYZ ', 'abXY', ';\n,', '0123456789.,-+ ', '12    ', " 's 't 're 'LL 'D ",
    'привет мир 12 ', '日本語の 漢字 3', '한국어 글자', '()[]{}=>;:#//\\ _~^|$+<', ' \t\n\r\n',
    'ÀÖüñø é', '！：，。「 ', '١٢٣ مرحبا', '  \n\n ',
]


def texts(book, draw, count):
    """Half of them from a book, half drawn from alphabets."""
    for idx in range(count):
        if idx % 2:
            start = draw.randrange(len(book) - 80)
            yield book[start:start + 80]
        else:
            pools = draw.sample(POOLS, draw.randrange(1, 4))
            yield ''.join(draw.choice(draw.choice(pools)) for _ in range(draw.randrange(8, 40)))


def train(words):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(words, trainer)
    return tokenizer


def write(path, tokenizer, pre):
    vocab = tokenizer.get_vocab()
    pieces = [piece for piece in sorted(vocab, key=vocab.get) if piece not in ADDED]
    merges = json.loads(tokenizer.to_str())['model']['merges']
    writer = gguf.GGUFWriter(path, 'llama')
    writer.add_tokenizer_model('gpt2')
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(pieces + ADDED)
    writer.add_token_types([NORMAL] * len(pieces) + [CONTROL, USER_DEFINED])
    writer.add_token_merges([' '.join(merge) for merge in merges])
    writer.add_add_bos_token(False)
    writer.add_eos_token_id(len(pieces))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def by_llama_cpp(folder, tokenizer, name):
    path = str(Path(folder) / f'{name}.gguf')
    write(path, tokenizer, name)
    model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    return lambda text: model.tokenize(text.encode(), add_bos=False, special=True)


def by_hugging_face(path, expressions, ignore_merges, composes=False):
    """The file's vocabulary with words cut by these expressions."""
    fields = gguf.GGUFReader(path).fields
    tokens, merges = (fields[f'tokenizer.ggml.{name}'].contents() for name in ('tokens', 'merges'))
    vocab = {token: idx for idx, token in enumerate(tokens)}
    pairs = [tuple(merge.split(' ')) for merge in merges]
    model = models.BPE(vocab, pairs, ignore_merges=ignore_merges)
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in ADDED])
    splits = [pre_tokenizers.Split(Regex(one), 'isolated') for one in expressions]
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, plain])
    if composes:
        tokenizer.normalizer = normalizers.NFC()
    return lambda text: tokenizer.encode(text).ids


def main():
    book = open(sys.argv[1], encoding='utf-8').read()
    draw = random.Random(5)
    tokenizer = train(texts(book, draw, 12_000))
    write('families.gguf', tokenizer, 'default')
    chosen = [*texts(book, draw, 30), "I'll see: THEY'RE 12345 things, isn't it?",
              'ünïcode <|end|> aXbYXaab;\n,;\n',
              '000 1234567 ab12', 'a   12 3    4567']
    ids = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            cut = BY_HUGGING_FACE.get(name)
            encode = (by_hugging_face('families.gguf', *cut) if cut else
                      by_llama_cpp(folder, tokenizer, name))
            ids[name] = [encode(text) for text in chosen]
    groups = {}
    for name, rows in ids.items():
        groups.setdefault(json.dumps(rows), []).append(name)
    families = [{'names': names, 'ids': json.loads(rows)} for rows, names in groups.items()]
    with open('families.json', 'w', encoding='utf-8') as out:
        rows = ',\n'.join(json.dumps(family) for family in families)
        texts_line = json.dumps(chosen, ensure_ascii=False)
        out.write(f'{{"texts": {texts_line},\n"families": [\n{rows}\n]}}\n')
    print(len(families), 'families:', [family['names'] for family in families])


main()

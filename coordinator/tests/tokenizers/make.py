"""Makes the fixtures of tests/tokenizers.rs: small tokenisers in GGUF form, and what the
Hugging Face tokeniser of the same vocabulary makes of some texts.

    pip install gguf tokenizers && python3 make.py ../../../ops/demo/walden.txt
"""

import json
import sys

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

TEXTS = [
    "Hello, world!",
    "I'll see: THEY'RE 12345 things, isn't it?",
    "  two  spaces, a\ttab\nand\r\n\n\nlines   ",
    "Ünïcödé – naïve café, 東京, 😀👩‍👩‍👧 and \u0939\u093f",
    "a<|im_end|>b </s> c<s>",
    "x = {'k': [1.5e-3, 007]}; // done\n\n\treturn x;",
    "",
    " ",
]
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")


def byte_level(text, regex, nfc):
    tok = Tokenizer(models.BPE())
    if nfc:
        tok.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(regex), "isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    tok.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tok.train_from_iterator([text], trainer)
    return tok


def sentence_piece(text):
    special = ["<unk>", "<s>", "</s>"]
    tok = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    tok.train_from_iterator([text], trainer)
    model = json.loads(tok.to_str())["model"]
    # Llama's layout: special tokens, bytes, pieces; the score of a piece is its merge's rank.
    old = sorted(model["vocab"], key=model["vocab"].get)[len(special):]
    pieces = special + [f"<0x{byte:02X}>" for byte in range(256)] + old
    vocab = {piece: idx for idx, piece in enumerate(pieces)}
    merges = [tuple(merge) for merge in model["merges"]]
    tok = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tok.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tok.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])
    tok.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    tok.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return tok


def write(name, tok, model, pre, bos, eos):
    vocab = tok.get_vocab()
    pieces = sorted(vocab, key=vocab.get)
    merges = [tuple(merge) for merge in json.loads(tok.to_str())["model"]["merges"]]
    special = {added.content for added in tok.get_added_tokens_decoder().values()}
    kinds = [
        UNKNOWN if piece == "<unk>" else CONTROL if piece in special
        else BYTE if model == "llama" and piece.startswith("<0x") else NORMAL
        for piece in pieces
    ]
    writer = gguf.GGUFWriter(f"{name}.gguf", "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(pieces)
    writer.add_token_types(kinds)
    if model == "gpt2":
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges([" ".join(merge) for merge in merges])
        writer.add_add_bos_token(False)
    else:
        rank = {left + right: idx for idx, (left, right) in reversed(list(enumerate(merges)))}
        writer.add_token_scores([float(-rank.get(piece, 10_000)) for piece in pieces])
        writer.add_add_bos_token(True)
        writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    encoded = [tok.encode(text) for text in TEXTS]
    rows = [
        {"text": text, "ids": one.ids, "decoded": tok.decode(one.ids)}
        for text, one in zip(TEXTS, encoded)
    ]
    with open(f"{name}.json", "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    text = open(sys.argv[1]).read()[:200_000]
    write("qwen2", byte_level(text, QWEN2, nfc=True), "gpt2", "qwen2", None, 0)
    llama3 = byte_level(text, LLAMA3, nfc=False)
    write("llama3", llama3, "gpt2", "llama-bpe", None, 0)
    write("llama2", sentence_piece(text), "llama", None, 1, 2)

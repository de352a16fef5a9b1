"""Makes the fixture `sentence` of tests/tokenizers.rs: a folder with a SentencePiece model and no
tokenizer.json, and what is made of some texts: by SentencePiece itself between special tokens, as
older tokenisers do, and by transformers, where only the first word gets a space.

    pip install gguf protobuf sentencepiece transformers && python3 make_sentence.py ../../../ops/demo/walden.txt
"""

import json
import re
import sys
from pathlib import Path

import sentencepiece
import transformers

from make import TEXTS

OUT = Path("sentence")
# Pieces that were left free, and what is said to stand there.
NAMED = {3: "<|im_start|>", 4: "<|im_end|>"}
SPECIAL = {0: "<unk>", 1: "<s>", 2: "</s>", **NAMED}
BY_NAME = {name: id for id, name in SPECIAL.items()}

OUT.mkdir(exist_ok=True)
(OUT / "text.txt").write_text(open(sys.argv[1]).read()[:200_000])
sentencepiece.SentencePieceTrainer.train(
    input=str(OUT / "text.txt"), model_prefix=str(OUT / "tokenizer"), model_type="bpe",
    vocab_size=700, byte_fallback=True, character_coverage=0.9995, normalization_rule_name="identity",
    remove_extra_whitespaces=False, split_digits=True, max_sentence_length=100_000,
    user_defined_symbols=["[UNUSED_1]", "[UNUSED_2]"], minloglevel=2)
for name in ("text.txt", "tokenizer.vocab"):
    (OUT / name).unlink()
model = sentencepiece.SentencePieceProcessor(model_file=str(OUT / "tokenizer.model"))


def encode(text):
    """What is between special tokens goes to SentencePiece."""
    ids, names = [1], "|".join(map(re.escape, BY_NAME))
    for part in filter(None, re.split(f"({names})", text)):
        ids += [BY_NAME[part]] if part in BY_NAME else model.encode(part)
    return ids


def encode_new(text):
    """transformers 5 gives new ids to what is said to stand where another piece is."""
    ids = new.encode(text)
    return [BY_NAME.get(name, id) for id, name in zip(ids, new.convert_ids_to_tokens(ids))]


config = {
    "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>",
    "unk_token": "<unk>", "add_bos_token": True, "add_eos_token": False,
    "added_tokens_decoder": {
        str(id): dict(content=name, special=True, normalized=False, lstrip=False, rstrip=False,
                      single_word=False)
        for id, name in SPECIAL.items()},
}
(OUT / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
(OUT / "config.json").write_text(json.dumps({
    "model_type": "llama", "vocab_size": model.vocab_size(), "max_position_embeddings": 4096,
}) + "\n")
texts = TEXTS + ["<|im_start|>user\nHi there<|im_end|>\n<|im_start|> assistant"]
new = transformers.AutoTokenizer.from_pretrained(OUT, legacy=False)

rows = [{"text": text, "ids": {"legacy": encode(text), "new": encode_new(text)}}
        for text in texts]
(OUT / "texts.json").write_text(
    "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")

"""Makes the fixture `merges` of tests/tokenizers.rs: what GPT-2's tokeniser was published as, two
files without a tokenizer.json, and what transformers makes of some texts by it as OPT and as Qwen2.

    pip install transformers && python3 make_merges.py ../../../ops/demo/walden.txt
"""

import json
import sys
import tempfile
from pathlib import Path

import transformers
from tokenizers import ByteLevelBPETokenizer

from make import TEXTS

OUT = Path("merges")
OPT = {
    "tokenizer_class": "GPT2Tokenizer", "errors": "replace", "add_prefix_space": False,
    "add_bos_token": True,
    **{f"{name}_token": {"content": text, "lstrip": False, "normalized": True, "rstrip": False,
                         "single_word": False, "__type": "AddedToken"}
       for name, text in (("bos", "</s>"), ("eos", "</s>"), ("unk", "</s>"))},
    "pad_token": "<pad>",
}
QWEN2 = {
    "tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": False, "bos_token": None,
    "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
    "added_tokens_decoder": {
        str(600 + idx): dict(content=name, special=True, normalized=False, lstrip=False,
                             rstrip=False, single_word=False)
        for idx, name in enumerate(("<|im_start|>", "<|im_end|>"))},
}
CONFIG = {"model_type": "opt", "vocab_size": 640, "max_position_embeddings": 4096}

OUT.mkdir(exist_ok=True)
with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
    text.write(open(sys.argv[1]).read()[:200_000])
    text.flush()
    trained = ByteLevelBPETokenizer()
    trained.train([text.name], vocab_size=600, show_progress=False,
                  special_tokens=["<s>", "<pad>", "</s>", "<|endoftext|>"])
trained.save_model(str(OUT))
(OUT / "config.json").write_text(json.dumps(CONFIG) + "\n")

rows = {"opt": OPT, "qwen2": QWEN2}
texts = TEXTS + ["<|im_start|>user\nHi there</s><|im_end|>\n<pad> 12345<|endoftext|> <s> e\u0301t\u00e9"]
made = {"texts": texts}
for name, described in rows.items():
    with tempfile.TemporaryDirectory() as folder:
        for file in ("vocab.json", "merges.txt"):
            (Path(folder) / file).write_bytes((OUT / file).read_bytes())
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(described))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    made[name] = {"tokenizer_config": described, "eos": tokenizer.eos_token_id, "rows": [
        {"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True,
                                                 clean_up_tokenization_spaces=False)}
        for ids in map(tokenizer.encode, texts)]}
(OUT / "texts.json").write_text(json.dumps(made, ensure_ascii=True) + "\n")

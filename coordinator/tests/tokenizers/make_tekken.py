"""Makes the fixture `tekken` of tests/tokenizers.rs: the first tokens of Mistral's own tokeniser in
its own file, and what Mistral's own library makes of some texts by it.

    pip install gguf mistral_common tokenizers && python3 make_tekken.py
"""

import json
from pathlib import Path

import mistral_common
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from make import TEXTS

OUT = Path("tekken")
SPECIAL, WORDS = 24, 600

whole = Path(mistral_common.__file__).parent / "data/tekken_240911.json"
file = json.loads(whole.read_text())
file["config"] |= dict(num_vocab_tokens=WORDS + 50, default_vocab_size=WORDS + SPECIAL,
                       default_num_special_tokens=SPECIAL)
file["vocab"] = file["vocab"][:WORDS + 50]
OUT.mkdir(exist_ok=True)
(OUT / "tekken.json").write_text(json.dumps(file, separators=(",", ":")) + "\n")
(OUT / "config.json").write_text(json.dumps(dict(
    model_type="mistral", vocab_size=WORDS + SPECIAL, max_position_embeddings=4096,
    bos_token_id=1, eos_token_id=2)) + "\n")
tekken = Tekkenizer.from_file(OUT / "tekken.json")
rows = []
for text in TEXTS:
    if any(f"<SPECIAL_{id}>" in text or name in text for id, name in enumerate(("<s>", "</s>"))):
        continue  # which that library takes for words wherever they stand
    ids = tekken.encode(text, bos=True, eos=False)
    rows.append({"text": text, "ids": ids,
                 "decoded": tekken.decode(ids, special_token_policy=SpecialTokenPolicy.IGNORE)})
(OUT / "texts.json").write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")

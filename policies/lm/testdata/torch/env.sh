#!/usr/bin/env bash
# env.sh [DIR]: the Python environment that the engines are compared with: torch for the CPU, transformers and peft, by package name,
# in DIR or the cache, where tests look for it. Does nothing where it is there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/mcpgym/torch}
python=${PYTHON:-python3}
packages=(transformers==5.24.0 peft==0.21.2 accelerate==1.15.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6)

made="torch==2.15.0 ${packages[*]} $(cksum <"$here/stubs.py")"
if [ "$(cat "$dir/made" 2>/dev/null)" = "$made" ]; then
  echo "torch: $dir is there"
  exit 0
fi
echo "torch: installing into $dir"
mkdir -p "$(dirname "$dir")"
new=$(mktemp -d "$dir.XXXXXX")
trap 'rm -rf "$new"' EXIT
chmod 755 "$new"
"$python" -m venv "$new"
pip() { "$new/bin/python" -m pip "$1" --quiet --disable-pip-version-check "${@:2}"; }
# The package for Linux on x86-64 is for graphics cards, and would bring four gigabytes of libraries that are of no use without one.
if [ "$(uname -sm)" = "Linux x86_64" ] && [ ! -e /dev/nvidiactl ] && command -v gcc >/dev/null && command -v readelf >/dev/null; then
  pip install --no-deps torch==2.15.0
  "$new/bin/python" "$here/stubs.py"
  pip install filelock 'typing-extensions>=4.13' sympy networkx jinja2 fsspec 'setuptools>=77.0.3' numpy==2.4.6
else
  pip install torch==2.15.0
fi
pip install "${packages[@]}"
"$new/bin/python" -c 'import torch, transformers, peft; assert torch.ones(2, 2).mm(torch.ones(2, 2)).sum() == 8'
echo "$made" >"$new/made"
rm -rf "$dir"
mv "$new" "$dir"

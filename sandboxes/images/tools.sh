#!/usr/bin/env bash
# tools.sh [NAME]: makes the image that programs of agents run in out of this machine's own installed files: a shell, Python
# with its standard library, and the linters that deps.sh gets, for engines that can pull nothing. Does nothing where the image of
# the installed versions is there. Without NAME it is mcpgym/tools. The same image as an ordinary build: tools.Dockerfile.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"

for tools in /usr/local/lib/mcpgym ~/.local/lib/mcpgym; do [ ! -x "$tools/bin/ruff" ] || break; done
python=$(readlink -f /usr/bin/python3 || true)
[ -x "$tools/bin/ruff" ] && [ -x "$tools/bin/shellcheck" ] && [ -x "$python" ] ||
  { echo "images: no linters or no Python on this machine to make an image of: make deps" >&2; exit 1; }
version="$("$tools/bin/ruff" --version), $("$tools/bin/shellcheck" --version | sed -n 's/^version: /shellcheck /p'), $("$python" -V)"
names=("${1:-mcpgym/tools:latest}")
made="$version $(cat "$here"/{tools.sh,lib.sh} | sha256sum | cut -c1-12)"
begin "$version"

mkdir -p "$root"/{work,tools/bin}
cp "$tools"/bin/{ruff,shellcheck} "$root/tools/bin/"
lib=/usr/lib/${python##*/}
mkdir -p "$root$lib"
# Not what needs a screen or builds and installs packages, nor the library's own tests.
tar -C "$lib" --exclude=./config-* --exclude=./{test,idlelib,lib2to3,ensurepip,venv,tkinter,distutils,turtledemo,pydoc_data} \
  --exclude=./dist-packages --exclude=./sitecustomize.py -c . | tar -C "$root$lib" -x
{
  printf '%s\n' "$python" "$tools"/bin/{ruff,shellcheck} /bin/{sh,cat,cp,ls,mkdir,mv,rm,sed,grep,sleep,tar,touch,true} \
    /usr/bin/{basename,cut,dirname,env,expr,find,head,seq,setsid,sort,tail,tr,uniq,wc,xargs}
  find "$lib/lib-dynload" -name '*.so'
} | put
rm -rf "$root$tools"
ln -s "${python##*/}" "$root/usr/bin/python3"

tar -C "$root" --numeric-owner --owner=0 --group=0 -cf "$work/image.tar" .
finish "$work/image.tar" "$version" 'USER 65534:65534' 'ENV PATH=/tools/bin:/usr/bin' 'WORKDIR /work' 'CMD ["/bin/sh"]'

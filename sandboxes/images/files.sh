#!/usr/bin/env bash
# files.sh [NAME]: makes the image of the server of file trees: its program and nothing else, built by the Go toolchain for the
# engine's processor. Does nothing where the image of the same program is there. Without NAME it is mcpgym/files.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"

names=("${1:-mcpgym/files:latest}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
arch=$(docker version -f '{{.Server.Arch}}')
(cd "$here/../.." && CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -buildvcs=false -ldflags '-s -w' -o "$work/filesd" ./sandboxes/files/filesd)
made=$(cd "$work" && go tool buildid filesd)
if [ "$(there "${names[0]}" 'index .Config.Labels "mcpgym.made"')" = "$made" ]; then
  echo "images: ${names[0]} is there"
  exit 0
fi
tar -C "$work" --numeric-owner --owner=0 --group=0 -cf "$work/image.tar" filesd
finish "$work/image.tar" "$(du -k "$work/filesd" | cut -f1) KiB" 'USER 65534:65534' 'ENTRYPOINT ["/filesd"]'

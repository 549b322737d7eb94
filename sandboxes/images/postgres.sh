#!/usr/bin/env bash
# postgres.sh [NAME]: makes a Postgres image out of this machine's own installed files (the server, its extensions, and the
# shared libraries they load), for engines that can pull nothing. Does nothing where the image of the installed version is there.
# Without NAME it is mcpgym/postgres, tagged with the major version and as the latest. The same image as an ordinary build:
# postgres.Dockerfile.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"

initdb=$(command -v initdb || printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort -V | tail -1)
[ -x "$initdb" ] || { echo "images: no Postgres on this machine to make an image of: make deps" >&2; exit 1; }
bin=$(dirname "$(readlink -f "$initdb")")
version=$("$bin/postgres" -V | grep -oE '[0-9]+(\.[0-9]+)*' | head -1)
names=("${1:-mcpgym/postgres:${version%%.*}}")
[ $# -gt 0 ] || names+=(mcpgym/postgres:latest)
# An image is of this version if the server and what makes the image are the same.
made="$version $(cat "$here"/{postgres.sh,lib.sh,postgres-start} | sha256sum | cut -c1-12)"
begin "Postgres $version"

mkdir -p "$root"/{run/postgresql,data}
echo postgres:x:70:70::/data:/bin/sh >>"$root/etc/passwd"
echo postgres:x:70: >>"$root/etc/group"
install -m 755 "$here/postgres-start" "$root/usr/bin/postgres-start"
cp -a /usr/share/zoneinfo "$root/usr/share/"

# Where this Postgres looks for its files: it finds them by these paths, so they stay the same.
lib=$("$bin/pg_config" --pkglibdir 2>/dev/null || echo "${bin%/bin}/lib")
share=$("$bin/pg_config" --sharedir 2>/dev/null || echo "/usr/share/postgresql/${version%%.*}")
mkdir -p "$root$share"
cp -a "$share/." "$root$share/"
# The compiler for queries is as large as the rest, and these worlds are small.
{
  printf '%s\n' /bin/sh /bin/cat /bin/cp /bin/sleep
  find "$bin" "$lib" -type f ! -name 'llvmjit*' ! -path '*/bitcode/*' ! -path '*/pgxs/*'
} | put

# A ready-made data folder: a server starts on a copy of it. initdb refuses root, and users without a name.
as=()
mkdir -m 700 "$work/template"
if [ "$(id -u)" = 0 ]; then
  chown nobody "$work/template"
  as=(setpriv --reuid nobody --regid nogroup --clear-groups)
fi
(cd / && env -i PATH="$bin:/usr/bin:/bin" TZ=UTC LC_ALL=C.UTF-8 "${as[@]}" "$bin/initdb" -D "$work/template" -U postgres -A trust -E UTF8 \
  --locale=C.UTF-8 --no-sync --wal-segsize=1 >"$work/log" 2>&1) || { cat "$work/log" >&2; exit 1; }

chmod 700 "$root/data"
chmod 1777 "$root/run/postgresql"
tar -C "$root" --numeric-owner --owner=0 --group=0 --exclude=./data -cf "$work/image.tar" .
tar -C "$root" --numeric-owner --owner=70 --group=70 -rf "$work/image.tar" ./data
tar -C "$work" --numeric-owner --owner=70 --group=70 -rf "$work/image.tar" ./template
finish "$work/image.tar" "Postgres $version" 'USER 70:70' "ENV PATH=$bin:/usr/bin" 'ENTRYPOINT ["/usr/bin/postgres-start"]'

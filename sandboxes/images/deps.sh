#!/usr/bin/env bash
# deps.sh: gets what the live sandboxes need, a Docker engine that answers, Postgres, Python, bubblewrap, the linters of
# linters.txt and our images, on a Debian machine as root. Does nothing where they are there; elsewhere it says what is missing
# and how to get it.
# An engine that it starts itself runs on; its number goes to the file that MCPGYM_ENGINE_PID names, if any.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

say() { echo "deps: $*"; }
answers() { timeout 10 docker version >/dev/null 2>&1; }
postgres() { command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; }
# linters DIR: whether a folder has them, at their versions.
linters() {
  local name version
  while IFS='=' read -r name _ version; do
    case $name in '#'*) continue ;; esac
    [ -d "$1/${name//-/_}-$version.dist-info" ] || return 1
  done <"$here/linters.txt"
}
pip=(-m pip install -q --disable-pip-version-check --no-deps --only-binary :all: -r "$here/linters.txt" --target)
images() { "$here/postgres.sh" && "$here/tools.sh" && "$here/files.sh"; }

if ! { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }; then
  ready=yes
  answers || { ready=no; say "no Docker engine answers: install and start Docker, or run make deps as root on Debian"; }
  postgres || { ready=no; say "Postgres is missing: install its server, or run make deps as root on Debian"; }
  [ "$(uname)" != Linux ] || command -v bwrap >/dev/null || say "bubblewrap is missing, without which programs run only in Docker: install it"
  linters /usr/local/lib/mcpgym || linters ~/.local/lib/mcpgym ||
    { ready=no; say "the linters are missing: rm -rf ~/.local/lib/mcpgym; python3 ${pip[*]} ~/.local/lib/mcpgym"; }
  [ -x /usr/bin/python3 ] || { ready=no; say "/usr/bin/python3 is missing: install Python 3"; }
  [ $ready = no ] || images
  exit 0
fi

exec 9>/run/lock/mcpgym-deps
flock 9 # one at a time

tools=/usr/local/lib/mcpgym
missing=()
answers || command -v dockerd >/dev/null || missing+=(docker.io)
answers || command -v iptables >/dev/null || missing+=(iptables)
postgres || missing+=(postgresql)
command -v bwrap >/dev/null || missing+=(bubblewrap)
[ -x /usr/bin/python3 ] || missing+=(python3 python3-venv)
[ ! -x /usr/bin/python3 ] || /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
linters "$tools" || /usr/bin/python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
if [ ${#missing[@]} -gt 0 ]; then
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  apt-get update -q >"$log" 2>&1 9>&- || { cat "$log" >&2; exit 1; }
  # Newer Debians have the client in a package of its own.
  command -v docker >/dev/null || ! apt-cache show docker-cli >/dev/null 2>&1 || missing+=(docker-cli)
  say "apt-get install ${missing[*]}"
  if ! postgres && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
    # Only the programs are wanted: without this the package starts a server on the machine.
    mkdir -p /etc/postgresql-common
    echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
  fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >"$log" 2>&1 9>&- || { cat "$log" >&2; exit 1; }
else
  say "Docker, Postgres, Python and bubblewrap are installed"
fi

if linters "$tools"; then
  say "the linters are installed"
else
  say "installing the linters in $tools"
  new=$(mktemp -d /usr/local/lib/mcpgym.XXXXXX)
  (umask 022 && /usr/bin/python3 "${pip[@]}" "$new" --root-user-action ignore) 9>&- || { rm -rf "$new"; exit 1; }
  chmod 755 "$new"
  rm -rf "$tools"
  mv "$new" "$tools"
fi

if answers; then
  say "the Docker engine answers"
elif [ -d /run/systemd/system ]; then
  say "starting the Docker engine: systemctl start docker"
  systemctl start docker
else
  say "starting the Docker engine: dockerd, log in /var/log/dockerd.log"
  # A killed engine leaves its pid files, and whatever has that number now would stop the next one. None answers.
  rm -f /run/docker.pid /run/docker/containerd/containerd.pid
  setsid nohup dockerd </dev/null >/var/log/dockerd.log 2>&1 9>&- &
  [ -z "${MCPGYM_ENGINE_PID:-}" ] || echo $! >"$MCPGYM_ENGINE_PID"
fi
for _ in $(seq 150); do
  if answers; then
    images
    exit
  fi
  sleep 0.2
done
say "the Docker engine does not answer" >&2
[ ! -e /var/log/dockerd.log ] || tail -20 /var/log/dockerd.log >&2
exit 1

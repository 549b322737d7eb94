# lib.sh is sourced by the scripts that make images out of this machine's own installed files, for engines that can pull nothing.

there() { docker image inspect -f "{{$2}}" "$1" 2>/dev/null || true; }

# begin WHAT: makes the empty root of an image in $root, beside it $work for other files; or ends the script where the images
# of all $names were made from the same $made.
begin() {
  local name stale= tmp d
  for name in "${names[@]}"; do
    [ "$(there "$name" 'index .Config.Labels "mcpgym.made"')" = "$made" ] || stale=yes
  done
  if [ -z "$stale" ]; then
    echo "images: ${names[0]} is there ($1)"
    exit 0
  fi
  # Memory is quicker than a disk where there is enough of it.
  tmp=${TMPDIR:-/tmp}
  [ "$(df -k --output=avail /dev/shm 2>/dev/null | tail -1)0" -lt 10000000 ] || tmp=/dev/shm
  work=$(mktemp -d -p "$tmp" mcpgym-image.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  chmod 755 "$work"
  root=$work/root
  mkdir -p "$root"/{usr/{bin,sbin,lib/locale,lib64,share},etc,tmp,dev,proc,sys,run,var}
  for d in bin sbin lib lib64; do ln -s "usr/$d" "$root/$d"; done
  ln -s ../run "$root/var/run"
  chmod 1777 "$root/tmp"
  printf '%s\n' root:x:0:0::/:/bin/sh nobody:x:65534:65534::/tmp:/bin/sh >"$root/etc/passwd"
  printf '%s\n' root:x:0: nogroup:x:65534: >"$root/etc/group"
  cp -a /usr/lib/locale/C.utf8 "$root/usr/lib/locale/"
}

# put: copies the files that its standard input names, and the shared libraries that they load, each to its own path.
put() {
  local f
  cat >"$work/files"
  {
    cat "$work/files"
    xargs ldd <"$work/files" 2>/dev/null | grep -oE '/[^ :)]+' || true
  } | sed -E 's,^/(bin|sbin|lib|lib64)/,/usr/\1/,' | sort -u >"$work/all"
  while read -r f; do
    [ ! -e "$f" ] || { mkdir -p "$root${f%/*}"; cp -L --preserve=mode "$f" "$root$f"; }
  done <"$work/all"
}

# finish ARCHIVE WHAT CHANGE...: makes the images out of an archive, with these changes as in a Dockerfile.
finish() {
  local archive=$1 what=$2 change=() old new name id
  for c in "${@:3}"; do change+=(-c "$c"); done
  old=$(for name in "${names[@]}"; do there "$name" .Id; done | sort -u)
  new=$(docker import "${change[@]}" -c "LABEL \"mcpgym.made\"=\"$made\"" "$archive" "${names[0]}")
  for name in "${names[@]:1}"; do docker tag "$new" "$name"; done
  # What no name points to any more; one in use, or of another name too, stays.
  for id in $old; do docker image rm "$id" >/dev/null 2>&1 || true; done
  echo "images: made ${names[*]} ($what)"
}

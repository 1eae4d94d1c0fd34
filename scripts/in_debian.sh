#!/usr/bin/env bash
# Run a command in a fresh clone of the last commit, on a bare Debian: Python, make and git alone.
#   scripts/in_debian.sh trixie|forky COMMAND…    Python 3.13 or 3.14; exits with 77 if this machine cannot do it
set -euo pipefail
cd "$(dirname "$0")/.."
suite=$1 root=$PWD/.build/debian-$1; shift
unable() { echo "Debian $suite cannot be had here: $1" >&2; exit 77; }

unshare --mount true 2>/dev/null && command -v debootstrap >/dev/null || unable 'it needs root and debootstrap'
if [ ! -e "$root/made" ]; then
  mirror=$(sed -nsE 's#^(URIs:|deb) +(\[.*\] +)?(\S+/debian/?)( .*)?$#\3#p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null | head -n 1 || true)
  rm -rf "$root" && mkdir -p "$root"
  unshare --mount --propagation private debootstrap --variant=minbase \
    --include=ca-certificates,git,make,procps,python3,python3-venv "$suite" "$root" "$mirror" \
    /usr/share/debootstrap/scripts/sid >"$root.log" 2>&1 || unable "debootstrap failed, see $root.log"
  touch "$root/made"
fi
for file in /etc/hosts /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  [ ! -e "$file" ] || cp "$file" "$root$file"
done
rm -rf "$root"/{root,clone} && mkdir "$root/root" && git clone --quiet . "$root/clone"
# The mounts are in a namespace of their own, which ends with the command: `make clean` never sees them.
exec env -u ARGS -u MAKEFLAGS -u MAKELEVEL -u PIP_FIND_LINKS -u PYTHON HOME=/root \
  unshare --mount --propagation private bash -c '
  for folder in proc dev dev/pts dev/shm; do mount --bind "/$folder" "$0/$folder"; done
  exec chroot "$0" bash -c "cd /clone && exec \"\$@\"" bash "$@"' "$root" "$@"

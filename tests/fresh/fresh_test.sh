#!/usr/bin/env bash
# Proves the README's promise: makes a Debian 12 chroot under build/fresh that holds git and a clone of this checkout's
# HEAD and nothing else of ours, and runs `./dev serve` (with one chat) and `./dev test` in it. Called by
# `./dev fresh-test`, as root. Package sources and proxies are those of the machine it runs on.
#
# Everything runs in mount and process namespaces of its own, so mounts and a server left behind vanish with this
# script however it ends.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage="usage: ./dev fresh-test [--port N] [--keep]"
if [[ ${TANDEM_FRESH_INSIDE:-} != 1 ]]; then
  port=8012 keep=0
  while (($#)); do
    case "$1" in
      --port) port=${2:?$usage}; shift ;;
      --keep) keep=1 ;;
      *) echo "$usage" >&2; exit 2 ;;
    esac
    shift
  done
  mkdir -p build
  status=0
  TANDEM_FRESH_INSIDE=1 TANDEM_FRESH_PORT=$port unshare --mount --pid --fork --kill-child --mount-proc \
    "$PWD/tests/fresh/fresh_test.sh" 2>&1 | tee build/fresh-test.log || status=${PIPESTATUS[0]}
  if ((keep)); then echo "fresh-test: kept build/fresh"; else rm -rf --one-file-system build/fresh; fi
  echo "fresh-test: the log is build/fresh-test.log"
  exit "$status"
fi

port=$TANDEM_FRESH_PORT
chroot=$PWD/build/fresh
summary=()

say() { echo "fresh-test: $*"; }
die() { say "$*"; exit 1; }

# timed NAME COMMAND...: runs the command and keeps its wall time for the summary.
timed() {
  local name=$1 start=$SECONDS
  shift
  say "--- $name"
  if "$@"; then
    summary+=("$(printf '%-34s ok      %5d s' "$name" $((SECONDS - start)))")
  else
    summary+=("$(printf '%-34s FAILED  %5d s' "$name" $((SECONDS - start)))")
    return 1
  fi
}
commit=$(git rev-parse --short HEAD)
trap 'say "summary at $commit"; ((${#summary[@]})) && printf "  %s\n" "${summary[@]}"' EXIT

# The machine's own Debian 12 sources, as "site release component" lines.
debian_sources() {
  apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT) $(ORIGIN)' 'Created-By: Packages' |
    awk '$2 ~ /^bookworm(-updates|-security)?$/ && ($4 == "" || $4 == "Debian") {print $1, $2, $3}'
}

# inside COMMAND...: runs it in the chroot with a newcomer's environment, plus the machine's proxies if there are any.
inside() {
  local name pass=()
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [[ -n ${!name:-} ]] && pass+=("$name=${!name}")
  done
  env -i "${pass[@]}" HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$chroot" "$@"
}

make_chroot() {
  local sources main
  sources=$(debian_sources)
  main=$(awk '$2 == "bookworm" && $3 == "main" {print $1; exit}' <<<"$sources")
  [[ $main ]] || die "this machine has no apt source for Debian 12 (bookworm)"
  rm -rf --one-file-system "$chroot"
  debootstrap --variant=minbase --include=git,ca-certificates bookworm "$chroot" "$main" >"$chroot.debootstrap.log" 2>&1 ||
    { tail -n 20 "$chroot.debootstrap.log"; return 1; }
  awk '{print "deb", $0}' <<<"$sources" >"$chroot/etc/apt/sources.list"
  # Proxies, certificates and checks of apt, name service and certificate authorities as on this machine.
  apt-config dump | grep -E '^Acquire::(http|https|ftp|Check-|Retries)[^ ]* "[^"]' >"$chroot/etc/apt/apt.conf.d/90machine" || true
  cp -L /etc/resolv.conf "$chroot/etc/resolv.conf"
  cp -L /etc/hosts "$chroot/etc/hosts"
  cp -L /etc/ssl/certs/ca-certificates.crt "$chroot/etc/ssl/certs/ca-certificates.crt"
  mount -t proc proc "$chroot/proc"
  mount -t devpts -o newinstance,ptmxmode=0666 devpts "$chroot/dev/pts"
}

clone() {
  git clone -q --no-local . "$chroot/root/tandem"
}

port_free() {
  python3 -c 'import socket, sys; socket.socket().bind(("127.0.0.1", int(sys.argv[1])))' "$port"
}

# The first command of the README: from nothing to one chat, then an orderly end.
serve() {
  port_free || { say "port $port is in use; choose another with --port"; return 1; }
  local arguments=() server status=0 ended=0
  ((port == 8012)) || arguments=(--port "$port")
  inside bash -c 'echo $$ > /run/server.pid; cd /root/tandem && exec ./dev serve "$@"' dev "${arguments[@]}" &
  server=$!
  inside_chat "$server" || status=1
  kill -TERM "$(cat "$chroot/run/server.pid")" 2>/dev/null || true
  wait "$server" || ended=$?
  say "the server ended with status $ended on SIGTERM"
  return $((status != 0 || ended != 0))
}

# inside_chat PID: waits until the server answers /health (or PID ended, or 15 minutes went by), then asks one question.
inside_chat() {
  local until=$((SECONDS + 900))
  until python3 tests/fresh/ask.py health "$port"; do
    kill -0 "$1" 2>/dev/null || { say "./dev serve ended before it was ready"; return 1; }
    ((SECONDS < until)) || { say "./dev serve was not ready in time"; return 1; }
    sleep 1
  done
  python3 tests/fresh/ask.py chat "$port"
}

run_tests() {
  inside bash -c 'cd /root/tandem && ./dev test'
}

timed "debootstrap" make_chroot
timed "git clone" clone
timed "./dev serve: install, build, chat" serve
timed "./dev test: build, all tests" run_tests

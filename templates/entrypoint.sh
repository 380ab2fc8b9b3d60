#!/bin/sh
# Make room for a crashing process to leave its evidence, then become the command.
set -eu

ulimit -c unlimited 2>/dev/null ||
    echo "vdbg-env: core files are limited to $(ulimit -c) blocks here; start the container with --ulimit core=-1" >&2

# A user without an entry in passwd has HOME=/ and no name; caches below ~ and torch's getpass.getuser() then fail.
if [ "${HOME:-/}" = / ] || [ ! -w "$HOME" ]; then
    HOME="${TMPDIR:-/tmp}/home-$(id -u)"
    mkdir -p "$HOME" && chmod 700 "$HOME"
    export HOME
fi
if ! id -un >/dev/null 2>&1; then
    export USER="${USER:-user$(id -u)}" LOGNAME="${LOGNAME:-user$(id -u)}"
fi

if [ -e /dumps ] && [ ! -w /dumps ]; then
    echo "vdbg-env: /dumps cannot be written to by $(id -un 2>/dev/null || id -u); GPU core dumps would be lost" >&2
fi

exec "$@"

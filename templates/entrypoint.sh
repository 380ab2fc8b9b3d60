#!/bin/sh
# Gives a crashing process room to leave its evidence, then becomes the command.
set -eu

ulimit -c unlimited 2>/dev/null ||
    echo "vdbg-env: core files are limited to $(ulimit -c) blocks here; start the container with --ulimit core=-1" >&2

if [ -e /dumps ] && [ ! -w /dumps ]; then
    echo "vdbg-env: /dumps cannot be written to by $(id -un 2>/dev/null || id -u); GPU core dumps would be lost" >&2
fi

exec "$@"

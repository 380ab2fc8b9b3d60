#!/bin/sh
# Make room for a crashing process to leave its evidence, then become the command, or its guard.
set -eu

ulimit -c unlimited 2>/dev/null ||
    echo "vdbg-env: core files are limited to $(ulimit -c) blocks here; start the container with --ulimit core=-1" >&2

# A user without an entry in passwd has HOME=/ and no name; caches below ~ and torch's getpass.getuser() then fail.
if [ "${HOME:-/}" = / ] || [ ! -w "$HOME" ]; then
    home="${TMPDIR:-/tmp}/home-$(id -u)"
    # Another user may own what is there, and the file system may be read-only: the command starts all the same.
    if mkdir -p "$home" 2>/dev/null && chmod 700 "$home" 2>/dev/null; then
        export HOME="$home"
    else
        echo "vdbg-env: $home cannot be made or is another user's; what writes below ~ will fail" >&2
    fi
fi
if ! id -un >/dev/null 2>&1; then
    export USER="${USER:-user$(id -u)}" LOGNAME="${LOGNAME:-user$(id -u)}"
fi

if [ -e /dumps ] && [ ! -w /dumps ]; then
    who="$(id -un 2>/dev/null)" || who="$(id -u)"  # id prints the number too where there is no name, and fails
    echo "vdbg-env: /dumps cannot be written to by $who; GPU core dumps would be lost" >&2
fi

# The image puts `vdbg-env guard --` before the command. A guarded command writes into pipes: an interactive one gets its
# terminal instead, and what is vdbg-env itself needs no guard.
if [ $# -gt 3 ] && [ "$2 $3" = "guard --" ]; then
    guarded=yes
    case "${VDBG_GUARD:-on}" in off | no | 0 | false) guarded= ;; esac
    case "$4" in vdbg-env | */vdbg-env) guarded= ;; esac
    if [ -n "$guarded" ] && [ -t 0 ]; then
        case "${4##*/} ${5-}" in
            "vllm serve" | "vllm bench") ;; # they read nothing from it
            "bash "* | "sh "* | "dash "* | "zsh "*) guarded= ;;
            *)
                echo "vdbg-env: $4 has a terminal and runs without guard; start the container without --tty" >&2
                guarded=
                ;;
        esac
    fi
    [ -n "$guarded" ] || shift 3
fi

exec "$@"

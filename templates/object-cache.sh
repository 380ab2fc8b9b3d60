#!/bin/sh
# Compile through ccache, with everything in the key that decides about line info and that ccache does not see.
#
# nvcc reads flags from its environment; ccache hashes the command line. It would return an object without line info for
# a compilation with it. So these variables are part of the name of the cache here, at each compilation, and the content
# of the programs that nvcc starts is part of the key.
set -eu
root=${0%/*}

for name in $(env | sed -n 's/^\(CCACHE_[A-Z0-9_]*\)=.*/\1/p'); do unset "$name"; done
flags=$(env -0 | grep -z '^NVCC_' | grep -zv '^NVCC_THREADS=' | sort -z | sha256sum)
programs=
for file in nvcc nvcc.profile cudafe++ ptxas fatbinary ../nvvm/bin/cicc; do
    if [ -e "${CUDA_HOME:?}/bin/$file" ]; then programs="$programs:$CUDA_HOME/bin/$file"; fi
done

export CCACHE_DIR="$root/objects" CCACHE_NAMESPACE="${flags%% *}" CCACHE_EXTRAFILES="${programs#:}"
export CCACHE_CONFIGPATH=/dev/null CCACHE_CONFIGPATH2=/dev/null CCACHE_COMPILERCHECK=content CCACHE_MAXSIZE=10G
exec ccache "$@"

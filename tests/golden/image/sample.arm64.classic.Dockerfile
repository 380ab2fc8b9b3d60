# Rendered by vdbg-env from the profile sample; the same plan gives the same bytes.
# docker build --tag NAME DIR builds it, where DIR is the folder of this file and its context; then
# vdbg-env verify NAME proves the line info, as vdbg-env build does before it gives a name.
# hadolint's DL3008 is ignored below: a distribution has one version of each package, so a pinned one disappears with the next.
# hadolint's DL3013 is ignored below: the profile pins what it must, and takes the newest version of the rest.
# hadolint's DL3042 is ignored below: PIP_NO_CACHE_DIR turns the cache off, or a mount keeps it out of the image.
# The requested platform; a builder of another one would silently use its own.
# hadolint ignore=DL3029
FROM --platform=linux/arm64 docker.io/library/debian:trixie-slim
ENV VDBG_ROOT="/opt/vdbg" \
    PATH="/opt/vdbg/out/bin:/opt/vdbg/venv/bin:/opt/vdbg/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    CUDA_HOME="/opt/vdbg/cuda"
WORKDIR /opt/vdbg

# Packages of debian trixie
# hadolint ignore=DL3008
RUN set -eu; \
    export DEBIAN_FRONTEND=noninteractive; \
    apt-get update; \
    apt-get install -y --no-install-recommends ca-certificates g++ git python3 python3-dev python3-venv; \
    rm -rf /var/lib/apt/lists/*

# CUDA 13.0 from the package index
# hadolint ignore=DL3013,DL3042
RUN set -eu; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1; \
    python3 -m venv "$VDBG_ROOT"/venv; \
    pip install nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
      nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-cuobjdump==13.2.78 \
      nvidia-cuda-nvdisasm==13.2.78 nvidia-cuda-sanitizer-api==13.0.85; \
    ln -sfn \
      "$("$VDBG_ROOT"/venv/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"/nvidia/cu13 \
      "$VDBG_ROOT"/cuda; \
    if [ ! -e "$VDBG_ROOT"/cuda/lib64 ]; then ln -s lib "$VDBG_ROOT"/cuda/lib64; fi

# Python packages the build needs
# hadolint ignore=DL3013,DL3042
RUN set -eu; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1; \
    pip install 'cmake>=3.26.1' ninja; \
    for library in "$VDBG_ROOT"/cuda/lib/lib*.so.*; do ln -sf "${library##*/}" "${library%.so.*}.so"; done; \
    mkdir -p "$VDBG_ROOT"/cuda/lib/stubs; \
    gcc -E -P -o driver.i "$VDBG_ROOT"/cuda/include/cuda.h; \
    sed -nE 's/.*\b(cu[A-Z][A-Za-z0-9_]*) *\(.*/void \1(void) {}/p' driver.i >driver.c; \
    gcc -shared -Wl,-soname,libcuda.so.1 -o "$VDBG_ROOT"/cuda/lib/stubs/libcuda.so driver.c; \
    rm driver.i driver.c

# Source tree
COPY ["source", "/opt/vdbg/src"]
WORKDIR /opt/vdbg/src

# From here on everything depends on the architecture and the kind of debug information.
ENV NVCC_PREPEND_FLAGS="-lineinfo" \
    CCACHE_DISABLE="1" \
    VLLM_DISABLE_SCCACHE="1" \
    TORCH_CUDA_ARCH_LIST="9.0" \
    FLASHINFER_JIT_LINEINFO="1" \
    CUTE_DSL_LINEINFO="1" \
    TRITON_DISABLE_LINE_INFO="0"

# MAX_JOBS: compilers at once; if empty, from cores and 1 GiB of memory each; --build-arg sets it
ARG MAX_JOBS=""

# NVCC_THREADS: architectures at once in each compiler; --build-arg sets it
ARG NVCC_THREADS="1"

# Compile everything
RUN set -eu; \
    unset CMAKE_C_COMPILER_LAUNCHER CMAKE_CXX_COMPILER_LAUNCHER CMAKE_CUDA_COMPILER_LAUNCHER CCACHE_PREFIX \
      RUSTC_WRAPPER VLLM_USE_PRECOMPILED VLLM_PRECOMPILED_WHEEL_LOCATION; \
    if [ -z "${MAX_JOBS:-}" ]; then \
      MAX_JOBS="$(awk -v cores="$(nproc)" -v each=1.0 '/^MemAvailable:/ { jobs = int($2 / 1048576 / each); if (jobs > cores) jobs = cores; if (jobs < 1) jobs = 1; print jobs }' /proc/meminfo)"; \
    fi; \
    export MAX_JOBS="${MAX_JOBS:-1}" NVCC_THREADS="${NVCC_THREADS:-1}"; \
    echo "MAX_JOBS=$MAX_JOBS NVCC_THREADS=$NVCC_THREADS"; \
    rm -rf "$VDBG_ROOT"/build; \
    cmake -S . -B "$VDBG_ROOT"/build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
      -DCMAKE_CUDA_COMPILER="$CUDA_HOME"/bin/nvcc -DCMAKE_CUDA_ARCHITECTURES=90-real -DCMAKE_CUDA_FLAGS=-lineinfo \
      -DCMAKE_C_COMPILER_LAUNCHER= -DCMAKE_CXX_COMPILER_LAUNCHER= -DCMAKE_CUDA_COMPILER_LAUNCHER=; \
    cmake --build "$VDBG_ROOT"/build --parallel "$MAX_JOBS"; \
    cmake --install "$VDBG_ROOT"/build --prefix "$VDBG_ROOT"/out; \
    rm -rf "$VDBG_ROOT"/build
WORKDIR /opt/vdbg

# Debug tools
# hadolint ignore=DL3013,DL3042
RUN set -eu; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1; \
    pip install 'py-spy>=0.4'

# What vdbg-env requires of Python
# hadolint ignore=DL3013,DL3042
RUN set -eu; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1; \
    python3 -c \
      'import sys; sys.exit(None if sys.version_info >= (3, 11) else "vdbg-env guard needs Python 3.11 or later: build with --no-guard, or on another base")'; \
    python3 -m venv --without-pip "$VDBG_ROOT"/tool; \
    pip --python "$VDBG_ROOT"/tool/bin/python3 install 'click>=8.1' 'cel-expr-python>=0.1.3,<0.2'

# The tools start and agree
RUN set -eu; \
    expect() { \
      want="$1"; shift; \
      said="$("$@" 2>&1)" || { echo "$1 does not start: $said" >&2; return 1; }; \
      case "$said" in \
        *"$want"*) echo "$said" >> "$VDBG_ROOT"/tools.txt ;; \
        *) echo "$1 does not say '$want': $said" >&2; return 1 ;; \
      esac; \
    }; \
    : > "$VDBG_ROOT"/tools.txt; \
    expect 'release 13.0' nvcc --version; \
    expect 'release 13.' cuobjdump --version; \
    expect 'release 13.' nvdisasm --version; \
    expect 'Compute Sanitizer' compute-sanitizer --version; \
    expect py-spy py-spy --version

# The release of vdbg-env that rendered this
COPY ["wheel", "/opt/vdbg/wheel"]

# Launcher of vdbg-env
COPY ["vdbg-env", "/opt/vdbg/vdbg-env"]

# vdbg-env, which guards the command
# hadolint ignore=DL3013,DL3042
RUN set -eu; \
    pip --python "$VDBG_ROOT"/tool/bin/python3 install --no-cache-dir --no-deps --no-index \
      "$VDBG_ROOT"/wheel/*.whl; \
    pip --python "$VDBG_ROOT"/tool/bin/python3 check; \
    cp "$VDBG_ROOT"/vdbg-env "$VDBG_ROOT"/venv/bin/vdbg-env; \
    "$VDBG_ROOT"/vdbg-env --version

# Entry point
COPY ["entrypoint.sh", "/opt/vdbg/entrypoint.sh"]
ENTRYPOINT ["/opt/vdbg/entrypoint.sh", "/opt/vdbg/vdbg-env", "guard", "--"]
CMD ["bash"]
LABEL org.opencontainers.image.title="vdbg-env sample" \
    org.opencontainers.image.description="the bundled CUDA project with a planted crash; built in seconds, on plain Debian" \
    org.opencontainers.image.source="bundled:sample" \
    org.opencontainers.image.base.name="docker.io/library/debian:trixie-slim" \
    dev.vdbg-env.profile="sample" \
    dev.vdbg-env.debug="lineinfo" \
    dev.vdbg-env.arch="9.0" \
    dev.vdbg-env.cuda="13.0" \
    dev.vdbg-env.plan.digest="sha256:42edc0d9f632cabe4cb51c39a11336cf7d7cb90eedfb4bf8ab74f40c2fcf42b7"

# Rendered by vdbg-env from the profile vllm-cu130; the same plan gives the same bytes.
# docker build --tag NAME DIR builds it, where DIR is the folder of this file and its context; then
# vdbg-env verify NAME proves the line info, as vdbg-env build does before it gives a name.
# hadolint's DL3008 is ignored below: a distribution has one version of each package, so a pinned one disappears with the next.
# hadolint's DL3013 is ignored below: the profile pins what it must, and takes the newest version of the rest.
# hadolint's DL3042 is ignored below: PIP_NO_CACHE_DIR turns the cache off, or a mount keeps it out of the image.
FROM docker.io/nvidia/cuda:13.0.3-devel-ubuntu24.04
ENV VDBG_ROOT="/opt/vdbg" \
    PATH="/opt/vdbg/venv/bin:/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    CUDA_HOME="/usr/local/cuda"
WORKDIR /opt/vdbg

# Packages of ubuntu noble
# hadolint ignore=DL3008
RUN set -eu; \
    export DEBIAN_FRONTEND=noninteractive; \
    apt-get update; \
    apt-get install -y --no-install-recommends ca-certificates cuda-cuobjdump-13-0 cuda-gdb-13-0 \
      cuda-nvdisasm-13-0 cuda-sanitizer-13-0 curl g++ gdb git libibverbs-dev libnuma-dev numactl python3 python3-dev \
      python3-venv ffmpeg libgl1 libsm6 libxext6 sudo; \
    rm -rf /var/lib/apt/lists/*

# Python next to the CUDA 13.0 of the base
RUN set -eu; \
    python3 -m venv "$VDBG_ROOT"/venv

# Python packages the build needs
# hadolint ignore=DL3013,DL3042
RUN --mount=type=cache,target=/root/.cache/pip \
    set -eu; \
    export PIP_DISABLE_PIP_VERSION_CHECK=1; \
    pip install torch==2.14.0 'cmake>=3.26.1' ninja 'packaging>=24.2' 'setuptools>=78.1.1,<81' 'setuptools-scm>=8' \
      'setuptools-rust>=1.9' wheel jinja2 regex build 'protobuf>=5.29.6'

# Source distribution of vllm 0.33.0
RUN --mount=type=cache,target=/root/.cache/pip \
    set -eu; \
    export PIP_DISABLE_PIP_VERSION_CHECK=1 VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=0.33.0; \
    pip download --no-deps --no-build-isolation --no-binary vllm --dest "$VDBG_ROOT"/download vllm==0.33.0; \
    mkdir -p "$VDBG_ROOT"/src; \
    tar -xzf "$VDBG_ROOT"/download/*.tar.gz -C "$VDBG_ROOT"/src --strip-components=1 --no-same-owner; \
    rm -rf "$VDBG_ROOT"/download
WORKDIR /opt/vdbg/src

# What this source requires of Python
# hadolint ignore=DL3013,DL3042
RUN --mount=type=cache,target=/root/.cache/pip \
    set -eu; \
    export PIP_DISABLE_PIP_VERSION_CHECK=1; \
    list=requirements/build/cuda.txt; \
    if [ ! -e "$list" ]; then list=requirements/build.txt; fi; \
    pip install -r "$list"; \
    list=requirements/cuda.txt; \
    if [ ! -e "$list" ]; then list=requirements-cuda.txt; fi; \
    pip install -r "$list"; \
    pip install accelerate 'modelscope<1.38' 'timm>=1.0.17' 'runai-model-streamer[s3,gcs,azure]>=0.15.7' \
      'gguf>=0.19.0'; \
    pip install --no-deps nvidia-nccl-cu13==2.31.2

# From here on everything depends on the architecture and the kind of debug information.
ENV NVCC_PREPEND_FLAGS="-lineinfo" \
    CCACHE_DISABLE="1" \
    VLLM_DISABLE_SCCACHE="1" \
    TORCH_CUDA_ARCH_LIST="9.0" \
    FLASHINFER_JIT_LINEINFO="1" \
    CUTE_DSL_LINEINFO="1" \
    TRITON_DISABLE_LINE_INFO="0"

# MAX_JOBS: compilers at once; if empty, from cores and 5 GiB of memory each; --build-arg sets it
ARG MAX_JOBS=""

# NVCC_THREADS: architectures at once in each compiler; --build-arg sets it
ARG NVCC_THREADS="1"

# Compile vLLM
# hadolint ignore=DL3013,DL3042
RUN set -eu; \
    export PIP_DISABLE_PIP_VERSION_CHECK=1 \
      CMAKE_ARGS='-DCMAKE_CUDA_FLAGS=-lineinfo -DCMAKE_C_COMPILER_LAUNCHER= -DCMAKE_CXX_COMPILER_LAUNCHER= -DCMAKE_CUDA_COMPILER_LAUNCHER=' \
      CMAKE_BUILD_TYPE=RelWithDebInfo VLLM_TARGET_DEVICE=cuda VLLM_VERSION_OVERRIDE=0.33.0 VERBOSE=1; \
    unset CMAKE_C_COMPILER_LAUNCHER CMAKE_CXX_COMPILER_LAUNCHER CMAKE_CUDA_COMPILER_LAUNCHER CCACHE_PREFIX \
      RUSTC_WRAPPER VLLM_USE_PRECOMPILED VLLM_PRECOMPILED_WHEEL_LOCATION; \
    if [ -z "${MAX_JOBS:-}" ]; then \
      MAX_JOBS="$(awk -v cores="$(nproc)" -v each=5.0 '/^MemAvailable:/ { jobs = int($2 / 1048576 / each); if (jobs > cores) jobs = cores; if (jobs < 1) jobs = 1; print jobs }' /proc/meminfo)"; \
    fi; \
    export MAX_JOBS="${MAX_JOBS:-1}" NVCC_THREADS="${NVCC_THREADS:-1}"; \
    echo "MAX_JOBS=$MAX_JOBS NVCC_THREADS=$NVCC_THREADS"; \
    rm -rf build "$VDBG_ROOT"/dist; \
    python3 setup.py bdist_wheel --dist-dir "$VDBG_ROOT"/dist --py-limited-api=cp38; \
    pip install --no-deps --no-index --force-reinstall "$VDBG_ROOT"/dist/*.whl; \
    ln -sfn "$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')" "$VDBG_ROOT"/venv/lib/python; \
    rm -rf build
WORKDIR /opt/vdbg

# Debug tools
# hadolint ignore=DL3013,DL3042
RUN --mount=type=cache,target=/root/.cache/pip \
    set -eu; \
    export PIP_DISABLE_PIP_VERSION_CHECK=1; \
    pip install 'py-spy>=0.4'

# What vdbg-env requires of Python
# hadolint ignore=DL3013,DL3042
RUN --mount=type=cache,target=/root/.cache/pip \
    set -eu; \
    export PIP_DISABLE_PIP_VERSION_CHECK=1; \
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
    expect 13.0 cuda-gdb --version; \
    expect 'GNU gdb' gdb --version; \
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
LABEL org.opencontainers.image.title="vdbg-env vllm-cu130" \
    org.opencontainers.image.description="vLLM on NVIDIA's CUDA 13.0 image; needs a registry that carries nvidia/cuda" \
    org.opencontainers.image.source="pkg:pypi/vllm@0.33.0" \
    org.opencontainers.image.revision="0.33.0" \
    org.opencontainers.image.base.name="docker.io/nvidia/cuda:13.0.3-devel-ubuntu24.04" \
    dev.vdbg-env.profile="vllm-cu130" \
    dev.vdbg-env.debug="lineinfo" \
    dev.vdbg-env.arch="9.0" \
    dev.vdbg-env.cuda="13.0" \
    dev.vdbg-env.plan.digest="sha256:2ba6851347824c8acd770974c2742e6500db192dd506616129dd55a7d0711466"

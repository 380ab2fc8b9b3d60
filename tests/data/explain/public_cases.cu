// Kernels written from the descriptions of public cases: what they have in common with them is the mistake.
#include <cstdint>

constexpr int kCapacity = 4096;

// sgl-project/sglang#37540: candidates are stashed in shared memory, and nothing holds the position below the capacity.
__global__ void stash_candidates(const float* scores, int* out, float threshold, int count) {
  __shared__ float bins[1500];
  __shared__ int stash[kCapacity];
  __shared__ int taken;
  bins[threadIdx.x] = scores[threadIdx.x];
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    if (scores[i] >= threshold) {
      int position = atomicAdd(&taken, 1);
      stash[position] = i;  // PLANTED
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < min(taken, kCapacity); i += blockDim.x) {
    out[i] = stash[i] + (int)bins[i % 1500];
  }
}

// vllm-project/vllm#44734: a block table has -1 where no block was given yet, and a kernel reads that far.
__global__ void gather_blocks(float* out, const float* cache, const int* block_table, int blocks_per_request,
                              long block_stride, int length) {
  for (int token = threadIdx.x; token < length; token += blockDim.x) {
    int block = block_table[blockIdx.x * blocks_per_request + token / 16];
    out[blockIdx.x * length + token] = cache[block * block_stride + token % 16];  // PLANTED
  }
}

// pytorch/pytorch#187081: a masked copy whose address had a wrong upper word, although its operands were right.
__global__ void masked_copy(float* out, const float* in, const bool* mask, long stride, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count && mask[i]) {
    out[i * stride] = in[i * stride] + out[i * stride + 1];  // PLANTED
  }
}

// flashinfer-ai/flashinfer#3053: a consumer of a pipeline waits for the phase of a barrier that nobody completes.
__global__ void consume(const float* in, float* out, int stages, int steps) {
  __shared__ uint64_t full[8];
  __shared__ float tile[8 * 128];
  for (int step = 0; step < steps; ++step) {
    int stage = step % stages;
    uint32_t barrier = (uint32_t)__cvta_generic_to_shared(&full[stage]);
    uint32_t phase = (step / stages) & 1, done = 0;
    while (!done) {
      asm volatile(
          "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done) : "r"(barrier), "r"(phase) : "memory");  // WAITS
    }
    out[step * 128 + threadIdx.x] = tile[stage * 128 + threadIdx.x] + in[threadIdx.x];
  }
}

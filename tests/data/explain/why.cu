// Kernels whose addresses tests/gpucore/explain looks at. Built for sm_90 by nvcc 13.0 in /src/explain:
//   nvcc -arch=sm_90 -cubin -lineinfo -o why_sm90.cubin why.cu
//   nvdisasm -json why_sm90.cubin > why_sm90.json
#include <cstdint>

struct View {
  float* data;
  int row;
  int column;
};

__global__ void cache(const float* __restrict__ key, float* __restrict__ key_cache,
                      const int64_t* __restrict__ slot_mapping, int64_t block_stride, int64_t page_stride, int block_size) {
  const int64_t slot = slot_mapping[blockIdx.x];
  if (slot < 0) return;
  const int64_t block = slot / block_size, page = slot % block_size;
  key_cache[block * block_stride + page * page_stride + threadIdx.x] = key[blockIdx.x * blockDim.x + threadIdx.x];
}

__global__ void gather(float* out, const float* in, const int* rows, int stride, int count) {
  const int row = rows[blockIdx.x];
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[(int64_t)blockIdx.x * count + i] = in[(int64_t)row * stride + i];
}

__global__ void overflow(float* out, View view) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  out[threadIdx.x] = view.data[y * view.row + x * view.column];
}

__global__ void quotients(int* out, const int* in, int a, int b, unsigned c, unsigned d) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i / a + i % b] = in[(unsigned)i / c + (unsigned)i % d + i / 7 + i % 13];
}

__global__ void clamped(float* out, const float* in, const int* index, int count) {
  const int i = min(max(index[threadIdx.x], 0), count - 1);
  out[threadIdx.x] = in[threadIdx.x > 7 ? i * 2 : i];
}

__noinline__ __device__ int pick(const int* table, int from, int turns) {
  int sum = 0;
#pragma unroll 1
  for (int k = 0; k < turns; ++k) sum += table[from + k * 3];
  return sum;
}

__global__ void calls(int* out, const int* table, int turns) {
  const int first = pick(table, threadIdx.x, turns);
  out[first] = pick(table, threadIdx.x + 1, turns + 2);
}

__global__ void window(float* out, const int* position) {
  extern __shared__ float staged[];
  staged[threadIdx.x] = out[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = staged[position[blockIdx.x] + 5];
}

__global__ void wait(volatile int* flag, int* out, int wanted) {
  while (flag[blockIdx.x] != wanted) {
  }
  out[threadIdx.x] = 1;
}

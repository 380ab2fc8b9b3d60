// Kernels whose names, places and indexes tests/gpucore/explain/test_names.py looks at. Built by nvcc 13.0 in
// /src/explain, with CUDA in /src/cuda:
//   nvcc -arch=sm_90 -cubin -lineinfo -o names_sm90.cubin names.cu

namespace rows {
__global__ void copy(const float* from, float* to, int count, int stride) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) to[at] = from[at * stride];
}
}  // namespace rows

namespace columns {
__global__ void copy(float* target, const float* data, int step, int limit) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < limit) target[at] = data[at * step];
}
}  // namespace columns

__global__ void exact(float* out, const float* in, const int* table) {
  const int row = table[blockIdx.x];
  out[threadIdx.x] = in[row + threadIdx.x];
}

__global__ void cached(float* out, const float* in, const int* table) {
  const int row = __ldg(&table[blockIdx.x]);
  out[threadIdx.x] = in[row + threadIdx.x];
}

__global__ void inner(float* out, const int* in, const int* table) {
  const int value = in[table[blockIdx.x]];
  out[threadIdx.x] = value;
}

__global__ void sum(float* out, const float* in, const int* table) {
  const int row = 3 * table[blockIdx.x] + 7;
  out[threadIdx.x] = in[row];
}

__global__ void pair(float* out, const float* in, const int* table) {
  const int first = table[blockIdx.x], second = table[blockIdx.x + 64];
  out[threadIdx.x] = in[first * second];
}

__global__ void moved(float* out, const float* in, const int* table) {
  int row = table[blockIdx.x];
  if (row > 5) row += 100;
  out[threadIdx.x] = in[row];
}

__global__ void narrowed(float* out, const float* in, const long* table) {
  const int row = table[blockIdx.x];
  out[threadIdx.x] = in[row];
}

__global__ void masked(float* out, const float* in, const int* table) {
  const int row = table[threadIdx.x & 3];
  out[threadIdx.x] = in[row];
}

struct Item {
  int key, value;
  Item* next;
};

__global__ void member(float* out, const float* in, const Item* items) {
  const int value = items[threadIdx.x].value;
  out[threadIdx.x] = in[value];
}

__global__ void chained(float* out, const Item* item) {
  for (int k = 0; k < 8; ++k) item = item->next;
  out[threadIdx.x] = item->value;
}

__global__ void twice(float* out, const float* in, const int* table) {
  if (table[blockIdx.x] < 0) return;
  out[threadIdx.x + 64] = 1.f;
  const int row = table[blockIdx.x];
  out[threadIdx.x] = in[row];
}

__global__ void unchecked(float* out, const float* in, const int* table, int count) {
  if (threadIdx.x >= count) return;
  const int row = table[blockIdx.x];
  out[threadIdx.x] = in[row];
}

__global__ void slots(int* out, int* counter) {
  const int slot = atomicAdd(&counter[blockIdx.x], 3);
  out[slot] = 1;
}

__global__ void histogram(int* bins, const int* values) { atomicAdd(&bins[values[threadIdx.x]], 1); }

__global__ void shares(float* out, const float* in, long large, int parts) {
  const long at = blockIdx.x * (long)blockDim.x + threadIdx.x;
  out[at] = in[at * large / parts];
}

struct Bits {
  unsigned low : 5, middle : 13, high : 14;
};

__global__ void fields(float* out, const float* in, const Bits* bits) {
  const Bits one = bits[threadIdx.x];
  out[threadIdx.x] = in[one.middle * 1024 + one.high];
}

__global__ void floating(float* out, const float* in, const float* position, float scale) {
  const int at = (int)(position[threadIdx.x] * scale);
  out[threadIdx.x] = in[at];
}

__global__ void swizzle(float* out, const float* in, int group, int columns) {
  const int id = blockIdx.x, width = group * columns;
  const int first = id / width * group, size = min((int)gridDim.y - first, group);
  const int row = first + id % width % size, column = id % width / size;
  out[threadIdx.x] = in[row * 64 + column];
}

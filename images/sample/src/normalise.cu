#include "rows.cuh"
#include "sample.h"

namespace sample {
namespace {

constexpr int kVector = 4;
constexpr int kThreads = 128;

template <typename T>
__device__ __forceinline__ T sum_over_warp(T value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

template <typename T>
__device__ __forceinline__ T sum_over_block(T value) {
  __shared__ T partial[kThreads / 32];
  value = sum_over_warp(value);
  if (threadIdx.x % 32 == 0) {
    partial[threadIdx.x / 32] = value;
  }
  __syncthreads();
  T total = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    total += partial[warp];
  }
  return total;
}

template <typename T, int N>
__global__ void normalise_rows_kernel(Rows<T, N> matrix) {
  const int64_t row = blockIdx.x;
  T squares = 0;
  for_each_vector<N>(matrix.width, [&](int64_t column) {
    const Vector<T, N> value = matrix.load(row, column);
    for (int i = 0; i < N; ++i) {
      squares += value.lane[i] * value.lane[i];
    }
  });
  const T scale = rsqrtf(sum_over_block(squares) / matrix.width + T(1e-6));
  for_each_vector<N>(matrix.width, [&](int64_t column) {
    Vector<T, N> value = matrix.load(row, column);
    for (int i = 0; i < N; ++i) {
      value.lane[i] *= scale;
    }
    matrix.store(row, column, value);
  });
}

}  // namespace

cudaError_t normalise_rows(float* matrix, int64_t rows, int64_t width, cudaStream_t stream) {
  normalise_rows_kernel<float, kVector>
      <<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(Rows<float, kVector>{matrix, width});
  return cudaGetLastError();
}

}  // namespace sample

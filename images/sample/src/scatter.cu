#include "rows.cuh"
#include "sample.h"

namespace sample {
namespace {

constexpr int kVector = 4;
constexpr int kThreads = 128;

template <typename T, int N>
__device__ __forceinline__ void copy_row(const Rows<T, N>& from, const Rows<T, N>& to, int64_t row, int64_t slot) {
  for_each_vector<N>(from.width, [&](int64_t column) { to.store(slot, column, from.load(row, column)); });
}

template <typename T, int N>
__global__ void scatter_rows_kernel(Rows<T, N> from, Rows<T, N> cache, const int64_t* slots) {
  const int64_t row = blockIdx.x;
  const int64_t slot = slots[row];
  if (slot < 0) {
    return;
  }
  copy_row(from, cache, row, slot);
}

}  // namespace

cudaError_t scatter_rows(float* from, float* cache, const int64_t* slots, int64_t rows, int64_t width,
                         cudaStream_t stream) {
  scatter_rows_kernel<float, kVector><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
      Rows<float, kVector>{from, width}, Rows<float, kVector>{cache, width}, slots);
  return cudaGetLastError();
}

}  // namespace sample

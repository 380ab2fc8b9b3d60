// A store far out of bounds, four inlined templates deep, in the second of three kernels.
#include "crash.h"

template <typename T, int N>
struct Fragment {
  T lane[N];
};

template <typename T, int N>
__device__ __forceinline__ void store_fragment(T* row, long column, const Fragment<T, N>& fragment) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    row[column + n] = fragment.lane[n];  // PLANTED
  }
}

template <typename T, int N>
struct Tile {
  T* data;
  long width;

  __device__ __forceinline__ void put(long row, long column, T value) const {
    Fragment<T, N> fragment;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      fragment.lane[n] = value + T(n);
    }
    store_fragment(data + row * width, column, fragment);
  }
};

template <typename TileT, typename T>
__device__ __forceinline__ void epilogue(const TileT& tile, const long* rows, T value) {
  tile.put(rows[blockIdx.x], threadIdx.x * 4L, value);
}

template <typename T>
__global__ void rotary(Tile<T, 4> tile, const long* rows) {
  epilogue(tile, rows, T(blockIdx.x));
}

__global__ void scale(float* data, long count) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < count) {
    data[i] *= 0.5f;
  }
}

int main() {
  constexpr long kRows = 8, kWidth = 128;
  float* data = on_device<float>(kRows * kWidth);
  long* rows = on_device<long>(kRows);
  const long stray = 1L << 32;
  must(cudaMemcpy(rows + 5, &stray, sizeof stray, cudaMemcpyHostToDevice), "cudaMemcpy");
  scale<<<kRows, kWidth>>>(data, kRows * kWidth);
  rotary<float><<<kRows, kWidth / 4>>>(Tile<float, 4>{data, kWidth}, rows);
  scale<<<kRows, kWidth>>>(data, kRows * kWidth);
  return finish();
}

// Rows of a matrix on the device, read and written a small vector at a time.
#pragma once

#include <cstdint>

namespace sample {

template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
  T lane[N];
};

template <typename T, int N>
struct Rows {
  T* data;
  int64_t width;

  __device__ __forceinline__ Vector<T, N>* at(int64_t row, int64_t column) const {
    return reinterpret_cast<Vector<T, N>*>(data + row * width + column);
  }

  __device__ __forceinline__ Vector<T, N> load(int64_t row, int64_t column) const { return *at(row, column); }

  __device__ __forceinline__ void store(int64_t row, int64_t column, const Vector<T, N>& value) const {
    *at(row, column) = value;  // PLANTED: nobody has checked that the row is one of the matrix
  }
};

// Calls body(column) for each vector of a row that falls to this thread.
template <int N, typename Body>
__device__ __forceinline__ void for_each_vector(int64_t width, Body body) {
  for (int64_t column = threadIdx.x * N; column < width; column += blockDim.x * N) {
    body(column);
  }
}

}  // namespace sample

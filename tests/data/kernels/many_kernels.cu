// Sixty kernels for the comparison with nvdisasm: inlines many levels deep, call paths that share a leaf, recursion in
// templates, callees that are not inlined, loops that are unrolled, lambdas, shared memory, atomics.
#include <cstdint>

namespace leaf {
template <typename T> __device__ __forceinline__ T load(const T* p, int i) { return p[i]; }
template <typename T> __device__ __forceinline__ void store(T* p, int i, T v) { p[i] = v; }
template <typename T> __device__ __forceinline__ T square(T v) { return v * v; }
}  // namespace leaf

template <typename T, int Depth> struct Chain {
  __device__ __forceinline__ static T run(const T* p, int i, T v) {
    T left = leaf::load(p, i + Depth);
    T right = Chain<T, Depth - 1>::run(p, i * 3 + 1, leaf::square(v));
    return left + right;
  }
};
template <typename T> struct Chain<T, 0> {
  __device__ __forceinline__ static T run(const T* p, int i, T v) { return leaf::load(p, i) * v; }
};

template <typename T> __device__ __noinline__ T called(T v, int n) {
  T sum = 0;
  for (int k = 0; k < n; ++k) sum += leaf::square(v + T(k));
  return sum;
}

template <typename F> __device__ __forceinline__ void each(int n, F f) {
#pragma unroll 4
  for (int k = 0; k < n; ++k) f(k);
}

// Shape 0: two paths to one leaf. 1: a callee that stays a call. 2: unrolled lambda. 3: shared memory. 4: atomics.
template <typename T, int Depth, int Shape> __global__ void many(T* o, const T* a, const T* b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  T v = Chain<T, Depth>::run(a, i, T(1));
  if constexpr (Shape == 0) v += leaf::load(a, i) * leaf::load(b, i + 1000);
  if constexpr (Shape == 1) v += called<T>(v, n);
  if constexpr (Shape == 2) each(n, [&](int k) { v += leaf::square(leaf::load(b, i + k)); });
  if constexpr (Shape == 3) {
    __shared__ T tile[256];
    leaf::store(tile, int(threadIdx.x), v);
    __syncthreads();
    v = leaf::load(tile, int(blockDim.x - 1 - threadIdx.x));
  }
  if constexpr (Shape == 4) atomicAdd(o + n, v);
  leaf::store(o, i, v);
}

#define SHAPES(T, D)                                                 \
  template __global__ void many<T, D, 0>(T*, const T*, const T*, int); \
  template __global__ void many<T, D, 1>(T*, const T*, const T*, int); \
  template __global__ void many<T, D, 2>(T*, const T*, const T*, int); \
  template __global__ void many<T, D, 3>(T*, const T*, const T*, int); \
  template __global__ void many<T, D, 4>(T*, const T*, const T*, int);
#define DEPTHS(T) SHAPES(T, 1) SHAPES(T, 3) SHAPES(T, 6) SHAPES(T, 9)
DEPTHS(float)
DEPTHS(double)
DEPTHS(int)

// What every sample needs: device memory, and an error told the way programs tell it.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

// Prints an error the way most programs do and returns the exit status that goes with it.
inline int told(cudaError_t status, const char* what) {
  if (status == cudaSuccess) {
    return 0;
  }
  std::fprintf(stderr, "CUDA error: %s (%s, in %s)\n", cudaGetErrorString(status), cudaGetErrorName(status), what);
  return 1;
}

inline void must(cudaError_t status, const char* what) {
  if (told(status, what)) {
    std::exit(1);
  }
}

// Returns zeroed device memory for `count` values.
template <typename T>
T* on_device(std::size_t count) {
  T* data = nullptr;
  must(cudaMalloc(&data, count * sizeof(T)), "cudaMalloc");
  must(cudaMemset(data, 0, count * sizeof(T)), "cudaMemset");
  return data;
}

// Waits for all kernels; as in a server, this is where their errors are noticed.
inline int finish() {
  if (int status = told(cudaGetLastError(), "the launch")) {
    return status;
  }
  return told(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

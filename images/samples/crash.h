// What every sample needs: device memory, and an error told the way programs tell it.
#pragma once
#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <thread>

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

// Waits for all kernels; as in a server, this is where their errors are noticed. Where GPU core dumps are armed, driver 580
// notices a store of a warp that has exited 50 ms later than that, which a server lives to see.
inline int finish() {
  if (int status = told(cudaGetLastError(), "the launch")) {
    return status;
  }
  if (int status = told(cudaDeviceSynchronize(), "cudaDeviceSynchronize")) {
    return status;
  }
  if (std::getenv("CUDA_ENABLE_COREDUMP_ON_EXCEPTION")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  return told(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

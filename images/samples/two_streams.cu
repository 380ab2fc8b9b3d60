// A guilty kernel on one stream while an innocent one runs on another: the core must blame only the first.
#include "crash.h"

__global__ void innocent(float* x, long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
    x[threadIdx.x] += 1.0f;
  }
}

__global__ void guilty(float* x, long far) {
  if (threadIdx.x == 17) {
    x[far] = 1.0f;  // PLANTED
  }
}

int main() {
  float* x = on_device<float>(256);
  cudaStream_t one, other;
  must(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking), "cudaStreamCreate");
  must(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "cudaStreamCreate");
  innocent<<<2, 64, 0, one>>>(x, 2'000'000'000LL);  // about a second
  guilty<<<1, 64, 0, other>>>(x + 128, 1L << 36);
  return finish();
}

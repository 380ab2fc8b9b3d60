// A read of device memory that nothing has ever written.
#include "crash.h"

__global__ void add_bias(const float* bias, float* x) {
  x[threadIdx.x] = bias[threadIdx.x] + 1.0f;  // PLANTED
}

int main() {
  float* bias = nullptr;
  must(cudaMalloc(&bias, 128 * sizeof *bias), "cudaMalloc");  // and no cudaMemset
  float* x = on_device<float>(128);
  add_bias<<<1, 128>>>(bias, x);
  return finish();
}

// Two warps exchange values through shared memory without a barrier between write and read.
#include "crash.h"

__global__ void reverse(float* x) {
  __shared__ float tile[128];
  tile[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = tile[127 - threadIdx.x];  // PLANTED
}

int main() {
  float* x = on_device<float>(128);
  reverse<<<1, 128>>>(x);
  return finish();
}

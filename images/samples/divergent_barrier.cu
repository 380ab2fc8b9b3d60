// A barrier that only some threads of a warp reach.
#include "crash.h"

__global__ void normalise(float* x, int count) {
  if (threadIdx.x < count) {
    __syncthreads();  // PLANTED
  }
  x[threadIdx.x] = 1.0f;
}

int main() {
  float* x = on_device<float>(64);
  normalise<<<1, 64>>>(x, 48);
  return finish();
}

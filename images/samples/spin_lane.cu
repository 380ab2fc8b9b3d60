// One lane of one warp never returns, and the rest of its block waits for it at a barrier.
#include "crash.h"

__global__ void reduce(volatile int* flag, float* x) {
  if (blockIdx.x == 2 && threadIdx.x == 37) {
    while (*flag == 0) {  // PLANTED
    }
  }
  __syncthreads();
  x[blockIdx.x * blockDim.x + threadIdx.x] = 1.0f;
}

int main() {
  int* flag = on_device<int>(1);
  float* x = on_device<float>(8 * 128);
  reduce<<<8, 128>>>(flag, x);
  std::fprintf(stderr, "waiting for the reduction\n");
  return finish();
}

// A kernel that never returns: every block waits for a flag that nobody sets.
#include "crash.h"

__device__ __forceinline__ void wait_for(volatile int* flag) {
  while (*flag == 0) {  // PLANTED
  }
}

__global__ void exchange(volatile int* flag, float* x) {
  wait_for(flag);
  x[blockIdx.x * blockDim.x + threadIdx.x] = 1.0f;
}

int main() {
  int* flag = on_device<int>(1);
  float* x = on_device<float>(4 * 64);
  exchange<<<4, 64>>>(flag, x);
  std::fprintf(stderr, "waiting for the exchange\n");
  return finish();
}

// A trap instruction in one thread.
#include "crash.h"

__global__ void refuse(int* x) {
  if (threadIdx.x == 3) {
    __trap();  // PLANTED
  }
  x[threadIdx.x] = 1;
}

int main() {
  int* x = on_device<int>(64);
  refuse<<<1, 64>>>(x);
  return finish();
}

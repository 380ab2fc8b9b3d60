// A store that nobody waits for: its warp has usually exited when the fault is seen, and the SM alone remembers it.
#include "crash.h"

__global__ void fire_and_forget(int* x, long far) {
  if (blockIdx.x == 9 && threadIdx.x == 0) {
    x[far] = 1;  // PLANTED
  }
}

int main() {
  int* x = on_device<int>(1024);
  fire_and_forget<<<64, 32>>>(x, 1L << 36);
  return finish();
}

// A recursion far deeper than the stack a thread has.
#include "crash.h"

__device__ __noinline__ int descend(int depth, volatile int* x) {
  volatile int frame[64];
  frame[depth & 63] = depth;  // PLANTED
  return depth ? descend(depth - 1, x) + frame[x[0] & 63] : x[0];
}

__global__ void walk_tree(int* x) { x[0] = descend(1 << 20, x); }

int main() {
  int* x = on_device<int>(1);
  walk_tree<<<1, 1>>>(x);
  return finish();
}

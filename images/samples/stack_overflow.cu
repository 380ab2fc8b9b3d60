// A recursion far deeper than the stack a thread has.
#include "crash.h"

__device__ __noinline__ int descend(int depth, volatile int* x) {
  volatile int frame[1024];  // its lowest word is written first, so that it is this store that leaves the stack
  frame[0] = depth;  // PLANTED
  return depth ? descend(depth - 1, x) + frame[x[0] & 1023] : x[0];
}

__global__ void walk_tree(int* x) { x[0] = descend(1 << 20, x); }

int main() {
  int* x = on_device<int>(1);
  walk_tree<<<1, 1>>>(x);
  return finish();
}

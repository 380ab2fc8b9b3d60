// A block of more threads than any GPU takes: the launch itself is refused, and no kernel ever runs.
#include "crash.h"

__global__ void attention(float* x) { x[threadIdx.x] = 1.0f; }

int main() {
  float* x = on_device<float>(4096);
  attention<<<1, 4096>>>(x);  // PLANTED
  return finish();
}

// Nothing is wrong here: whoever finds a fault in this program has made it up.
#include "crash.h"

__global__ void add_one(float* x, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) {
    x[i] += 1.0f;
  }
}

int main() {
  float* x = on_device<float>(1000);
  add_one<<<4, 256>>>(x, 1000);
  return finish();
}

// Machine code for another GPU and no PTX to make any from: built for an architecture that the GPU is not.
#include "crash.h"

__global__ void embed(float* x) { x[threadIdx.x] = 1.0f; }

int main() {
  float* x = on_device<float>(32);
  embed<<<1, 32>>>(x);  // PLANTED
  return finish();
}

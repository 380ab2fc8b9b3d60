// The first story: a kernel writes far below its array, a good kernel follows, and the copy after both reports it.
#include "crash.h"

__global__ void broken(int* data, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 2 * count) {
    data[i - 1'000'000'000] = i;  // PLANTED
  }
}

__global__ void sound(int* data, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) {
    data[i] = i;
  }
}

int main() {
  constexpr int kCount = 100;
  int* data = on_device<int>(kCount);
  int copy[kCount];
  broken<<<1, 256>>>(data, kCount);
  sound<<<1, 256>>>(data, kCount);
  return told(cudaMemcpy(copy, data, sizeof copy, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

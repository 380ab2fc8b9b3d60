// An assertion in device code that does not hold.
#include <cassert>

#include "crash.h"

__global__ void check_tokens(const int* tokens, int vocabulary) {
  assert(tokens[threadIdx.x] < vocabulary);  // PLANTED
}

int main() {
  int* tokens = on_device<int>(32);
  const int wild = 1 << 20;
  must(cudaMemcpy(tokens + 7, &wild, sizeof wild, cudaMemcpyHostToDevice), "cudaMemcpy");
  check_tokens<<<1, 32>>>(tokens, 32'000);
  return finish();
}

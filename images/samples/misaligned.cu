// A 16-byte store to an address that is a multiple of 4.
#include "crash.h"

__global__ void widen(char* bytes) {
  reinterpret_cast<double2*>(bytes + 4)[threadIdx.x] = make_double2(1.0, 2.0);  // PLANTED
}

int main() {
  char* bytes = on_device<char>(4096);
  widen<<<1, 32>>>(bytes);
  return finish();
}

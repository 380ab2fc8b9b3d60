// The GPU is well; the host reads through a null pointer. No GPU core comes of it, and that must be said.
#include "crash.h"

__global__ void fill(float* x) { x[threadIdx.x] = 1.0f; }

struct Request {
  volatile int tokens;
};

__attribute__((noinline)) int tokens_of(const Request* request) {
  return request->tokens;  // PLANTED
}

int main(int argc, char**) {
  float* x = on_device<float>(32);
  fill<<<1, 32>>>(x);
  if (int status = finish()) {
    return status;
  }
  const Request* request = argc > 1000 ? new Request{1} : nullptr;
  return tokens_of(request);
}

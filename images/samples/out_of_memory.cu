// More memory than any GPU has.
#include "crash.h"

int main() {
  void* cache = nullptr;
  must(cudaMalloc(&cache, std::size_t{1} << 50), "cudaMalloc of the cache");  // PLANTED
  return finish();
}

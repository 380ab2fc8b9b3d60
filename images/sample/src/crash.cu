// Fills a small cache through libsample.so, one slot of which lies far outside of it. With --good all slots are right.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "sample.h"

namespace {

constexpr int64_t kRows = 16;
constexpr int64_t kWidth = 1024;
constexpr int64_t kSlots = 64;
constexpr int64_t kBadRow = 11;
constexpr int64_t kBadSlot = int64_t{1} << 30;  // 4 TiB past the cache: no allocation reaches there

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    std::fprintf(stderr, "CUDA error: %s (%s, in %s)\n", cudaGetErrorString(status), cudaGetErrorName(status), what);
    std::exit(1);
  }
}

template <typename T>
T* on_device(const std::vector<T>& values) {
  T* pointer = nullptr;
  check(cudaMalloc(&pointer, values.size() * sizeof(T)), "cudaMalloc");
  check(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return pointer;
}

}  // namespace

int main(int argc, char** argv) {
  const bool good = argc > 1 && std::strcmp(argv[1], "--good") == 0;
  std::vector<int64_t> slots(kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    slots[row] = row % 5 == 4 ? -1 : row * 3;
  }
  if (!good) {
    slots[kBadRow] = kBadSlot;
  }
  float* from = on_device(std::vector<float>(kRows * kWidth, 1.5f));
  float* cache = on_device(std::vector<float>(kSlots * kWidth, 0.0f));
  int64_t* slots_on_device = on_device(slots);

  check(sample::normalise_rows(from, kRows, kWidth, nullptr), "normalise_rows");
  check(sample::scatter_rows(from, cache, slots_on_device, kRows, kWidth, nullptr), "scatter_rows");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // as in a server, the news comes at the next wait
  std::printf("filled %lld rows\n", static_cast<long long>(kRows));
  return 0;
}

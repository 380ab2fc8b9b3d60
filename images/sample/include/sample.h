// What libsample.so offers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sample {

// Divides each row by the root of the mean of its squares. One block to a row.
cudaError_t normalise_rows(float* matrix, int64_t rows, int64_t width, cudaStream_t stream);

// Copies row i of `from` to row slots[i] of `cache`, as a paged cache is filled; a negative slot is skipped.
// The caller answers for slots being smaller than the cache is long.
cudaError_t scatter_rows(float* from, float* cache, const int64_t* slots, int64_t rows, int64_t width,
                         cudaStream_t stream);

}  // namespace sample

// Tiles that are moved through tensor maps, for tests of what is said of them; tile_sm90.cubin is this file, by
//   nvcc -arch=sm_90 -cubin -lineinfo -o tile_sm90.cubin tile.cu
#include <cuda.h>
#include <cstdint>

__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__global__ void project(const __grid_constant__ CUtensorMap weights, float* out, int row, int columns) {
  __shared__ alignas(128) float tile[32][32];
  __shared__ alignas(8) uint64_t full;
  unsigned arrived = shared_address(&full), to = shared_address(&tile[0][0]);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(arrived));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(arrived), "r"(4096));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&weights), "r"((int)blockIdx.x * 32), "r"(row + (int)blockIdx.y * 32), "r"(arrived)
        : "memory");
  }
  __syncthreads();
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra W; }" ::"r"(arrived));
  out[blockIdx.x * columns + threadIdx.x] = tile[0][threadIdx.x];
}

__global__ void scatter(const CUtensorMap* maps, float* in, int which) {
  __shared__ alignas(128) float tile[32];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(maps + which),
                 "r"((int)blockIdx.x * 32), "r"(7), "r"(which), "r"(shared_address(tile))
                 : "memory");
}

// The first translation unit of the separate compilation.
__device__ float elsewhere(float v);
__device__ __forceinline__ float half_of(float v) { return v * 0.5f; }
__global__ void first(float* p) { p[threadIdx.x] = elsewhere(half_of(p[threadIdx.x])); }

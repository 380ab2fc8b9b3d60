// The second translation unit of the separate compilation: its function is called from the first one's kernel.
__device__ __forceinline__ float twice(float v) { return v + v; }
__device__ __noinline__ float elsewhere(float v) { return twice(v) * 3.0f; }
__global__ void second(float* p) { p[threadIdx.x] = elsewhere(twice(p[threadIdx.x])); }

__device__ __forceinline__ float ld(const float* p, int i) {
  return p[i];
}
__device__ __forceinline__ float left(const float* p, int i) {
  return ld(p, i);
}
__device__ __forceinline__ float right(const float* p, int i) {
  return ld(p, i + 1000);
}
__global__ void pick_both(float* o, const float* a, const float* b) {
  int i = threadIdx.x;
  o[i] =
    left(a, i) +
    right(b, i);
}

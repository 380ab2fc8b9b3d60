// Walks a list: the next place is loaded behind the access, for the next turn. nvcc 13.0 -O2 -lineinfo -arch=sm_90 -cubin -o walk_sm90.cubin walk.cu, in /src/explain.
__global__ void walk(const int* next, const float* in, float* out, int n) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
  #pragma unroll 1
  for (int k = 0; k < n; ++k) {
    sum += in[at];
    at = next[at];
  }
  out[threadIdx.x] = sum;
}

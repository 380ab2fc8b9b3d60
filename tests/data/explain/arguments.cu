// Kernels that read their arguments at an index. tests/gpucore/explain/test_names.py looks at them. Built for sm_120, by
// nvcc 13.0 in /src/explain:
//   nvcc -arch=sm_120 -cubin -lineinfo -o arguments_sm120.cubin arguments.cu

struct Tables {
  const float* data[4];
  int other[4];
};

__global__ void chosen(float* out, Tables tables, const int* table) {
  out[threadIdx.x] = tables.data[blockIdx.x & 3][table[threadIdx.x]];
}

__global__ void either(float* out, const float* left, const float* right, int flag) {
  const float* from = flag > 2 ? left : right;
  out[threadIdx.x] = from[threadIdx.x * 3];
}

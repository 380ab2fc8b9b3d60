// A store that some threads of a warp pass by. nvcc 13.0 -O2 -lineinfo -arch=sm_90 -cubin -o branch_sm90.cubin branch.cu, in /src/explain.
__global__ void some(float* out, const int* flags, float* all, int stride, int far) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int flag = flags[i];
  if (flag > 0) {
#pragma unroll 1
    for (int k = 0; k < flag; k++) __nanosleep(20);
    out[(long long)i * stride + far] = 1.f;  // fails
  }
  __syncwarp();
  all[i] = flag;
}

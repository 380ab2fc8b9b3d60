// One program, one planted state per argument. Each prints what it plants: states NAME
#include <cooperative_groups.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
namespace cg = cooperative_groups;

#define MUST(call)                                                                      \
  do {                                                                                  \
    cudaError_t e_ = (call);                                                            \
    if (e_ != cudaSuccess) {                                                            \
      printf("%s: %s\n", #call, cudaGetErrorString(e_));                                \
      fflush(stdout);                                                                   \
      _exit(2);                                                                         \
    }                                                                                   \
  } while (0)

__device__ __forceinline__ void wait_for(volatile int* flag) {
  while (*flag == 0) {  // PLANTED wait
  }
}

// Warp 0 waits for a flag that nobody sets; the other warps wait for it at a barrier. What follows the barrier differs.
__global__ void then_store(volatile int* flag, int* out) {
  if (threadIdx.x < 32) wait_for(flag);
  __syncthreads();  // PLANTED barrier
  out[threadIdx.x] = 1;
}
__global__ void then_shared(volatile int* flag, int* out) {
  __shared__ int s[128];
  s[threadIdx.x] = threadIdx.x;
  if (threadIdx.x < 32) wait_for(flag);
  __syncthreads();  // PLANTED barrier
  out[threadIdx.x] = s[threadIdx.x ^ 64];
}
__global__ void then_exit(volatile int* flag, int*) {
  if (threadIdx.x < 32) wait_for(flag);
  __syncthreads();  // PLANTED barrier
}
__global__ void then_again(volatile int* flag, int* out) {
  if (threadIdx.x < 32) wait_for(flag);
  __syncthreads();  // PLANTED barrier
  __syncthreads();
  out[threadIdx.x] = 1;
}
__global__ void then_branch(volatile int* flag, int* out, int n) {
  int sum = 0;
  for (int i = 0; i < n; ++i) {
    if (threadIdx.x < 32) wait_for(flag + i);
    __syncthreads();  // PLANTED barrier
    if (out[i] > i) sum += out[i + threadIdx.x];
  }
  out[threadIdx.x] = sum;
}
__global__ void then_compute(volatile int* flag, float* out, float a, float b) {
  float x = out[threadIdx.x];
  if (threadIdx.x < 32) wait_for(flag);
  __syncthreads();  // PLANTED barrier
  for (int k = 0; k < 6; ++k) x = x * a + b;
  out[threadIdx.x] = x;
}
__global__ void counted(volatile int* flag, int* out) {
  if (threadIdx.x < 32) wait_for(flag);
  out[threadIdx.x] = __syncthreads_count(threadIdx.x & 1);  // PLANTED barrier
}
__global__ void any_of(volatile int* flag, int* out) {
  if (threadIdx.x < 32) wait_for(flag);
  if (__syncthreads_or(out[threadIdx.x])) out[threadIdx.x] = 5;  // PLANTED barrier
}
__global__ void named(int* out) {
  if (threadIdx.x < 64) asm volatile("bar.sync 3, 128;" ::: "memory");  // PLANTED barrier
  else asm volatile("bar.sync 4, 96;" ::: "memory");
  out[threadIdx.x] = 1;
}
__global__ void __cluster_dims__(2, 1, 1) in_cluster(volatile int* flag, int* out) {
  if (blockIdx.x == 1) wait_for(flag);
  cg::this_cluster().sync();  // PLANTED barrier
  out[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}
__global__ void in_grid(volatile int* flag, int* out) {
  if (blockIdx.x == 1) wait_for(flag);
  cg::this_grid().sync();  // PLANTED barrier
  out[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}
__global__ void in_warp(volatile int* flag, int* out) {
  if (threadIdx.x % 32 < 5) wait_for(flag);
  __syncwarp();  // PLANTED barrier
  out[threadIdx.x] = 1;
}
__global__ void in_mask(volatile int* flag, int* out) {
  if (threadIdx.x % 32 < 5) wait_for(flag);
  else if (threadIdx.x % 32 < 9) __syncwarp(0x1ff);  // PLANTED barrier
  out[threadIdx.x] = __shfl_down_sync(0xffffffff, out[threadIdx.x], 1);
}
__global__ void rejoin(volatile int* flag, int* out) {
  int v = 0;
  if (threadIdx.x % 32 == 7) {
    wait_for(flag);
    v = out[0];
  } else if (threadIdx.x % 32 > 20) {
    v = out[1] * 3;
  }
  out[threadIdx.x] = v + 1;  // PLANTED rejoin
}
__global__ void gone(volatile int* flag, int* out) {  // half of the lanes have exited
  if (threadIdx.x % 32 >= 16) return;
  wait_for(flag);
  out[threadIdx.x] = 1;
}
__global__ void past_barrier(volatile int* flag, int* out) {  // everybody passed the barrier: nobody waits at it
  __syncthreads();
  wait_for(flag);
  out[threadIdx.x] = 1;
}
__device__ __noinline__ int callee(volatile int* flag, int k) {
  int seen = 0;
  while (flag[k] != 7) ++seen;  // PLANTED wait
  return seen;
}
__global__ void in_callee(volatile int* flag, int* out) { out[threadIdx.x] = callee(flag, 1 + blockIdx.x) + 1; }
__global__ void by_clock(int* out) {
  long long begin = clock64();
  while (clock64() - begin < (1ll << 40)) {  // PLANTED wait
  }
  out[threadIdx.x] = 1;
}

// Faults.
template <class T>
__device__ __forceinline__ void put(T* p, long i, T v) {
  p[i] = v;  // PLANTED store
}
template <class T, int N>
__device__ __forceinline__ void put_row(T* p, long row, T v) {
  for (int k = 0; k < N; ++k) put(p, row * N + k, v);
}
template <class T, int N>
__global__ void inlined(T* q, int rows, long stray) {  // the warp has exited before the store fails
  long row = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (row < rows) put_row<T, N>(q, row == 77 ? row + stray : row, T(row));
}
__global__ void gather(const float* x, const int* at, float* out) {  // a load: the warp waits for its value
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = x[at[i]] + 1.f;  // PLANTED load
}
__global__ void misaligned(char* p) {
  reinterpret_cast<double2*>(p + 12)[threadIdx.x] = make_double2(1, 2);  // PLANTED misaligned
}
__global__ void trapped(int* p) {
  if (threadIdx.x == 3) __trap();  // PLANTED trap
  p[threadIdx.x] = 1;
}
__global__ void asserted(int* p) {
  assert(p[threadIdx.x] != 0 && "planted");  // PLANTED assert
}
__device__ __noinline__ int deep(int n, volatile int* p) {
  volatile int a[64];
  a[n & 63] = n;  // PLANTED stack
  return n ? deep(n - 1, p) + a[p[0] & 63] : p[0];
}
__global__ void recursive(int* p) { p[0] = deep(1 << 20, p); }
__global__ void scale(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 0.5f;
}
// A store that fails while its warp lives on: is that warp marked?
__global__ void lives_on(int* p, long far, long long cycles) {
  if (threadIdx.x == 40) p[far] = 1;  // PLANTED store
  long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
  p[threadIdx.x] = 2;
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  auto is = [&](const char* name) { return !strcmp(what, name); };
  int *flag, *p;
  MUST(cudaMalloc(&flag, 4096));
  MUST(cudaMemset(flag, 0, 4096));
  MUST(cudaMalloc(&p, 1 << 20));
  MUST(cudaMemset(p, 0, 1 << 20));
  float* f = reinterpret_cast<float*>(p);
  printf("{\"state\": \"%s\", \"flag\": \"%p\", \"p\": \"%p\"}\n", what, (void*)flag, (void*)p);
  fflush(stdout);
  const long far = 1L << 34;
  if (is("then_store")) then_store<<<2, 128>>>(flag, p);
  else if (is("then_shared")) then_shared<<<2, 128>>>(flag, p);
  else if (is("then_exit")) then_exit<<<2, 128>>>(flag, p);
  else if (is("then_again")) then_again<<<2, 128>>>(flag, p);
  else if (is("then_branch")) then_branch<<<2, 128>>>(flag, p, 8);
  else if (is("then_compute")) then_compute<<<2, 128>>>(flag, f, 2.f, 1.f);
  else if (is("counted")) counted<<<2, 128>>>(flag, p);
  else if (is("any_of")) any_of<<<2, 128>>>(flag, p);
  else if (is("named")) named<<<2, 128>>>(p);
  else if (is("in_cluster")) in_cluster<<<2, 64>>>(flag, p);
  else if (is("in_grid")) {
    void* args[] = {&flag, &p};
    MUST(cudaLaunchCooperativeKernel((void*)in_grid, dim3(4), dim3(64), args, 0, nullptr));
  } else if (is("in_warp")) in_warp<<<2, 64>>>(flag, p);
  else if (is("in_mask")) in_mask<<<2, 64>>>(flag, p);
  else if (is("rejoin")) rejoin<<<2, 64>>>(flag, p);
  else if (is("gone")) gone<<<2, 64>>>(flag, p);
  else if (is("past_barrier")) past_barrier<<<2, 64>>>(flag, p);
  else if (is("in_callee")) in_callee<<<2, 64>>>(flag, p);
  else if (is("by_clock")) by_clock<<<2, 64>>>(p);
  else if (is("inlined")) inlined<float, 4><<<8, 128>>>(f, 1024, far);
  else if (is("gather")) {
    int at[256];
    for (int i = 0; i < 256; ++i) at[i] = i;
    at[2 * 64 + 37] = 1 << 30;
    MUST(cudaMemcpy(p + 4096, at, sizeof at, cudaMemcpyHostToDevice));
    gather<<<4, 64>>>(f, p + 4096, f + 8192);
  } else if (is("misaligned")) misaligned<<<1, 32>>>(reinterpret_cast<char*>(p));
  else if (is("trapped")) trapped<<<1, 64>>>(p);
  else if (is("asserted")) asserted<<<1, 32>>>(p);
  else if (is("recursive")) recursive<<<1, 1>>>(p);
  else if (is("graph")) {
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t e;
    MUST(cudaStreamCreate(&s));
    MUST(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    scale<<<4, 64, 0, s>>>(f, 256);
    inlined<float, 4><<<8, 128, 0, s>>>(f, 1024, far);
    scale<<<4, 64, 0, s>>>(f, 256);
    MUST(cudaStreamEndCapture(s, &g));
    MUST(cudaGraphInstantiate(&e, g, 0));
    MUST(cudaGraphLaunch(e, s));
  } else if (is("lives_on")) lives_on<<<1, 64>>>(p, far, 200000000);
  else if (is("lives_on_many")) lives_on<<<400, 256>>>(p, far, 20000000);
  else return printf("unknown state\n"), 2;
  cudaError_t e = cudaGetLastError();
  printf("launched: %s\n", cudaGetErrorString(e));
  fflush(stdout);
  if (e == cudaSuccess) e = cudaDeviceSynchronize();
  sleep(getenv("LINGER") ? atoi(getenv("LINGER")) : 0);  // the driver's thread may still be writing
  printf("returned: %s\n", cudaGetErrorString(e));
  return e != cudaSuccess;
}

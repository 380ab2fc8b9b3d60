// Code that makes nvcc add functions of its own: division, square root and libm out of line with -rdc=true and -G, the
// device runtime for a launch from a kernel, the atomics of -G, implicit constructors, printf, assert, malloc.
#include <cassert>
#include <cstdio>

extern __device__ float far(float);

struct Base {
  float* at;
  __device__ Base(float* p, int i) : at(p + i) {}
};
struct Derived : Base {
  using Base::Base;
};

__global__ void child(float* o) { o[threadIdx.x] = far(o[threadIdx.x]); }
__global__ void parent(float* o) { child<<<1, 32>>>(o); }
__global__ void divides(long long* l, unsigned long long* u, double* d, float* f) {
  l[0] = l[1] / l[2] + l[3] % l[4];
  u[0] = u[1] / u[2] + u[3] % u[4];
  d[0] = d[1] / d[2] + sqrt(d[3]);
  f[0] = f[1] / f[2] + sqrtf(f[3]);
}
__global__ void libm(double* d, float* f) {
  d[0] = pow(d[1], d[2]) + sin(d[3]) + lgamma(d[4]) + fmod(d[5], 3.0) + jn(3, d[6]) + erfcinv(d[7]);
  f[0] = sinf(f[1]) + tanf(f[2]) + powf(f[3], f[4]);
}
__global__ void atomics(int* i, float* f, double* d, unsigned long long* u) {
  atomicAdd(i, 1);
  atomicMax(i, 3);
  atomicAdd(f, 1.0f);
  atomicAdd(d, 1.0);
  atomicCAS(u, 1ull, 2ull);
}
__global__ void inherits(float* o, int i) { *Derived(o, i).at = 1; }
__global__ void prints(int* p) {
  printf("%d\n", p[0]);
  assert(p[1] == 3);
  int* q = static_cast<int*>(malloc(p[2]));
  q[p[3]] = 1;
  p[4] = q[p[5]];
  free(q);
}
__global__ void empty() {}
__global__ void traps() { __trap(); }

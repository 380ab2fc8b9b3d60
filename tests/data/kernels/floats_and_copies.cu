// Floating point of all widths, matrices, copies, calls and textures: compared with nvdisasm as integers.cu is.
#include <cstdio>
#include <cassert>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_fp4.h>
#include <mma.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <math.h>
namespace cg = cooperative_groups;
#define K __global__ void
K f32(float *o, const float *a, const float *b, int n) { int i = threadIdx.x; float x = a[i], y = b[i];
 o[i] = x + y; o[i + n] = x * y; o[i + 2 * n] = fmaf(x, y, 3.f); o[i + 3 * n] = x / y; o[i + 4 * n] = sqrtf(x); o[i + 5 * n] = expf(x); o[i + 6 * n] = logf(x); o[i + 7 * n] = sinf(x); o[i + 8 * n] = powf(x, y); o[i + 9 * n] = tanhf(x);
 o[i + 10 * n] = fminf(x, y); o[i + 11 * n] = fmaxf(fmaxf(x, y), 2.f); o[i + 12 * n] = x < y ? x : n; o[i + 13 * n] = floorf(x); o[i + 14 * n] = rintf(y); o[i + 15 * n] = rsqrtf(x); o[i + 16 * n] = (int)x; o[i + 17 * n] = (unsigned)y; o[i + 18 * n] = (long long)x; o[i + 19 * n] = __float2int_rd(x); o[i + 20 * n] = __int_as_float(n); o[i + 21 * n] = erff(x); o[i + 22 * n] = fmodf(x, y); o[i + 23 * n] = isnan(x); o[i + 24 * n] = __saturatef(x); o[i + 25 * n] = ldexpf(x, n); o[i + 26 * n] = __fdividef(x, y); o[i + 27 * n] = truncf(x); o[i + 28 * n] = copysignf(x, y); o[i + 29 * n] = cbrtf(x); o[i + 30 * n] = lgammaf(x); }
K f2(float2 *o, const float2 *a, const float4 *b, int n) { int i = threadIdx.x; float2 x = a[i], y = a[i + n]; float4 z = b[i];
 o[i] = make_float2(x.x * y.x + z.x, x.y * y.y + z.y); o[i + n] = make_float2(x.x + y.x, x.y + y.y); o[i + 2 * n] = make_float2(x.x * y.x, x.y * y.y);
#if __CUDA_ARCH__ >= 1000
 o[i + 3 * n] = __ffma2_rn(x, y, x); o[i + 4 * n] = __fadd2_rn(x, y); o[i + 5 * n] = __fmul2_rn(x, y);
#endif
}
K f64(double *o, const double *a, const double *b, int n) { int i = threadIdx.x; double x = a[i], y = b[i]; o[i] = x + y; o[i + n] = x * y; o[i + 2 * n] = fma(x, y, 3.); o[i + 3 * n] = x / y; o[i + 4 * n] = sqrt(x); o[i + 5 * n] = exp(x); o[i + 6 * n] = x < y ? x : n; o[i + 7 * n] = floor(x); o[i + 8 * n] = (int)x; o[i + 9 * n] = (long long)y; o[i + 10 * n] = (float)x; o[i + 11 * n] = fmin(x, y); o[i + 12 * n] = rsqrt(x); o[i + 13 * n] = (unsigned long long)y; }
K f16(__half2 *o, const __half2 *a, const __nv_bfloat162 *b, __nv_bfloat162 *p, float *f, int n) { int i = threadIdx.x; __half2 x = a[i], y = a[i + n]; __nv_bfloat162 u = b[i], v = b[i + n];
 o[i] = __hadd2(x, y); o[i + n] = __hmul2(x, y); o[i + 2 * n] = __hfma2(x, y, x); o[i + 3 * n] = __hmax2(x, y); o[i + 4 * n] = h2exp(x); o[i + 5 * n] = h2sqrt(x); o[i + 6 * n] = __hgt2(x, y); o[i + 7 * n] = __hlt2(x, y); o[i + 8 * n] = __habs2(x); o[i + 9 * n] = __hneg2(x); f[i] = __half2float(x.x) + __low2float(y); o[i + 10 * n] = __floats2half2_rn(f[1], f[2]); o[i + 11 * n] = h2tanh(x); o[i + 12 * n] = h2rcp(x); o[i + 13 * n].x = (__half)(n); o[i + 14 * n].x = __hdiv(x.x, y.x); f[9] = __half2int_rz(x.x) + __half2uint_rd(y.x); o[i + 15 * n] = __hfma2_relu(x, y, x); o[i + 16 * n] = __hmin2_nan(x, y); if (__hbeq2(x, y)) f[3] = 4; if (__hlt(x.x, y.y)) f[4] = 5; o[i + 17 * n] = __hfma2_sat(x, y, x);
#if __CUDA_ARCH__ >= 800
 p[i] = __hadd2(u, v); p[i + n] = __hfma2(u, v, u); p[i + 2 * n] = __hmax2(u, v); p[i + 3 * n] = h2exp(u); p[i + 4 * n] = __hgt2(u, v); f[i + n] = __low2float(u); p[i + 5 * n] = __floats2bfloat162_rn(f[3], f[4]); p[i + 6 * n] = __hmul2(u, v);
#endif
}
K f8(__nv_fp8_e4m3 *o, __nv_fp8_e5m2 *p, float *f, __half *h, __nv_fp8x4_e4m3 *q, float4 *g, __nv_bfloat16 *b) { int i = threadIdx.x; o[i] = __nv_fp8_e4m3(f[i]); p[i] = __nv_fp8_e5m2(f[i]); f[i + 99] = float(o[i + 5]); h[i] = __half(p[i]); q[i] = __nv_fp8x4_e4m3(g[i]); g[i + 9] = float4(q[i + 3]); o[i + 3] = __nv_fp8_e4m3(b[i]);
#if __CUDA_ARCH__ >= 1000
 __nv_fp4x4_e2m1 r(g[i]); g[i + 77] = float4(r);
#endif
}
using namespace nvcuda;
K mm(float *c, const __half *a, const __half *b) { wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa; wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb; wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc; wmma::fill_fragment(fc, 0.f); wmma::load_matrix_sync(fa, a, 16); wmma::load_matrix_sync(fb, b, 16); wmma::mma_sync(fc, fa, fb, fc); wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major); }
K mmi(int *c, const signed char *a, const signed char *b) { wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> fa; wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::col_major> fb; wmma::fragment<wmma::accumulator, 16, 16, 16, int> fc; wmma::fill_fragment(fc, 0); wmma::load_matrix_sync(fa, a, 16); wmma::load_matrix_sync(fb, b, 16); wmma::mma_sync(fc, fa, fb, fc); wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major); }
K mmh(__half *c, const __half *a, const __half *b) { wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa; wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb; wmma::fragment<wmma::accumulator, 16, 16, 16, __half> fc; wmma::fill_fragment(fc, __half(0)); wmma::load_matrix_sync(fa, a, 16); wmma::load_matrix_sync(fb, b, 16); wmma::mma_sync(fc, fa, fb, fc); wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major); }
K ldm(unsigned *o, const __half *a) { __shared__ __half s[1024]; s[threadIdx.x] = a[threadIdx.x]; __syncthreads(); unsigned x[4]; unsigned p = __cvta_generic_to_shared(s + threadIdx.x * 8); asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(p)); asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(p)); asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(x[2]) : "r"(p));
 for (int k = 0; k < 4; k++) o[threadIdx.x * 4 + k] = x[k]; 
#if __CUDA_ARCH__ >= 800
 float d[4] = {}; asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[0]), "r"(x[1])); asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[0]), "r"(x[1])); double e[2] = {}; asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+d"(e[0]), "+d"(e[1]) : "d"(e[0]), "d"(e[1])); asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[0]), "r"(x[1])); o[threadIdx.x] = d[0] + d[1] + d[2] + d[3] + e[0] + e[1] + x[0];
#endif
#if __CUDA_ARCH__ >= 900
 asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(p), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]));
#endif
}
K pipe(float *o, const float *a, int n) { __shared__ float s[2][256]; 
#if __CUDA_ARCH__ >= 800
 __shared__ cuda::barrier<cuda::thread_scope_block> bar; auto t = cg::this_thread_block(); if (t.thread_rank() == 0) init(&bar, blockDim.x); t.sync(); cuda::memcpy_async(t, s[0], a, cuda::aligned_size_t<16>(1024), bar); bar.arrive_and_wait(); o[threadIdx.x] = s[0][threadIdx.x]; cg::memcpy_async(t, s[1], a + n, 1024); cg::wait(t); o[threadIdx.x + n] = s[1][255 - threadIdx.x];
 __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> st; auto p = cuda::make_pipeline(t, &st); for (int k = 0; k < n; k++) { p.producer_acquire(); cuda::memcpy_async(t, s[k & 1], a + k * 256, cuda::aligned_size_t<16>(1024), p); p.producer_commit(); p.consumer_wait(); o[k * 256 + threadIdx.x] = s[k & 1][threadIdx.x]; p.consumer_release(); } asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(s[0])), "l"(a)); asm volatile("cp.async.commit_group; cp.async.wait_group 1; cp.async.wait_all;");
#endif
}
struct V { int a; long long b; double c; unsigned char d[13]; };
__device__ __noinline__ int fn(int x, V *v) { if (x > 3) return v[x].a; printf("%d\n", x); return fn(x + 1, v) + 3; }
K calls(V *v, int (*f)(int), int n, V w) { V loc[9]; for (int i = 0; i < n; i++) { loc[i % 9] = v[i]; loc[(i * 7) % 9].d[i % 13] += 3; } v[n] = loc[threadIdx.x % 9]; v[n + 1].a = f(n) + fn(n, loc); v[3] = w; assert(n != 7); char *p = (char *)malloc(n); p[3] = 4; free(p); memcpy(v, loc, n); memset(v + 5, 3, n); short *sh = (short *)v; sh[n] = sh[n + 1] + ((signed char *)v)[5] + ((unsigned short *)loc)[n]; }
__constant__ int tab[777]; 
K konst(int *o, cudaTextureObject_t t, cudaSurfaceObject_t s, int n) { o[threadIdx.x] = tab[n + threadIdx.x] + tab[blockIdx.x]; o[5] = tex2D<float>(t, n, 3.f) + tex1Dfetch<int>(t, n); surf2Dwrite(n, s, 4 * threadIdx.x, 5); o[7] = surf2Dread<int>(s, 4, 5) + __isGlobal(o) + __isShared(o) + (int)__cvta_generic_to_shared(o); asm volatile("prefetch.global.L2 [%0];" ::"l"(o)); }

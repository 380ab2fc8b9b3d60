// Integers of all widths, lanes, atomics and barriers: what each instruction writes is compared with nvdisasm.
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
typedef long long ll; typedef unsigned long long ull;
#define K __global__ void
K mm3(int *o, const int *a, const int *b, const int *c, unsigned *u, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  o[i] = max(max(a[i], b[i]), c[i]);
  o[i + n] = min(min(a[i], b[i]), c[i]);
  o[i + 2 * n] = min(max(a[i], b[i]), c[i]);
  u[i] = max(max((unsigned)a[i], (unsigned)b[i]), (unsigned)c[i]);
  u[i + n] = min(min((unsigned)a[i], (unsigned)b[i]), 77u);
  o[i + 3 * n] = max(max(a[i], n), 12345678);
  o[i + 4 * n] = max(0, max(a[i], b[i]));
  o[i + 5 * n] = __vimax3_s32(a[i], b[i], c[i]);
  o[i + 6 * n] = __vimin3_s32(a[i], b[i], n);
  o[i + 7 * n] = __vimax3_s32_relu(a[i], b[i], c[i]);
  o[i + 8 * n] = __vimin3_s32_relu(a[i], b[i], c[i]);
  u[i + 2 * n] = __vimax3_u32(a[i], b[i], c[i]);
  u[i + 3 * n] = __vimin3_u32(a[i], b[i], 3);
  u[i + 4 * n] = __vimax3_s16x2(a[i], b[i], c[i]);
  u[i + 5 * n] = __vimin3_u16x2(a[i], b[i], c[i]);
  u[i + 6 * n] = __vimax3_s16x2_relu(a[i], b[i], c[i]);
  o[i + 9 * n] = __viaddmax_s32(a[i], b[i], c[i]);
  o[i + 10 * n] = __viaddmin_s32_relu(a[i], b[i], c[i]);
  u[i + 7 * n] = __viaddmax_u32(a[i], b[i], c[i]);
  u[i + 8 * n] = __viaddmin_u16x2(a[i], b[i], c[i]);
  bool p, q;
  o[i + 11 * n] = __vibmax_s32(a[i], b[i], &p); o[i + 12 * n] = p;
  u[i + 9 * n] = __vibmin_u32(a[i], b[i], &p); u[i + 10 * n] = p ? 3 : 5;
  u[i + 11 * n] = __vibmax_s16x2(a[i], b[i], &p, &q); o[i + 13 * n] = p + 2 * q;
  o[i + 14 * n] = __vimax_s32_relu(a[i], b[i]);
  u[i + 12 * n] = __vimax_s16x2_relu(a[i], b[i]);
}
K six4(ll *o, const ll *a, const ll *b, ull *u, ll n, ull m, int k, unsigned w, bool f) {
  ll i = (ll)blockIdx.x * blockDim.x + threadIdx.x;
  ll x = a[i], y = b[i];
  o[i] = x + y; o[i + n] = x - y; o[i + 2 * n] = -x; o[i + 3 * n] = x * y;
  o[i + 4 * n] = min(x, y); o[i + 5 * n] = max(x, y); u[i] = min((ull)x, (ull)y); u[i + n] = max((ull)x, m);
  o[i + 6 * n] = max(x, (ll)0); o[i + 7 * n] = min(x, (ll)100); o[i + 8 * n] = x << k; o[i + 9 * n] = x >> k;
  u[i + 2 * n] = (ull)x >> k; o[i + 10 * n] = x & y; o[i + 11 * n] = x ^ n; o[i + 12 * n] = ~x | y;
  o[i + 13 * n] = x < y ? x : y + 1; u[i + 3 * n] = (ull)x < m ? x : m; o[i + 14 * n] = x * 12345 + y;
  o[i + 15 * n] = (x + y) * n + k; o[i + 16 * n] = x + 0x123456789abcLL; o[i + 17 * n] = x - 1; o[i + 18 * n] = n - x;
  o[i + 19 * n] = abs(x); o[i + 20 * n] = __mul64hi(x, y); u[i + 4 * n] = __umul64hi(x, m); o[i + 21 * n] = __popcll(x);
  o[i + 22 * n] = __clzll(x); o[i + 23 * n] = __ffsll(x); u[i + 5 * n] = __brevll(x); o[i + 24 * n] = x / y; o[i + 25 * n] = x % n;
  u[i + 6 * n] = (ull)x / m; u[i + 7 * n] = (ull)x % 10; o[i + 26 * n] = x / 7; o[i + 27 * n] = (x == y) + (x > n) * 2 + (x != 5) * 4;
  o[i + 28 * n] = f ? x : n; o[i + 29 * n] = max(max(x, y), n); o[i + 30 * n] = llabs(x - y); o[i + 31 * n] = (ll)(int)x + (unsigned)y;
  unsigned hi, lo; asm("{ .reg .u64 t; add.cc.u32 %0, %2, %3; addc.u32 %1, %4, %5; }" : "=r"(lo), "=r"(hi) : "r"(w), "r"((unsigned)x), "r"((unsigned)y), "r"(k));
  u[i + 8 * n] = (ull)hi << 32 | lo;
  unsigned r0, r1, r2, r3;
  asm("add.cc.u32 %0, %4, %5; addc.cc.u32 %1, %6, %7; addc.cc.u32 %2, %4, %7; addc.u32 %3, %6, %5;" : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"((unsigned)x), "r"((unsigned)y), "r"((unsigned)(x >> 32)), "r"((unsigned)(y >> 32)));
  u[i + 9 * n] = (ull)r0 << 32 | r1; u[i + 10 * n] = (ull)r2 << 32 | r3;
  asm("sub.cc.u32 %0, %4, %5; subc.cc.u32 %1, %6, %7; subc.cc.u32 %2, %4, %7; subc.u32 %3, %6, %5;" : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"((unsigned)x), "r"((unsigned)y), "r"((unsigned)(x >> 32)), "r"((unsigned)(y >> 32)));
  u[i + 11 * n] = (ull)r0 << 32 | r1; u[i + 12 * n] = (ull)r2 << 32 | r3;
  asm("mad.lo.cc.u32 %0, %4, %5, %6; madc.hi.cc.u32 %1, %4, %5, %7; madc.lo.cc.u32 %2, %6, %7, %4; madc.hi.u32 %3, %6, %7, %5;" : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"((unsigned)x), "r"((unsigned)y), "r"((unsigned)(x >> 32)), "r"((unsigned)(y >> 32)));
  u[i + 13 * n] = (ull)r0 << 32 | r1; u[i + 14 * n] = (ull)r2 << 32 | r3;
}
K wide128(__int128 *o, const __int128 *a, const unsigned __int128 *b, int k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  o[i] = a[i] + (__int128)b[i]; o[i + 1000] = a[i] - (__int128)b[i]; o[i + 2000] = a[i] * (__int128)b[i];
  o[i + 3000] = a[i] << k; o[i + 4000] = a[i] < (__int128)b[i] ? a[i] : 7; o[i + 5000] = a[i] >> k;
}
K uni(int *o, const int *a, ll *l, int n, int m, ll s, ll t, float g, const int *v) {
  // mostly uniform arithmetic on arguments and block numbers
  int b = blockIdx.x, c = blockIdx.y;
  int w = min(b * n, m) + max(c, n) * (b / m) + (b % n) + (n >> (c & 7)) + (b < m ? c : n) + __popc(b ^ m) + __clz(c) + (b == c ? 3 : n);
  ll x = b * s + c * t; x = min(x, s) + max(t, (ll)c) + (s << 3) + (t >> 2) + (x < t ? s : 5); x = x > s ? x - t : x + 99;
  float f = b * g + (float)c; w += (int)f + (f > g ? 1 : 2) + (f == 0.f ? 7 : 9);
  for (int j = 0; j < n; j++) { w += v[j + b * m]; x += (ll)w * s; if (w == m) break; }
  o[w + threadIdx.x] = a[x + threadIdx.x]; l[x] = x; l[threadIdx.x] = abs((int)x) + __brev((unsigned)x);
}
K lanes(int *o, const int *a, int n) {
  int i = threadIdx.x; int v = a[i]; unsigned m = __activemask();
  v += __shfl_sync(~0u, v, i + 3); v += __shfl_up_sync(~0u, v, 2); v += __shfl_down_sync(~0u, v, n); v += __shfl_xor_sync(~0u, v, 7);
  v += __shfl_sync(~0u, v, 3, 8); v += __ballot_sync(m, v > 3); v += __any_sync(~0u, v == 5) + __all_sync(~0u, v != 6);
  v += __match_any_sync(~0u, v); int pred; v += __match_all_sync(~0u, v, &pred) + pred;
#if __CUDA_ARCH__ >= 800
  v += __reduce_add_sync(~0u, v) + __reduce_max_sync(~0u, v) + __reduce_min_sync(~0u, (unsigned)v) + __reduce_xor_sync(~0u, (unsigned)v);
#endif
  v += __popc(m) + __ffs(v) + __brev(v) + __clz(v) + __byte_perm(v, m, 0x5140) + __funnelshift_l(v, m, n) + __funnelshift_rc(v, m, n);
  v += __sad(v, n, m) + __usad(v, n, m) + __hadd(v, n) + __rhadd(v, n) + __mulhi(v, n) + __umulhi(v, n) + __mul24(v, n) + __uhadd(v, m);
  v += __dp4a(v, n, i) + __dp4a((unsigned)v, (unsigned)n, (unsigned)i) + __dp2a_lo(v, n, i) + __dp2a_hi(v, n, i);
  v += __vadd4(v, n) + __vmaxs2(v, n) + __vminu4(v, n) + __vcmpeq4(v, n) + __vabsdiffu4(v, n) + __vsads2(v, n) + __vavgs4(v, n) + __vsubss2(v, n) + __vseteq2(v, n);
  int bf; asm("bfe.s32 %0, %1, %2, %3;" : "=r"(bf) : "r"(v), "r"(n), "r"(i)); v += bf; asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(bf) : "r"(v), "r"(n), "r"(i), "r"(5)); v += bf;
  asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(bf) : "r"(v), "r"(n)); v += bf; asm("szext.wrap.s32 %0, %1, %2;" : "=r"(bf) : "r"(v), "r"(n)); v += bf;
  asm("lop3.b32 %0, %1, %2, %3, 0x5c;" : "=r"(bf) : "r"(v), "r"(n), "r"(i)); v += bf;
  o[i] = v;
}
K grids(float *o, int a, int b) {
  auto g = cg::this_grid(); auto t = cg::this_thread_block(); auto w = cg::tiled_partition<32>(t); auto q = cg::tiled_partition<8>(w); auto c = cg::coalesced_threads();
  o[(a + b) * g.thread_rank()] = cg::reduce(w, (float)t.thread_rank(), cg::plus<float>());
  o[g.size() + t.size() * 3 + q.meta_group_rank()] = cg::reduce(q, (int)t.thread_rank(), cg::less<int>()) + c.size();
  w.sync(); t.sync(); if (g.is_valid()) g.sync();
#if __CUDA_ARCH__ >= 900
  auto k = cg::this_cluster(); k.sync(); o[k.block_rank() + k.num_blocks() + k.thread_rank()] = 1; __shared__ float s[32]; s[threadIdx.x] = a; float *d = k.map_shared_rank(s, 1); d[threadIdx.x] = 3; auto tk = k.barrier_arrive(); k.barrier_wait(static_cast<decltype(tk)&&>(tk));
#endif
}
K atom(int *i, unsigned *u, ull *l, float *f, double *d, __half *h, __nv_bfloat16 *e, __half2 *h2, int v) {
  __shared__ int s[64]; __shared__ float sf[64]; __shared__ ull sl[64]; int t = threadIdx.x; s[t] = sf[t] = sl[t] = 0; __syncthreads();
  i[t] = atomicAdd(i + v, t) + atomicSub(i, 3) + atomicMin(i + 1, v) + atomicMax(i + 2, v) + atomicAnd(i, v) + atomicOr(i, v) + atomicXor(i, v) + atomicExch(i + 9, v) + atomicCAS(i + 3, v, t);
  u[t] = atomicInc(u, 55) + atomicDec(u + 1, v) + atomicMin(u, v) + atomicMax(u, v); l[t] = atomicAdd(l, (ull)v) + atomicCAS(l + 1, (ull)v, (ull)t) + atomicExch(l, (ull)v) + atomicMax(l, (ull)v) + atomicMin((ll *)l, (ll)v) + atomicAnd(l, 7ull);
  f[t] = atomicAdd(f, 1.f) + atomicExch(f, 2.f); d[t] = atomicAdd(d, 1.); atomicAdd(h, __half(1)); atomicAdd(h2, __half2(1, 2));
#if __CUDA_ARCH__ >= 800
  atomicAdd(e, __nv_bfloat16(1));
#endif
  i[t + 99] = atomicAdd(s + v, t) + atomicMin(s, v) + atomicCAS(s, v, t) + atomicExch(s, 4) + atomicInc((unsigned *)s, 4); sf[t] += atomicAdd(sf, 1.f); sl[t] += atomicAdd(sl, 3ull) + atomicCAS(sl, 3ull, 4ull) + atomicMax(sl, 9ull);
  atomicAdd_system(i, 4); atomicAdd_block(i, 4); __threadfence(); __threadfence_block(); __threadfence_system(); f[t] = sf[t ^ 1] + sl[t ^ 2];
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(u), "r"(v)); int x; asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(u)); asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(u), "r"(x));
  asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(x) : "l"(u + 1)); asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(u + 2), "r"(x)); u[77] = __ldcg(u + 4) + __ldcs(u + 5) + __ldlu(u + 6) + __ldcv(u + 7); __stcs(u + 8, 2); __stwt(u + 9, 3); __stcg(u + 10, 3);
}
K bars(int *o, int n, int m) {
  __shared__ int s[1024]; s[threadIdx.x] = n; asm volatile("bar.sync %0, %1;" ::"r"(n), "r"(m)); asm volatile("bar.sync 3, 96;"); asm volatile("bar.arrive 4, %0;" ::"r"(m)); asm volatile("bar.sync %0;" ::"r"(n)); asm volatile("bar.arrive %0, 64;" ::"r"(n));
  int c = __syncthreads_count(n > 3) + __syncthreads_and(m) + __syncthreads_or(n); o[threadIdx.x] = s[threadIdx.x ^ 1] + c; __syncwarp(n); __nanosleep(m); if (n == 3) __trap(); if (n == 4) asm volatile("exit;"); asm volatile("barrier.sync.aligned 5, 128;"); asm volatile("barrier.sync 6;"); asm volatile("barrier.cta.arrive 7, 64;"); if (m == 5) asm volatile("brkpt;"); o[0] = clock() + clock64();
}

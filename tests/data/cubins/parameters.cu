struct Small { char a; int b; short c; };
struct Large { double values[512]; };
__global__ void take(const float* in, float* out, Small small, long long n, double d, bool flag, unsigned char c, Large large) {
  if (flag) out[threadIdx.x] = in[n] * (float)d + small.b + c + (float)large.values[threadIdx.x];
}

// Stands for PyTorch's own kernels, which its wheels hold without line info.
namespace at::native {
template <int Width, typename Functor>
__global__ void vectorized_elementwise_kernel(int count, Functor functor, float* data) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) {
    data[i] = functor.value;
  }
}
struct FillFunctor {
  float value;
};
template __global__ void vectorized_elementwise_kernel<4, FillFunctor>(int, FillFunctor, float*);
}  // namespace at::native

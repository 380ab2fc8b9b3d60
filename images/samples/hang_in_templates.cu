// The third story: a pipeline stage, inlined three templates deep, waits for a phase that never comes.
#include "crash.h"

template <int Stages>
struct Pipeline {
  volatile unsigned* phase;

  __device__ __forceinline__ void consumer_wait(int stage, unsigned expected) const {
    while (phase[stage % Stages] != expected) {  // PLANTED
    }
  }
};

template <typename PipelineT>
__device__ __forceinline__ float mainloop(const PipelineT& pipeline, const float* x, int steps) {
  float sum = 0.0f;
  for (int step = 0; step < steps; ++step) {
    pipeline.consumer_wait(step, step < 2 ? 1u : 2u);  // the producer goes through the stages once only
    sum += x[threadIdx.x];
  }
  return sum;
}

template <int Stages>
__global__ void mla_decode(Pipeline<Stages> pipeline, float* x) {
  if (threadIdx.x < 32) {
    if (threadIdx.x < Stages) {
      pipeline.phase[threadIdx.x] = 1;
    }
  } else {
    x[threadIdx.x] = mainloop(pipeline, x, 4);
  }
}

int main() {
  unsigned* phase = on_device<unsigned>(2);
  float* x = on_device<float>(64);
  mla_decode<2><<<1, 64>>>(Pipeline<2>{phase}, x);
  std::fprintf(stderr, "decoding\n");
  return finish();
}

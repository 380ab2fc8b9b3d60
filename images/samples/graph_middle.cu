// The guilty kernel is the middle one of a replayed CUDA graph; what it reads changes after the first, good replay.
#include "crash.h"

__global__ void add_one(float* x) { x[threadIdx.x] += 1.0f; }

__global__ void gather(float* x, const long* at) {
  x[at[0] + threadIdx.x] = 2.0f;  // PLANTED
}

int main() {
  float* x = on_device<float>(1024);
  long* at = on_device<long>(1);
  cudaStream_t stream;
  must(cudaStreamCreate(&stream), "cudaStreamCreate");
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  add_one<<<1, 64, 0, stream>>>(x);
  gather<<<1, 64, 0, stream>>>(x, at);
  add_one<<<1, 64, 0, stream>>>(x);
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  must(cudaStreamEndCapture(stream, &graph), "capture");
  must(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
  must(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
  must(cudaStreamSynchronize(stream), "the first replay");
  const long far = 1L << 36;
  must(cudaMemcpy(at, &far, sizeof far, cudaMemcpyHostToDevice), "cudaMemcpy");
  must(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
  return told(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

// Two ranks on one GPU: rank 1 faults, rank 0 spins for ever in a collective that waits for rank 1.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "crash.h"

__global__ void all_reduce(volatile int* arrived, float* x) {
  while (*arrived == 0) {  // SPINS: the victim
  }
  x[threadIdx.x] = 1.0f;
}

__global__ void expert(float* x, long far) {
  x[far + threadIdx.x] = 1.0f;  // PLANTED
}

int rank_main(int rank, int* arrived) {
  std::fprintf(stderr, "(Worker_TP%d pid=%d) started\n", rank, getpid());
  float* x = on_device<float>(64);
  if (rank == 1) {
    expert<<<1, 64>>>(x, 1L << 36);
    int status = finish();
    std::fprintf(stderr, "(Worker_TP1 pid=%d) ends with %d\n", getpid(), status);
    return status;
  }
  must(cudaHostRegister(arrived, 4096, cudaHostRegisterMapped), "cudaHostRegister");
  int* seen_by_gpu = nullptr;
  must(cudaHostGetDevicePointer(&seen_by_gpu, arrived, 0), "cudaHostGetDevicePointer");
  all_reduce<<<1, 64>>>(seen_by_gpu, x);
  return finish();
}

int main() {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int* arrived = static_cast<int*>(page);
  for (int rank = 0; rank < 2; ++rank) {
    if (fork() == 0) {  // before any call of CUDA: a forked process cannot go on with its parent's context
      _exit(rank_main(rank, arrived));
    }
  }
  int worst = 0;
  for (int status = 0; wait(&status) > 0;) {
    worst |= WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return worst != 0;
}

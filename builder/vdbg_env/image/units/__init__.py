"""Translation units of a CUDA project: how CMake compiles each, and which of them a kernel is from."""

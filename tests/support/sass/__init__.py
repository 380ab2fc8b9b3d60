"""An independent witness for `gpucore.explain`: random kernels, what C++ says of them, and an interpreter of SASS.

Nothing in this package may import `gpucore.sass` or `gpucore.explain`: two readings of an instruction must not share a
misunderstanding. `kernels` writes CUDA and evaluates the same index expressions in Python, `listing` reads the output
of nvdisasm, `machine` executes it for one thread and `blocks` for a whole block, `published` evaluates the formulas
that gpucore publishes as JSON.
"""

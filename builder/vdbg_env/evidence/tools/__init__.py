"""Text of tools: cuda-gdb, cuobjdump, nvdisasm, compute-sanitizer."""

"""What CUDA binaries say: fat binaries, cubins, line tables and GPU core dumps; bytes in, values out.

Nothing here opens a file, starts a program or needs a GPU, a driver or a CUDA toolkit.
"""

echo "CUDA error: an illegal memory access was encountered" >&2
[ -z "$SLOW" ] || [ -z "$CUDA_LAUNCH_BLOCKING" ] || sleep 30
exit 1

"""Compare the compute capability of each GPU with the architectures that PyTorch was built for."""

import sys

import torch


def main() -> int:
    built = torch.cuda.get_arch_list()
    seen = []
    for gpu in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(gpu)
        if not covered(major, minor, built):
            print(f"gpu-code: GPU {gpu} is sm_{major}{minor}, which torch lacks; it has {' '.join(built)}", flush=True)
            return 1
        seen.append(f"sm_{major}{minor}")
    if not seen:
        print("gpu-code: no GPU is visible", flush=True)
        return 1
    print(f"gpu-code: torch has code for every GPU here ({' '.join(sorted(set(seen)))})", flush=True)
    return 0


def covered(major: int, minor: int, built: list[str]) -> bool:
    """Whether code runs on a GPU: machine code of its major version up to its minor, PTX of any version up to it.

    A suffix binds: code for 9.0a runs on 9.0 alone (CUDA programming guide, compute capabilities).
    """
    for arch in built:
        kind, _, number = arch.partition("_")
        digits = number.rstrip("abcdefghijklmnopqrstuvwxyz")
        if not digits.isdecimal():
            continue
        has = (int(digits[:-1]), int(digits[-1]))
        if has == (major, minor):
            return True
        if number == digits and kind == "sm" and has[0] == major and has[1] <= minor:
            return True
        if number == digits and kind == "compute" and has <= (major, minor):
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())

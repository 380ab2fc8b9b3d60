"""Says which network interfaces this node has, which one NCCL, Gloo and vLLM would take, and what speaks against it.

By hand:  python3 interfaces.py [HEAD]      HEAD is an address of another node
"""

import fcntl
import os
import pathlib
import socket
import struct
import sys
from collections.abc import Iterator, Mapping

_ADDRESS = 0x8915  # SIOCGIFADDR
# What NCCL passes over unless there is nothing else (NCCL user guide, NCCL_SOCKET_IFNAME); gloo takes the host's name.
PASSED_OVER = ("lo", "docker")
VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def main() -> int:
    head = sys.argv[1] if len(sys.argv) > 1 else ""
    here = interfaces()
    listed = ", ".join(f"{name} {address} ({speed(name)})" for name, address in here.items())
    print(f"interfaces: {listed or 'none has an address'}", flush=True)
    print(f"interfaces: NCCL would take {taken(os.environ.get('NCCL_SOCKET_IFNAME', ''), here) or 'none'}", flush=True)
    named = list(of_name(here))
    if named and not head:
        print(f"interfaces: fine for one node, not for several: {named[0]}", flush=True)
    problems = [*of_variables(os.environ, here), *(named if head else ()), *of_head(head, here)]
    for problem in problems:
        print(f"interfaces: problem: {problem}", flush=True)
    if not problems:
        print("interfaces: nothing speaks against them", flush=True)
    return 1 if problems else 0


def interfaces() -> dict[str, str]:
    """Return the IPv4 address of each interface that has one, in the kernel's order."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asker.fileno(), _ADDRESS, struct.pack("256s", name[:15].encode()))
            except OSError:
                continue  # it has no address
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def taken(given: str, here: Mapping[str, str]) -> str | None:
    """Return the first interface that NCCL takes: by NCCL_SOCKET_IFNAME, else one that is not passed over."""
    others = [name for name in here if not name.startswith(PASSED_OVER)]
    candidates = [name for name in here if selects(given, name)] if given else sorted(others, key=_is_not_ib)
    return next(iter(candidates or ([] if given else list(here))), None)


def _is_not_ib(name: str) -> bool:
    return not name.startswith("ib")


def selects(given: str, name: str) -> bool:
    """Whether `eth`, `=eth0`, `^docker` or a list of these takes an interface (NCCL user guide, NCCL_SOCKET_IFNAME)."""
    words = given.lstrip("^=").split(",")
    exact = "=" in given[:2]
    hit = any(name == word if exact else name.startswith(word) for word in words if word)
    return hit != given.startswith("^")


def of_variables(environment: Mapping[str, str], here: Mapping[str, str]) -> Iterator[str]:
    """Find variables that name what is not here."""
    for variable in VARIABLES:
        given = environment.get(variable, "")
        if given and not any(selects(given, name) for name in here):
            yield f"{variable}={given} names no interface with an address; there are {', '.join(here)}"
    address = environment.get("VLLM_HOST_IP", "")
    if address and address not in here.values():
        yield f"VLLM_HOST_IP={address} is no address of this node; it has {', '.join(here.values())}"


def of_name(here: Mapping[str, str]) -> Iterator[str]:
    """Find a host name that means the node itself only: Gloo listens there, and no other node reaches it."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        yield f"the name of this host, {name}, has no address: {error.strerror or error}"
        return
    if address.startswith("127.") and any(not one.startswith("127.") for one in here.values()):
        yield f"the name of this host, {name}, is {address}: other nodes cannot reach that"


def of_head(head: str, here: Mapping[str, str]) -> Iterator[str]:
    """Find a way to another node that leaves by another interface than the one NCCL would take."""
    if not head:
        return
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            asker.connect((head.partition(":")[0], 9))  # sends nothing: the kernel only looks its route up
            ours = asker.getsockname()[0]
    except OSError as error:
        yield f"there is no way to {head.partition(':')[0]}: {error.strerror or error}"
        return
    way = next((name for name, address in here.items() if address == ours), ours)
    print(f"interfaces: the way to {head} leaves by {way} ({ours})", flush=True)
    chosen = taken(os.environ.get("NCCL_SOCKET_IFNAME", ""), here)
    if chosen != way and not ours.startswith("127."):
        yield f"the way to {head} leaves by {way}, and NCCL would take {chosen}"


def speed(name: str) -> str:
    """Return an interface's speed as the kernel reports it, in Mbit/s."""
    try:
        told = (pathlib.Path("/sys/class/net") / name / "speed").read_text().strip()
    except OSError:
        told = ""
    return f"{told} Mbit/s" if told.isdecimal() else "speed unknown"


if __name__ == "__main__":
    sys.exit(main())

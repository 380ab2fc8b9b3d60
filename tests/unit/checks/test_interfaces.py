"""Which interface NCCL would take, and what speaks against it: run on this machine, decided on machines made up."""

import socket

import pytest

from tests.support.checks import check_module, run_check, seen_by

NODE = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth0": "10.0.0.5", "ib0": "10.1.0.5"}
check = check_module("interfaces")


@pytest.mark.parametrize(
    ("given", "here", "taken"),
    [
        ("", NODE, "ib0"),
        ("", {"lo": "127.0.0.1", "eth0": "10.0.0.5"}, "eth0"),
        ("", {"lo": "127.0.0.1"}, "lo"),
        ("eth", NODE, "eth0"),
        ("=eth", NODE, None),
        ("=eth0", NODE, "eth0"),
        ("^docker,lo", NODE, "eth0"),
        ("^=ib0", NODE, "lo"),
        ("eth9,ib", NODE, "ib0"),
    ],
)
def test_the_interface_nccl_takes(given: str, here: dict[str, str], taken: str | None) -> None:
    assert check.taken(given, here) == taken


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"NCCL_SOCKET_IFNAME": "eth9"}, "NCCL_SOCKET_IFNAME=eth9 names no interface"),
        ({"GLOO_SOCKET_IFNAME": "eth9"}, "GLOO_SOCKET_IFNAME=eth9 names no interface"),
        ({"VLLM_HOST_IP": "10.9.9.9"}, "VLLM_HOST_IP=10.9.9.9 is no address of this node"),
    ],
)
def test_a_variable_that_names_what_is_not_here(environment: dict[str, str], words: str) -> None:
    (problem,) = check.of_variables(environment, NODE)
    assert problem.startswith(words)
    assert list(check.of_variables({"NCCL_SOCKET_IFNAME": "eth0", "VLLM_HOST_IP": "10.0.0.5"}, NODE)) == []


@pytest.mark.parametrize(("address", "problems"), [("127.0.1.1", 1), ("10.0.0.5", 0)])
def test_a_name_that_means_the_node_itself(address: str, problems: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda _name: address)
    assert len(list(check.of_name(NODE))) == problems


def test_a_name_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_name: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    assert "has no address" in next(check.of_name(NODE))


def test_this_machine_has_interfaces_and_its_own_address_is_reached_by_one() -> None:
    printed = run_check("interfaces")
    seen = seen_by("nccl-failure", printed)
    assert "lo 127.0.0.1" in printed
    assert seen["interface_taken"]["name"] in check.interfaces()


def test_a_variable_of_this_environment_is_held_against_them() -> None:
    seen = seen_by("nccl-failure", run_check("interfaces", environment={"NCCL_SOCKET_IFNAME": "nope7"}, status=1))
    assert seen["interface_problem"]["what"].startswith("NCCL_SOCKET_IFNAME=nope7 names no interface")
    assert seen["interface_taken"]["name"] == "none"


def test_a_head_that_no_route_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: object, _address: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(check.socket.socket, "connect", refuse)
    assert "there is no way to 10.8.8.8: Network is unreachable" in list(check.of_head("10.8.8.8:29500", NODE))

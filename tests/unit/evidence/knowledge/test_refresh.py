"""What a new release changed is shown name by name, and the names that our own files use stand out."""

from scripts.refresh_vllm_flags import Surface, changes, names_in_use, with_release
from vdbg_env.evidence.knowledge import ReleaseTable


def test_a_release_is_compared_with_the_one_before_it() -> None:
    table = ReleaseTable()
    table = with_release(table, "0.9.2", Surface(variables=frozenset({"VLLM_OLD", "VLLM_KEPT"}), flags=frozenset()))
    table = with_release(table, "0.10.0", Surface(variables=frozenset({"VLLM_KEPT"}), flags=frozenset({"--new"})))
    assert changes(table, "0.10.0", {"VLLM_OLD"}) == [
        "0.10.0 compared with 0.9.2:",
        "  +  --new",
        "  -! VLLM_OLD",
    ]
    assert changes(table, "0.9.2", ()) == ["0.9.2: the first release of the table"]


def test_the_names_of_our_runbooks_are_known() -> None:
    assert {"--enforce-eager", "VLLM_LOGGING_LEVEL", "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"} <= names_in_use()

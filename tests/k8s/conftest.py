"""One real API server for all of these tests; without its programs they skip."""

from collections.abc import Iterator

import pytest

from tests.k8s.server import ApiServer, missing


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if why := missing():
        pytest.skip(why)
    server = ApiServer(tmp_path_factory.mktemp("k8s"))
    try:
        server.start()
        yield server
    finally:
        server.stop()

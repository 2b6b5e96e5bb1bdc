"""An object store of our own: a server on loopback, and an empty bucket for each test."""

import itertools
import logging
import urllib.request
from collections.abc import Iterator

import pytest

from streamlearn.storage import endpoints
from streamlearn.storage.objects import ObjectPath

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of the server."""
    from moto.server import ThreadedMotoServer

    log = logging.getLogger("werkzeug")
    level = log.level
    log.setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()
    log.setLevel(level)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Failures are told without long patience, whatever the environment says."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    # Whoever is asked for credentials beside these must not be the network.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(endpoints, "RETRIES", 1)
    monkeypatch.setattr(endpoints, "REQUEST_SECONDS", 20.0)
    endpoints._connect.cache_clear()
    yield
    endpoints._connect.cache_clear()


@pytest.fixture
def bucket(endpoint: str, quick: None, monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    """An empty bucket."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    name = f"runs-{next(_NUMBERS)}"
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")):
        pass
    return ObjectPath("s3", name)

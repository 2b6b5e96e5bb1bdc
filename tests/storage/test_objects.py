"""An object store as the place of a run: names, conditions, refusals."""

import http.server
import os
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest

from streamlearn.errors import ConfigError, StorageError
from streamlearn.storage.objects import ObjectPath, Version, resolve

# -- names ---------------------------------------------------------------------------------------


def test_a_url_names_an_object_and_anything_else_a_file() -> None:
    path = resolve("S3://bucket//a/b.json/")
    assert isinstance(path, ObjectPath)
    assert str(path) == "s3://bucket/a/b.json"
    assert path.parts == ("s3://bucket", "a", "b.json")
    assert (path.name, path.suffix) == ("b.json", ".json")
    assert path.parent == resolve("s3://bucket/a")
    assert path.parent.parent.parent == resolve("s3://bucket")
    assert resolve(path) is path
    assert resolve("a/b") == Path("a/b")
    assert resolve(Path("/a")) == Path("/a")
    assert resolve("file:///a/b") == Path("/a/b")
    assert resolve("odd:/name") == Path("odd:/name")


def test_names_are_put_together_as_paths_are() -> None:
    root = ObjectPath("s3", "bucket")
    path = root / "a" / PurePosixPath("b/c")
    assert str(path) == "s3://bucket/a/b/c"
    assert path.with_name("d") == root / "a/b/d"
    assert path.relative_to(root / "a") == PurePosixPath("b/c")
    assert path.relative_to(root) == PurePosixPath("a/b/c")
    assert not path.is_relative_to(root / "a/b/cc")
    assert not (root / "a/b/cc").is_relative_to(path)
    with pytest.raises(ValueError, match="is not below"):
        path.relative_to(root / "x")
    assert path.absolute() == path
    assert len({path, root / "a/b/c"}) == 1
    assert sorted([root / "b", root / "a/z", root / "a"])[0] == root / "a"
    assert pickle.loads(pickle.dumps(path)) == path
    with pytest.raises(TypeError):
        os.fspath(path)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "text", ["s3://", "s3:///a", "s3://-a/b", "s3:/bucket/a", "s3://b/../c", "s3://b/./c", "gs://"]
)
def test_a_url_that_names_no_place_in_a_bucket_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"names no place in a bucket; write it as (s3|gs)://BUC"):
        resolve(text)


@pytest.mark.parametrize("text", ["http://host/a", "ftp://host/a", "r2://bucket/a"])
def test_an_address_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"not known; use a folder, or s3://… or gs://… or az"):
        resolve(text)


def test_a_missing_library_is_named_with_the_way_to_install_it() -> None:
    script = """
import sys
sys.modules["obstore"] = None
from streamlearn.errors import ConfigError
from streamlearn.storage.objects import resolve
try:
    resolve("s3://bucket/runs")
except ConfigError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "'s3://bucket' needs the package obstore, which is not installed; install it by "
        "`pip install 'streamlearn[s3]'`\n"
    )


# -- what is stored ------------------------------------------------------------------------------


@pytest.fixture(params=["s3", "memory"])
def place(request: pytest.FixtureRequest) -> ObjectPath:
    if request.param == "memory":
        request.getfixturevalue("quick")
        return ObjectPath("memory", "here") / "runs"
    bucket: ObjectPath = request.getfixturevalue("bucket")
    return bucket / "runs"


def test_bytes_come_back_whole_and_in_part(place: ObjectPath) -> None:
    path = place / "a" / "data"
    data = random.Random(1).randbytes(6 << 20)
    version = path.put(data)
    found, stat = path.read()
    assert found == data
    assert (stat.st_size, stat.version.e_tag) == (len(data), version.e_tag)
    assert path.stat() == stat
    assert path.read_range(5, 20) == data[5:20]
    assert path.read_range(len(data) - 3, len(data) + 9) == data[-3:]
    assert path.read_range(len(data), len(data) + 9) == b""
    assert path.read_range(7, 7) == b""
    path.put(b"")
    assert path.read_bytes() == b""


@pytest.mark.parametrize("name", ["año=2024, lote [3]", "a%41 #?*~", "-x", "a b.json", "x" * 255])
def test_an_odd_name_is_taken_as_it_is(place: ObjectPath, name: str) -> None:
    path = place / name / "run.json"
    path.put(b"1")
    assert path.read_bytes() == b"1"
    assert list(place.iterdir()) == [place / name]
    assert [found for found, _ in place.walk()] == [path]
    assert resolve(str(path)) == path


def test_what_lies_below_is_listed_without_directories(place: ObjectPath) -> None:
    for name in ("b/1", "a.json", "b/2/3", "bb"):
        (place / name).put(name.encode())
    assert list(place.iterdir()) == [place / "a.json", place / "b", place / "bb"]
    assert list(place.glob("*.json")) == [place / "a.json"]
    assert {str(path.relative_to(place)): stat.st_size for path, stat in place.walk()} == {
        "a.json": 6,
        "b/1": 3,
        "b/2/3": 5,
        "bb": 2,
    }
    assert (place / "b").is_dir()
    assert not (place / "b").is_file()
    assert (place / "b").exists()
    assert (place / "bb").is_file()
    assert not (place / "bb").is_dir()
    assert not (place / "c").exists()
    assert list((place / "c").iterdir()) == []
    assert place.parent.is_dir()
    assert not place.parent.is_file()


def test_what_is_deleted_is_gone_and_its_neighbours_are_not(place: ObjectPath) -> None:
    for name in ("b", "b/1", "b/2/3", "bb"):
        (place / name).put(b"")
    (place / "bb").copy_to(place / "bc")
    (place / "nothing").remove()
    (place / "nothing").remove_tree()
    (place / "b").remove_tree()
    assert list(place.iterdir()) == [place / "bb", place / "bc"]
    (place / "bc").remove()
    assert list(place.iterdir()) == [place / "bb"]


def test_an_object_that_is_not_there_is_no_failure_of_the_store(place: ObjectPath) -> None:
    path = place / "nothing"
    for ask in (path.read, path.read_bytes, path.stat, lambda: path.read_range(0, 5)):
        with pytest.raises(FileNotFoundError) as caught:
            ask()
        assert not isinstance(caught.value, StorageError)
        assert str(path) in str(caught.value)


def test_of_two_first_writers_one_wins(place: ObjectPath) -> None:
    path = place / "manifest.json"
    version = path.put_if_absent(b"one")
    assert version is not None
    assert path.put_if_absent(b"two") is None
    assert path.read_bytes() == b"one"
    # Our own answer may have been lost.
    assert path.put_if_absent(b"one") == path.stat().version


def test_nobody_writes_over_what_he_has_not_seen(place: ObjectPath) -> None:
    path = place / "manifest.json"
    first = path.put(b"1")
    second = path.put_if_unchanged(b"2", first)
    assert second is not None
    assert path.put_if_unchanged(b"other", first) is None
    assert path.read_bytes() == b"2"
    third = path.put_if_unchanged(b"3", path.read()[1].version)
    assert third is not None
    path.remove()
    assert path.put_if_unchanged(b"4", third) is None
    assert not path.exists()


def test_many_writers_at_once_leave_no_gap(place: ObjectPath) -> None:
    path = place / "counter"
    path.put(b"0 nobody")

    def count(name: int) -> None:
        for _ in range(4):
            while True:
                data, stat = path.read()
                number = int(data.split()[0]) + 1
                if path.put_if_unchanged(b"%d %d" % (number, name), stat.version):
                    break

    threads = [threading.Thread(target=count, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes().startswith(b"12 ")


# -- refusals ------------------------------------------------------------------------------------


def test_a_bucket_that_is_not_there_is_named(bucket: ObjectPath) -> None:
    path = ObjectPath("s3", "nobody-made-this", "runs/a")
    for ask in (path.read_bytes, path.is_dir, lambda: path.put(b""), lambda: [*path.iterdir()]):
        with pytest.raises(StorageError, match=r"no bucket 'nobody-made-this'; make it") as caught:
            ask()
        assert str(path) in str(caught.value)


def test_an_endpoint_that_is_away_is_named(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    path = ObjectPath("s3", "bucket", "runs/a")
    for ask in (path.read_bytes, path.stat, path.is_dir, lambda: path.put_if_absent(b"")):
        with pytest.raises(
            StorageError,
            match=r"cannot \w+ 's3://bucket/runs/a': the server 'http://127.0.0.1:9' cannot be "
            r"reached; check the network and AWS_ENDPOINT_URL",
        ):
            ask()


@pytest.mark.parametrize("missing", [("AWS_ACCESS_KEY_ID",), ("AWS_SECRET_ACCESS_KEY",), ()])
def test_missing_credentials_are_asked_for_by_name(
    bucket: ObjectPath, missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing or ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    failure = StorageError if not missing else ConfigError
    with pytest.raises(failure, match=r"there are no credentials.*set AWS_ACCESS_KEY_ID and"):
        (bucket / "a").read_bytes()


@contextmanager
def answering(status: int, text: str, pause: float = 0.0) -> Iterator[str]:
    """A server that has one answer to everything."""
    wake = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            wake.wait(pause)
            body = f"<Error><Code>{text}</Code></Error>".encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = answer

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            wake.set()
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "text", "message"),
    [
        (403, "AccessDenied", "access is denied; give these credentials the right to"),
        (403, "InvalidAccessKeyId", "credentials are refused; set AWS_ACCESS_KEY_ID .* anew"),
        (400, "ExpiredToken", "credentials are refused; set AWS_ACCESS_KEY_ID .* anew"),
        (403, "RequestTimeTooSkewed", "this machine's clock is wrong; set the clock"),
        (301, "PermanentRedirect", "another region; set AWS_REGION"),
        (501, "NotImplemented", "no conditional writes; use one that does"),
        (507, "QuotaExceeded", "takes no more; make room"),
        (503, "SlowDown", "the server 'http://.*' is out of order; wait a while"),
        (418, "Teapot", "; look at the store"),
    ],
)
def test_a_refusal_is_one_sentence_with_a_remedy(
    status: int, text: str, message: str, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(status, text) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        path = ObjectPath("s3", "bucket", "a")
        with pytest.raises(StorageError, match=message) as caught:
            path.put_if_unchanged(b"1", Version('"1"', None))
    said = str(caught.value)
    assert said.startswith("cannot write 's3://bucket/a': ")
    assert "\n" not in said
    assert caught.value.errno


def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamlearn.storage import endpoints

    monkeypatch.setattr(endpoints, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(endpoints, "RETRIES", 0)
    with answering(200, "Late", pause=30.0) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(StorageError, match="did not answer in time; check the network"):
            ObjectPath("s3", "bucket", "a").read_bytes()

"""What runs may be called and how they are found."""

from pathlib import Path

import pytest

from streamlearn.errors import ConfigError, RunExistsError, RunNotFoundError, StorageError
from streamlearn.storage import RunReader, find_run, list_runs
from streamlearn.storage.objects import as_file

from .support import make_store


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        (".", "begins with a dot"),
        ("..", "begins with a dot"),
        (".hidden", "begins with a dot"),
        ("a/b", "contains a separator"),
        ("../a", "begins with a dot"),
        ("/tmp/a", "contains a separator"),
        ("a\\b", "contains a separator"),
        ("a\0", "contains a control character"),
        ("a\nb", "contains a control character"),
        ("ñ" * 128, "is longer than 255 bytes"),
    ],
)
def test_a_name_that_cannot_be_a_run_is_refused_and_leaves_nothing(
    tmp_path: Path, name: str, what: str
) -> None:
    with pytest.raises(ConfigError, match=f"run.name=.* {what}; choose a plain name"):
        make_store(tmp_path / "runs", name)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["007", "null", "año=2024, lote [3]", "a b", "-x", "x" * 255])
def test_an_odd_name_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    with make_store(tmp_path, name) as store:
        assert store.path == tmp_path / name
    assert find_run(name, tmp_path) == tmp_path / name
    assert RunReader(store.path).header.name == name


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("nowhere")
    make_store(tmp_path).close()
    for name in ("folder", "file", "link", "run"):
        with pytest.raises(RunExistsError, match=f"already a run .*{name}'; choose another"):
            make_store(tmp_path, name)
    assert not any((tmp_path / "folder").iterdir())


def test_a_file_in_place_of_the_folder_of_runs_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("x")
    with pytest.raises(StorageError, match=r"cannot write .*runs.*; name a folder, not a file"):
        make_store(tmp_path / "runs")


def test_runs_are_listed_by_name_and_nothing_else_is(tmp_path: Path) -> None:
    for name in ("b", "a"):
        make_store(tmp_path, name).close()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "folder").mkdir()
    as_file(make_store(tmp_path, "c").path).rename(tmp_path / ".making-c")
    assert list_runs(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    assert list_runs(tmp_path / "nowhere") == []
    assert list_runs(tmp_path / "notes.txt") == []


def test_a_run_is_found_by_path_and_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path / "runs", "digits").close()
    make_store(tmp_path / "other", "digits").close()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_run("digits") == Path("runs/digits")
    assert find_run("digits", Path("other")) == Path("other/digits")
    assert find_run("other/digits") == Path("other/digits")
    assert find_run(tmp_path / "other" / "digits") == tmp_path / "other" / "digits"
    # A folder of that name which is no run does not hide the run.
    (tmp_path / "digits").mkdir()
    assert find_run("digits") == Path("runs/digits")


def test_a_run_that_is_not_there_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="has no runs yet, make one with `streamlearn run`"):
        find_run("digits", tmp_path)
    for name in ("digits-1", "shuttle"):
        make_store(tmp_path, name).close()
    with pytest.raises(RunNotFoundError, match=r"'digit-1'.*did you mean 'digits-1'") as caught:
        find_run("digit-1", tmp_path)
    assert str(tmp_path / "digit-1") in str(caught.value)
    with pytest.raises(RunNotFoundError, match="has 'digits-1', 'shuttle'"):
        find_run("zzz", tmp_path)
    with pytest.raises(RunNotFoundError, match="the empty name"):
        find_run("", tmp_path)
    with pytest.raises(RunNotFoundError, match="there is no run"):
        find_run("x" * 5000, tmp_path)

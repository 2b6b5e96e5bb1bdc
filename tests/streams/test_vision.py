import gzip
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torchvision.datasets

from streamlearn.errors import DataError, DataNotFoundError
from streamlearn.streams import Dataset, Rows, open_data, vision
from streamlearn.streams import mnist as mnist_module

from .making import class_folders, idx_bytes, idx_files, zipped

CLASSES = {"cat": 2, "dog": 2}


def _all(dataset: Dataset) -> Rows:
    return dataset.read(np.arange(len(dataset), dtype=np.int64))


def _no_network(*_: Any, **__: Any) -> None:
    print("Downloading")
    raise URLError("Name or service not known")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("CIFAR10", "CIFAR100", "MNIST", "FashionMNIST"):
        monkeypatch.setattr(getattr(torchvision.datasets, kind), "download", _no_network)


@pytest.mark.parametrize("kind", ["cifar10", "cifar100", "mnist", "fashion"])
@pytest.mark.usefixtures("offline")
def test_data_that_is_nowhere_says_where_to_put_it(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "mis datos" / "ñ"
    with pytest.raises(DataNotFoundError) as caught:
        open_data(kind, root=root)
    message = str(caught.value)
    assert f"is not in {root} and could not be downloaded" in message
    assert "Name or service not known" in message
    assert "data.root=FOLDER" in message
    assert "train.zip and test.zip" in message
    assert "scenario=digits-onepass" in message
    assert "\n" not in message
    assert ". " not in message
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_without_download_nothing_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"CIFAR-10 is not in .*data; put torchvision's"):
        open_data("cifar10", root=tmp_path / "data", download=False)


@pytest.mark.usefixtures("offline")
def test_the_default_place_is_data_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataNotFoundError, match=f"is not in {tmp_path}/data and could"):
        open_data("mnist")
    idx_files(tmp_path / "data" / "MNIST" / "raw")
    assert len(open_data("mnist").train) == 11


def test_what_does_not_say_which_set_it_is_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mnist_module, "_DEBIAN", tmp_path / "nowhere")
    class_folders(idx_files(tmp_path / "data") / "train", CLASSES)
    for kind in ("cifar10", "mnist", "fashion"):
        with pytest.raises(DataNotFoundError):
            open_data(kind, download=False)
        assert open_data(kind, root=Path("data"), download=False).train.name


def test_fashion_is_found_where_the_system_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mnist_module, "_DEBIAN", idx_files(tmp_path / "system", packed=True))
    splits = open_data("fashion", download=False)
    assert splits.train.name == "Fashion-MNIST"
    assert splits.train.classes[-1] == "Ankle boot"
    with pytest.raises(DataNotFoundError):
        open_data("fashion", root=tmp_path / "elsewhere", download=False)


def test_idx_files_come_through_unchanged(tmp_path: Path) -> None:
    idx_files(tmp_path)
    splits = open_data("mnist", root=tmp_path, download=False)
    assert splits.test is not None
    rows = _all(splits.test)
    expected = np.random.default_rng(4).integers(0, 256, (4, 5, 4), dtype=np.uint8)
    assert np.array_equal(rows.features[:, 0].numpy(), expected)
    assert rows.targets.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["cifar10", "cifar100", "mnist", "fashion"])
def test_class_folders_stand_in_for_the_original_files(kind: str, tmp_path: Path) -> None:
    class_folders(tmp_path / "train", CLASSES)
    class_folders(tmp_path / "test", {"dog": 1})
    splits = open_data(kind, root=tmp_path, download=False)
    assert splits.test is not None
    assert (len(splits.train), len(splits.test)) == (4, 1)
    assert splits.train.classes == ("cat", "dog")


def test_pixels_that_went_through_jpeg_are_called_so(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", CLASSES)
    assert open_data("cifar10", root=tmp_path, download=False).train.name == "CIFAR-10"
    for file in (tmp_path / "train").rglob("*.png"):
        file.rename(file.with_suffix(".JPG"))
    assert open_data("cifar10", root=tmp_path, download=False).train.name == "CIFAR-10 (JPEG)"


def test_more_class_folders_than_classes_are_refused(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {str(number): 1 for number in range(11)})
    with pytest.raises(DataError, match=r"has 11 class folders but CIFAR-10 has 10 .*data=folder"):
        open_data("cifar10", root=tmp_path, download=False)


def test_a_broken_train_zip_is_named(tmp_path: Path) -> None:
    zipped(class_folders(tmp_path / "x", CLASSES), tmp_path / "train.zip")
    (tmp_path / "test.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"test\.zip cannot be read as a zip file"):
        open_data("cifar10", root=tmp_path, download=False)


def test_a_part_of_the_idx_files_is_refused(tmp_path: Path) -> None:
    idx_files(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="of MNIST but not the t10k-labels; put the missing"):
        open_data("mnist", root=tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("train-images-idx3-ubyte", b"\0\0\x08", "is not an idx file of 3 dimension"),
        ("train-images-idx3-ubyte", idx_bytes(np.zeros(3, np.uint8)), "is not an idx file of 3"),
        (
            "train-images-idx3-ubyte",
            idx_bytes(np.zeros((11, 5, 4), np.uint8))[:-1],
            "has 219 bytes where its header says 220",
        ),
        ("t10k-labels-idx1-ubyte", idx_bytes(np.zeros(3, np.uint8)), "4 images but .* 3 labels"),
        (
            "t10k-labels-idx1-ubyte.gz",
            gzip.compress(idx_bytes(np.zeros(4, np.uint8)), mtime=0)[:-9],
            r"t10k-labels-idx1-ubyte\.gz cannot be read",
        ),
        ("t10k-labels-idx1-ubyte.gz", b"no gzip", r"\.gz cannot be read"),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    idx_files(tmp_path)
    (tmp_path / name.removesuffix(".gz")).unlink()
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=reason):
        open_data("mnist", root=tmp_path, download=False)


def test_a_label_outside_the_classes_is_named(tmp_path: Path) -> None:
    idx_files(tmp_path, train=12, highest=10)
    train = open_data("mnist", root=tmp_path, download=False, on_error="skip").train
    rows = _all(train)
    assert len(rows.index) == 11
    assert rows.skipped[0].item == f"row 10 of {tmp_path}/train-images-idx3-ubyte"
    assert rows.skipped[0].reason == "label 10 is none of the 10 classes"
    with pytest.raises(DataError, match=r"row 10 of .* cannot be used: label 10 is none"):
        _all(open_data("mnist", root=tmp_path, download=False).train)


def test_an_empty_idx_file_is_refused(tmp_path: Path) -> None:
    idx_files(tmp_path, train=0)
    with pytest.raises(DataError, match="is empty; give data with at least one row"):
        open_data("mnist", root=tmp_path, download=False)


def test_torchvisions_own_layout_is_read(tmp_path: Path, small_cifar: Any) -> None:
    small_cifar.write(tmp_path)
    splits = open_data("cifar10", root=tmp_path, download=False)
    assert splits.test is not None
    assert (len(splits.train), len(splits.test)) == (12, 5)
    loaded = small_cifar(str(tmp_path), train=False)
    rows = _all(splits.test)
    assert np.array_equal(rows.features.numpy(), loaded.data.transpose(0, 3, 1, 2))
    assert rows.targets.tolist() == loaded.targets


def test_an_archive_is_unpacked_quietly(
    tmp_path: Path, small_cifar: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"archive")
    assert len(open_data("cifar10", root=tmp_path, download=False).train) == 12
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("small_cifar")
def test_a_corrupt_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"half of it")
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz is damaged .*; remove it"):
        open_data("cifar10", root=tmp_path)


def test_a_damaged_file_of_the_layout_is_named(tmp_path: Path, small_cifar: Any) -> None:
    small_cifar.write(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(b"other")
    with pytest.raises(DataError, match="cifar-10-batches-py/test_batch is damaged or missing"):
        open_data("cifar10", root=tmp_path)


@pytest.mark.usefixtures("small_cifar")
def test_a_download_ends_in_the_root_and_prints_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "new" / "data"
    assert len(open_data("cifar10", root=root).train) == 12
    assert [entry.name for entry in root.iterdir()] == ["cifar-10-batches-py"]
    assert capsys.readouterr().out == ""


def test_a_download_that_is_cut_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(self: Any) -> None:
        folder = Path(self.root) / "MNIST" / "raw"
        folder.mkdir(parents=True)
        (folder / "train-images-idx3-ubyte.gz").write_bytes(b"half")
        raise TimeoutError("timed out")

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", cut)
    with pytest.raises(DataNotFoundError, match=r"could not be downloaded \(timed out\)"):
        open_data("mnist", root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_download_completes_one_that_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(self: Any) -> None:
        idx_files(Path(self.root) / "MNIST" / "raw")

    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(b"half")
    monkeypatch.setattr(torchvision.datasets.MNIST, "download", download)
    assert len(open_data("mnist", root=tmp_path).train) == 11


def test_the_network_may_not_keep_a_download_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    seen: list[float | None] = []

    def download(self: Any) -> None:
        seen.append(socket.getdefaulttimeout())
        raise URLError("no")

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", download)
    with pytest.raises(DataNotFoundError):
        open_data("mnist", root=tmp_path)
    assert seen == [vision._DOWNLOAD_TIMEOUT]
    assert socket.getdefaulttimeout() is None


def test_the_folders_of_a_set_with_ten_classes_are_not_learnt_as_cifar100(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {f"class{number}": 1 for number in range(10)})
    with pytest.raises(DataError, match="10 class folders but CIFAR-100 has 100"):
        open_data("cifar100", root=tmp_path, download=False)

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from streamlearn.errors import ConfigError, DataError, DataNotFoundError
from streamlearn.streams import Dataset, Rows, Stream, open_data

from .making import class_folders, pixels, png, zipped


def _all(dataset: Dataset) -> Rows:
    return dataset.read(np.arange(len(dataset), dtype=np.int64))


def test_pixels_come_through_unchanged(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 2, "b": 1})
    rows = _all(open_data("folder", root=tmp_path, holdout=0).train)
    expected = np.stack([pixels(0), pixels(1), pixels(100)]).transpose(0, 3, 1, 2)
    assert np.array_equal(rows.features.numpy(), expected)
    assert rows.targets.tolist() == [0, 0, 1]


def test_a_zip_file_and_its_folder_are_the_same_data_set(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "f", {"a b": 3, "a": 2, "ñ=[1]": 2, "Z": 1})
    packed = zipped(folder, tmp_path / "f.zip")
    one = open_data("folder", root=folder, holdout=0).train
    two = open_data("folder", path=packed, holdout=0).train
    assert one.classes == two.classes == ("Z", "a", "a b", "ñ=[1]")
    assert torch.equal(_all(one).features, _all(two).features)
    assert torch.equal(_all(one).targets, _all(two).targets)


def test_zip_files_may_wrap_their_class_folders(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "f", {"a": 2, "b": 2})
    packed = zipped(folder, tmp_path / "f.zip", "outer/inner/")
    train = open_data("folder", path=packed, holdout=0).train
    assert train.classes == ("a", "b")


def test_a_class_of_trains_is_a_class(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "f", {"train": 2, "car": 2})
    for place in (folder, zipped(folder, tmp_path / "f.zip")):
        assert open_data("folder", root=place).train.classes == ("car", "train")


def test_train_may_be_packed_and_test_not(tmp_path: Path) -> None:
    zipped(class_folders(tmp_path / "x", {"a": 2, "b": 2}), tmp_path / "train.zip", "train/")
    class_folders(tmp_path / "test", {"b": 3})
    splits = open_data("folder", root=tmp_path)
    assert splits.test is not None
    assert (len(splits.train), len(splits.test)) == (4, 3)
    assert _all(splits.test).targets.tolist() == [1, 1, 1]


def test_hidden_files_and_other_files_are_not_images(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "f", {"a": 2, "b": 2, ".hidden": 1, "__MACOSX": 1})
    for name in ("._00.png", ".DS_Store", "Thumbs.db", "notes.txt"):
        (root / "a" / name).write_bytes(b"not an image")
    (root / "readme.png").write_bytes(b"not in a class folder")
    for place in (root, zipped(root, tmp_path / "f.zip")):
        train = open_data("folder", root=place, holdout=0).train
        assert train.classes == ("a", "b")
        assert len(_all(train).index) == 4


def test_deeper_folders_belong_to_their_class(tmp_path: Path) -> None:
    class_folders(tmp_path / "f" / "a", {"deep": 2, "deeper/still": 1})
    class_folders(tmp_path / "f", {"b": 1})
    for place in (tmp_path / "f", zipped(tmp_path / "f", tmp_path / "f.zip")):
        train = open_data("folder", root=place, holdout=0).train
        assert _all(train).targets.tolist() == [0, 0, 0, 1]


def test_names_that_are_not_utf8_are_shown_and_read(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    with open(folder + b"/\xff.png", "wb") as file:
        file.write(b"broken")
    class_folders(tmp_path, {"b": 1})
    train = open_data("folder", root=tmp_path, holdout=0, on_error="skip").train
    assert train.classes == ("b", "caf\\xe9")
    assert _all(train).skipped[0].item.endswith("caf\\xe9/\\xff.png")


def test_composed_and_decomposed_names_are_one_class(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"caf\u00e9": 1, "b": 1})
    class_folders(tmp_path / "test", {"cafe\u0301": 1})
    splits = open_data("folder", root=tmp_path)
    assert splits.test is not None
    assert splits.test.classes[int(_all(splits.test).targets[0])] == "caf\u00e9"


def test_a_zip_with_utf8_names_that_are_not_marked_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("aXX/1.png", "b/1.png"):
            archive.writestr(name, png(pixels(1)))
    path.write_bytes(path.read_bytes().replace(b"aXX/", "añ/".encode()))
    assert open_data("folder", path=path).train.classes == ("añ", "b")


def test_image_sizes_are_brought_to_the_first_or_the_given(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 1, "b": 1})
    (tmp_path / "b" / "00.png").write_bytes(png(pixels(9, 24, 40)))
    assert open_data("folder", root=tmp_path).train.feature_shape == (3, 6, 8)
    splits = open_data("folder", root=tmp_path, image_size=5, holdout=0)
    assert splits.train.feature_shape == (3, 5, 5)
    assert _all(splits.train).features.shape == (2, 3, 5, 5)


def test_the_test_part_gets_the_size_of_the_train_part(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"a": 2}, channels=1)
    class_folders(tmp_path / "test", {"a": 1})
    (tmp_path / "test" / "a" / "00.png").write_bytes(png(pixels(9, 24, 40)))
    splits = open_data("folder", root=tmp_path)
    assert splits.test is not None
    assert splits.test.feature_shape == (1, 6, 8)
    assert _all(splits.test).features.shape == (1, 1, 6, 8)


def test_a_folder_of_mixed_images_is_learnt_whole(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    images = {
        "0.png": Image.fromarray(pixels(1)),
        "1.png": Image.new("LA", (8, 6), (50, 200)),
        "2.png": Image.new("P", (8, 6), 3),
        "3.jpg": Image.new("CMYK", (8, 6), (10, 200, 30, 4)),
        "4.png": Image.new("1", (8, 6), 1),
        "5.jpeg": Image.new("RGB", (40, 24), (1, 2, 3)),
        "6.png": Image.fromarray(np.full((6, 8), 32768, dtype=np.uint16)),
    }
    for name, image in images.items():
        if image.mode == "P":
            image.info["transparency"] = 3
        image.save(tmp_path / "a" / name)
    rows = _all(open_data("folder", root=tmp_path, holdout=0).train)
    assert rows.features.shape == (7, 3, 6, 8)
    assert abs(rows.features[6].float().mean().item() / 255 - 0.5) < 0.01


def test_large_images_decoded_in_threads_keep_their_places(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(6):
        grey = np.full((160, 160, 3), 40 * number, dtype=np.uint8)
        grey[0, 0] = (255, 0, 0)
        (tmp_path / "a" / f"{number}.png").write_bytes(png(grey))
    (tmp_path / "a" / "3.png").write_bytes(b"broken")
    train = open_data("folder", root=tmp_path, holdout=0, on_error="skip").train
    rows = train.read(np.array([5, 3, 0, 1], dtype=np.int64))
    assert rows.features[:, 0, 80, 80].tolist() == [200, 0, 40]
    assert rows.index.tolist() == [5, 0, 1]
    assert [s.item for s in rows.skipped] == [str(tmp_path / "a" / "3.png")]


@pytest.mark.parametrize("packed", [False, True])
def test_a_corrupt_image_is_named_and_skipped(tmp_path: Path, packed: bool) -> None:
    root = class_folders(tmp_path / "f", {"a": 3, "b": 3})
    whole = (root / "a" / "01.png").read_bytes()
    (root / "a" / "01.png").write_bytes(whole[: len(whole) // 2])
    (root / "b" / "00.png").write_bytes(b"")
    (root / "b" / "02.png").write_bytes(b"<html>404</html>")
    place = zipped(root, tmp_path / "f.zip") if packed else root
    rows = _all(open_data("folder", root=place, holdout=0, on_error="skip").train)
    assert rows.index.tolist() == [0, 2, 4]
    assert rows.targets.tolist() == [0, 0, 1]
    assert [s.item for s in rows.skipped] == [
        f"{place}/a/01.png",
        f"{place}/b/00.png",
        f"{place}/b/02.png",
    ]
    damaged, empty, foreign = (s.reason for s in rows.skipped)
    assert damaged.startswith("the image is damaged (")
    assert empty == "the file is empty"
    assert foreign == "it is no image in a known format"


def test_a_corrupt_image_stops_a_stream_where_that_is_asked_for(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 3})
    (tmp_path / "a" / "01.png").write_bytes(b"broken")
    stream = Stream(open_data("folder", root=tmp_path, holdout=0).train, order="given")
    batches = stream.batches(1)
    next(batches)
    with pytest.raises(DataError, match=r"a/01\.png cannot be used: .*data\.on_error=skip"):
        next(batches)
    assert stream.position == 1


def test_an_image_that_vanished_is_named(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 3})
    train = open_data("folder", root=tmp_path, holdout=0, on_error="skip").train
    (tmp_path / "a" / "02.png").unlink()
    assert _all(train).skipped[0].reason == "the file cannot be read (No such file or directory)"


def test_a_flipped_byte_in_a_zip_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "f.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(3):
            archive.writestr(f"a/{number}.bmp", b"BM" + bytes(200) if number else png(pixels(0)))
    data = bytearray(path.read_bytes())
    data[data.index(b"BM") + 100] ^= 1
    path.write_bytes(data)
    rows = _all(open_data("folder", path=path, holdout=0, on_error="skip").train)
    assert rows.skipped[0].reason == "its checksum in the zip file is wrong"


def test_an_encrypted_member_is_named(tmp_path: Path) -> None:
    path = zipped(class_folders(tmp_path / "f", {"a": 2}), tmp_path / "f.zip")
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02", data.index(b"a/01.png", data.index(b"PK\x01\x02")) - 60)
    data[entry + 8] |= 1
    path.write_bytes(data)
    rows = _all(open_data("folder", path=path, holdout=0, on_error="skip").train)
    assert rows.skipped[0].reason == "it is packed with a password, which cannot be read"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_reads_the_same_zip_file(tmp_path: Path) -> None:
    path = zipped(class_folders(tmp_path / "f", {"a": 4}), tmp_path / "f.zip")
    train = open_data("folder", path=path, holdout=0).train
    expected = _all(train).features.sum()
    child = os.fork()
    if child == 0:
        same = False
        try:
            same = bool(_all(train).features.sum() == expected)
        finally:
            os._exit(0 if same else 1)
    assert _all(train).features.sum() == expected
    assert os.waitpid(child, 0)[1] == 0


def test_a_broken_zip_file_is_named(tmp_path: Path) -> None:
    whole = zipped(class_folders(tmp_path / "f", {"a": 2}), tmp_path / "f.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[:-30])
    with pytest.raises(DataError, match=r"cut\.zip cannot be read as a zip file"):
        open_data("folder", path=tmp_path / "cut.zip")


@pytest.mark.parametrize("packed", [False, True])
def test_an_empty_class_folder_is_named(tmp_path: Path, packed: bool) -> None:
    root = class_folders(tmp_path / "f", {"a": 2, "void": 0})
    place = zipped(root, tmp_path / "f.zip") if packed else root
    with pytest.raises(DataError, match=r"the class folder .*/void has no images; remove it"):
        open_data("folder", root=place)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no images in class folders in"):
        open_data("folder", root=tmp_path)


def test_a_folder_of_only_broken_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("1.png", "2.png"):
        (tmp_path / "a" / name).write_bytes(b"broken")
    with pytest.raises(DataError, match=r"none of the 2 images in .* can be read"):
        open_data("folder", root=tmp_path, on_error="skip")


def test_a_test_class_that_is_not_learnt_is_named(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"a": 2})
    class_folders(tmp_path / "test", {"a": 1, "zebra": 1})
    with pytest.raises(DataError, match="class 'zebra' that is none of the 1 classes"):
        open_data("folder", root=tmp_path, on_error="skip")


def test_a_test_part_alone_is_refused(tmp_path: Path) -> None:
    class_folders(tmp_path / "test", {"a": 1})
    with pytest.raises(DataError, match=r"there is no train/ or train\.zip beside"):
        open_data("folder", root=tmp_path)


def test_a_folder_must_be_named_and_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data=folder needs data.root=FOLDER"):
        open_data("folder")
    with pytest.raises(DataNotFoundError, match=r"there is no folder .*mis datos/ñ; give one"):
        open_data("folder", root=tmp_path / "mis datos" / "ñ")


def test_a_file_that_is_no_zip_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(DataError, match=r"a\.txt cannot be read as a zip file"):
        open_data("folder", root=tmp_path / "a.txt")


def test_a_home_folder_may_be_written_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class_folders(tmp_path / "pets", {"a": 2})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_data("folder", root=Path("~/pets")).train.classes == ("a",)

"""Words become scenarios, and what is wrong with them is said in one sentence."""

from pathlib import Path

import pytest

from streamlearn.errors import ConfigError
from streamlearn.scenarios import DEFAULT, catalogue
from streamlearn.scenarios.words import RESUMABLE, override, resolve


def test_without_words_it_is_the_default_scenario() -> None:
    assert resolve([]).name == DEFAULT == catalogue()[0].name


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_every_built_in_scenario_is_valid_and_says_what_it_does(entry: object) -> None:
    name = entry.name  # type: ignore[attr-defined]
    scenario = resolve([f"scenario={name}"])
    assert scenario.name == name
    assert 10 < len(scenario.summary) <= 90


def test_the_scenarios_that_are_promised_are_there() -> None:
    assert {entry.name for entry in catalogue()} == {
        "digits-onepass",
        "rbf-drift-endless",
        "shuttle-drift",
        "stdin",
        "shuttle-onepass",
        "fashion-onepass",
        "cifar10-bounded",
        "cifar10-bounded-pixels",
        "cifar10-onepass",
        "cifar10-onepass-pixels",
        "split-cifar10",
        "split-cifar10-pixels",
        "split-fashion",
        "cifar10-onepass-rbf",
        "cifar10-onepass-gauge",
        "cifar10-onepass-raw",
        "cifar10-onepass-mlp",
        "cifar100-onepass",
        "teacher-student",
    }


def test_a_kind_word_starts_its_section_from_the_kinds_own_defaults() -> None:
    scenario = resolve(["scenario=cifar10-onepass", "layer=rbf"])
    plain = resolve(["scenario=digits-onepass", "layer=linear", "layer=rbf"])
    assert scenario.layer == plain.layer
    assert scenario.layer.kind == "rbf"


def test_kinds_are_taken_first_whatever_the_order_of_words() -> None:
    one = resolve(["layer.kappa=3", "layer=softmax"])
    other = resolve(["layer=softmax", "layer.kappa=3"])
    assert one == other
    assert one.layer.kappa == 3  # type: ignore[union-attr]


def test_a_kind_that_the_scenario_has_already_keeps_its_settings() -> None:
    scenario = resolve(["scenario=cifar10-onepass", "layer=softmax"])
    assert scenario.layer == resolve(["scenario=cifar10-onepass"]).layer


def test_values_are_taken_verbatim(tmp_path: Path) -> None:
    path = tmp_path / "año=2024, lote [3]" / "m.npz"
    scenario = resolve(["data=npz", f"data.path={path}", "run.name=007"])
    assert scenario.data.path == path
    assert scenario.run.name == "007"
    assert resolve(["run.name=null"]).run.name == "null"


def test_relative_data_paths_are_anchored_where_the_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve(["data=npz", "data.path=a/b.npz"]).data.path == tmp_path / "a" / "b.npz"


def test_a_home_folder_that_does_not_exist_is_taken_verbatim() -> None:
    assert resolve(["data=npz", "data.path=~nosuchuser/x.npz"]).data.path is not None


def test_none_unsets_an_optional_number() -> None:
    assert resolve(["data.limit=none"]).data.limit is None


def test_a_scenario_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('summary = "mine"\nlayer = "gauge"\n[data]\nkind = "digits"\n')
    scenario = resolve([f"scenario={file}", "layer.alpha=2"])
    assert scenario.name == "mine"
    assert scenario.layer.alpha == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("scenario=cifar10onepass", "did you mean cifar10-onepass"),
        ("scenario=nothing-like-it.toml", "cannot be read"),
        ("sed=3", "sed is not a setting; did you mean seed"),
        ("layr.gamma=3", "layr is not a setting; did you mean layer"),
        ("layer.kapa=3", "layer.kapa is not a setting; did you mean layer.kappa"),
        ("layer=rbff", "layer=rbff is not a kind of layer; did you mean rbf"),
        ("data=cifar", "data.kind=cifar cannot be used.*'cifar10'"),
        ("data.limit=abc", "data.limit=abc cannot be used.*integer"),
        ("data.limit=0", "data.limit=0 cannot be used.*greater than or equal to 1"),
        ("learner.batch=-1", "learner.batch=-1 cannot be used.*greater than"),
        ("layer.kappa=nan", "layer.kappa=nan cannot be used.*finite"),
        ("optimizer.decay=1", "optimizer.decay=1 cannot be used.*less than 1"),
        ("encoder.fit=0", "encoder.fit=0 cannot be used"),
        (
            "memory.host_budget=2Gb?",
            r"memory.host_budget=2Gb\? cannot be used: give bytes, such as",
        ),
        (
            "memory.host_budget=0",
            "memory.host_budget=0 cannot be used: it should be greater than 0",
        ),
        ("seed=-1", "seed=-1 cannot be used"),
        ("checkpoint.every_seconds=0", "checkpoint.every_seconds=0 cannot be used"),
        ("data.root=/x", "data.root means nothing for data=digits"),
        ("digits-onepass", "did you mean scenario=digits-onepass"),
        ("nonsense", "is not key=value"),
        ("=3", "is not key=value"),
        ("seed.x=3", "seed.x is not a setting|seed=.* cannot be used"),
        ("network=3", "network=3 is not a kind of network; choose mlp, vit"),
        ("run=3", "run is a section; set one of its keys|run=3 cannot be used"),
    ],
)
def test_a_wrong_word_is_answered_with_one_sentence(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve([word])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[data\n", "\xff\xfe", "layer = 3\n", "data = []\n"])
def test_a_broken_scenario_file_is_named_or_its_key_is(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"broken\.toml|layer|data"):
        resolve([f"scenario={file}"])


def test_resume_takes_only_what_cannot_change_the_result() -> None:
    stored = resolve([]).model_dump(mode="json")
    changed = override(stored, ["checkpoint.every_steps=5"])
    assert changed.checkpoint.every_steps == 5
    changed = override(stored, ["memory.host_budget=1.5GiB", "memory.device_budget=none"])
    assert changed.memory.host_budget == 3 << 29
    assert changed.memory.device_budget is None
    for word in ("layer.kappa=2", "seed=1", "data.limit=10", "layer=softmax"):
        with pytest.raises(ConfigError, match="cannot change when a run is resumed"):
            override(stored, [word])
    for key in RESUMABLE:
        section, name = key.split(".")
        assert section in stored
        assert name


def test_a_stored_scenario_reads_back_as_it_was() -> None:
    for entry in catalogue():
        scenario = resolve([f"scenario={entry.name}"])
        assert override(scenario.model_dump(mode="json"), []) == scenario

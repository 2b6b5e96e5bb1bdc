"""Every setting is explained, and what is said of it is what the settings take."""

import pytest

from streamlearn.errors import ConfigError
from streamlearn.scenarios import catalogue
from streamlearn.scenarios.keys import Key, all_keys, keys_of, matching, sections_of
from streamlearn.scenarios.words import override, resolve
from streamlearn.sections import about

SEEDS = {"seed", "data.seed"}
"""Numbers of which a larger one does nothing else."""


def test_every_setting_says_its_meaning_and_a_number_its_unit_and_what_raising_it_does() -> None:
    keys = all_keys()
    assert len(keys) > 200
    assert not [key for key in keys if not key.meaning]
    numbers = [
        key for key in keys if not key.choices and ("number" in key.range or "bytes" in key.range)
    ]
    assert len(numbers) > 100
    assert not [key for key in numbers if not key.unit]
    assert not [key for key in numbers if not key.more and key.name not in SEEDS]
    assert not [section for section in sections_of() if not section.meaning]


def test_a_description_has_three_parts() -> None:
    assert about("keys; 4 or so [keys]; more: slower; surer") == ("keys; 4 or so", "keys",
                                                                  "slower; surer")  # fmt: skip
    assert about("how it is done") == ("how it is done", "", "")
    assert about(None) == ("", "", "")


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_the_values_here_are_words_that_give_the_same_scenario(entry: object) -> None:
    name = f"scenario={entry.name}"  # type: ignore[attr-defined]
    scenario = resolve([name])
    words = [f"{key.name}={key.here}" for key in keys_of(scenario) if key.here]
    assert len(words) > 30
    assert resolve([name, *words]) == scenario


def test_values_that_are_listed_are_taken_and_others_are_not() -> None:
    scenario = resolve([])
    listed = [key for key in keys_of(scenario) if key.choices and "data." not in key.name]
    assert len(listed) > 15
    for key in listed:
        for value in key.choices:
            try:
                resolve([f"{key.name}={value}"])
            except ConfigError as error:  # it may not fit another setting, but it is a value
                assert "it should be" not in str(error), (key.name, value)  # noqa: PT017
        with pytest.raises(ConfigError, match=key.name):
            resolve([f"{key.name}=perhaps"])


@pytest.mark.parametrize(("name", "words"), [
    ("layer.kappa", "numbers above 0"),
    ("encoder.fit", "whole numbers from 1 to 1,000,000"),
    ("seed", "whole numbers from 0 below 2^63"),
    ("memory.host_budget", "bytes, such as 400MB or 2GiB; or none"),
    ("data.limit", "whole numbers from 1; or none"),
    ("stream.predictions", "a path; or none"),
    ("run.dir", "a path"),
    ("run.name", "a text"),
    ("network.output", "growing, dense, least-squares, none"),
    ("learner.scale_targets", "true, false, none"),
])  # fmt: skip
def test_what_a_setting_may_be_is_said_in_words(name: str, words: str) -> None:
    (key,) = matching(resolve([]), [name])
    assert key.range == words


def test_only_keys_that_mean_something_here_are_listed() -> None:
    def names(*words: str) -> set[str]:
        return {key.name for key in keys_of(resolve(words))}

    assert "layer.kappa" in names() and "layer.gamma" not in names()  # noqa: PT018
    assert "layer.gamma" in names("layer=rbf")
    assert not [name for name in names("learner=knn") if name.startswith(("layer.", "network."))]
    assert not [name for name in names("scenario=stdin") if name.startswith("encoder.")]
    assert "data.delimiter" in names("data=csv", "data.path=a.csv", "data.target=y")
    assert "data.delimiter" not in names()


def test_a_key_of_another_kind_is_found_and_an_unknown_one_has_a_hint() -> None:
    scenario = resolve([])
    (gamma,) = matching(scenario, ["layer.gamma"])
    assert (gamma.kind, gamma.here, gamma.default) == ("rbf", None, "3")
    assert {key.section for key in matching(scenario, ["memory"])} == {"memory"}
    with pytest.raises(ConfigError, match=r"layer.kapa is not a setting; did you mean layer.kappa"):
        matching(scenario, ["layer.kapa"])
    with pytest.raises(
        ConfigError, match=r"did you mean data.kappa or layer.kappa or least_squares.kappa\?"
    ):
        matching(scenario, ["kappa"])


def test_what_is_said_to_be_resumable_is() -> None:
    stored = resolve([]).model_dump(mode="json")

    def resumes(key: Key) -> bool:
        try:
            override(stored, [f"{key.name}={key.here}"])
        except ConfigError as error:
            assert "cannot change when a run is resumed" in str(error)  # noqa: PT017
            return False
        return True

    for key in keys_of(resolve([])):
        if key.here:
            assert resumes(key) == key.resumable, key.name

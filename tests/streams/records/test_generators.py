"""River's generators and data sets as streams of records."""

import itertools
import json

import pytest
from river import datasets
from river.datasets import synth

from streamlearn.errors import ConfigError, FormatError
from streamlearn.streams.records import RecordStream, open_records

from .reading import read


def _stream(name: str, limit: int | None = 20, seed: int = 3) -> RecordStream:
    return open_records("generator", name=name, seed=seed, limit=limit)


@pytest.mark.parametrize(
    "name", [name for name in synth.__all__ if name not in ("ConceptDriftStream", "Logical")]
)
def test_every_generator_gives_what_river_gives(name: str) -> None:
    kind = getattr(synth, name)
    seeds = ("seed", "seed_model", "seed_sample", "seed_tree")
    wanted = [key for key in seeds if key in kind.__init__.__annotations__]
    rows = list(itertools.islice(kind(**dict.fromkeys(wanted, 3)), 20))
    seen = read(_stream(name))
    assert seen.targets == [row[1] for row in rows]
    assert seen.features == [{str(key): value for key, value in row[0].items()} for row in rows]


def test_there_is_no_end_without_a_limit() -> None:
    stream = _stream("SEA", None)
    assert stream.total is None
    assert len(read(stream, 100, 30).targets) == 3000
    assert _stream("SEA", 5).total == 5


def test_a_data_set_of_river_ends() -> None:
    stream = _stream("phishing", None)
    assert stream.total == 1250
    seen = read(stream, 100)
    assert seen.targets == [target for _, target in datasets.Phishing()]
    assert sum(seen.sizes) == 1250


def test_numbers_to_learn_are_known_by_the_generator() -> None:
    assert _stream("FriedmanDrift").schema.regression
    assert _stream("ChickWeights").schema.regression
    assert not _stream("SEA").schema.regression


@pytest.mark.parametrize(
    "name", ["SEA(variant=2, noise=0.1)", "sea:variant=2:noise=0.1", "SEA( variant = 2 ):noise=0.1"]
)
def test_keywords_stand_in_brackets_or_after_colons(name: str) -> None:
    rows = itertools.islice(synth.SEA(variant=2, noise=0.1, seed=3), 20)
    assert read(_stream(name)).targets == [target for _, target in rows]


def test_a_drift_goes_from_one_generator_to_another() -> None:
    name = "ConceptDrift:SEA(variant=0):SEA(variant=2, seed=9):position=30:width=10"
    drift = synth.ConceptDriftStream(
        synth.SEA(variant=0, seed=3), synth.SEA(variant=2, seed=9), position=30, width=10, seed=3
    )
    rows = list(itertools.islice(drift, 60))
    assert read(_stream(name, 60)).targets == [target for _, target in rows]


@pytest.mark.parametrize("name", ["RandomRBFDrift(change_speed=0.1)", "Phishing"])
def test_a_resumed_stream_goes_on_with_the_same_items(name: str) -> None:
    whole = read(_stream(name, 50), 8)
    stream = _stream(name, 50)
    read(stream, 8, 3)
    state = json.loads(json.dumps(stream.state_dict()))
    resumed = _stream(name, 50)
    resumed.load_state_dict(state)
    rest = read(resumed, 8)
    assert rest.features == whole.features[24:]
    assert rest.index == whole.index[24:]
    with pytest.raises(FormatError, match=r"with seed 3 but the data now has 4; give back"):
        _stream(name, 50, 4).load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SEE", r"'SEE' is not known; did you mean 'SEA'\? choose one of ConceptDrift, Agrawal"),
        ("SEA(varian=1)", r"keyword 'varian' is not known; did you mean 'variant'"),
        ("SEA(variant=9)", r"data\.name='?SEA\(variant=9\)'? is refused by river"),
        ("SEA(variant=open('x'))", r"\"?open\('x'\)\"? is no value; write a number"),
        ("SEA(1)", r"cannot be read; write keywords such as SEA\(key=1, other=2\)"),
        ("SEA(variant=1", "is no generator; write a name such as SEA"),
        ("SEA:2", "'2' must be a keyword such as position=5000"),
        ("Elec2", "river's Elec2 is not bundled with the package but downloaded"),
        ("Logical", "river's Logical is for multi-output .* which has several targets"),
        ("ConceptDrift:SEA", "must name two generators"),
        ("ConceptDrift:SEA:Agrawal", "is refused by river: Inconsistent number of features"),
        ("ConceptDrift:SEA:Friedman", "the first is for binary classification, the second for"),
        ("ConceptDrift:SEA:SEA:width=1", "give a width of at least 29"),
        ("ConceptDrift:SEA:SEA:width=0", "must be whole numbers above 0"),
    ],
)
def test_what_is_no_generator_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _stream(name)


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs data\.name, such as SEA"):
        open_records("generator")
    with pytest.raises(ConfigError, match=r"data\.target=y means nothing for data=generator"):
        open_records("generator", name="SEA", target="y")

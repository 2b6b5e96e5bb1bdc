"""Words with lists, and the grids that they make."""

from pathlib import Path

import pytest

from streamlearn.errors import ConfigError
from streamlearn.scenarios.grid import grid_of, written


def test_every_combination_is_a_cell_whose_words_are_those_of_a_run() -> None:
    grid = grid_of(["data.limit=50", "layer.kappa=1, 2", "seed=0,1,2"])
    assert len(grid.cells) == 6
    assert grid.cells[0].words == ("data.limit=50", "layer.kappa=1", "seed=0")
    assert grid.cells[-1].words == ("data.limit=50", "layer.kappa=2", "seed=2")
    assert grid.cells[4].choices == {"layer.kappa": "2", "seed": "1"}
    assert grid.cells[4].name == "5-kappa=2-seed=1"
    assert written(grid.axes) == "layer.kappa=1,2 seed=0,1,2"
    assert grid.scenario == "digits-onepass"


def test_a_comma_in_quotes_or_in_a_path_that_there_is_makes_no_list(tmp_path: Path) -> None:
    path = tmp_path / "año=2024, lote [3].npz"
    path.write_bytes(b"")
    grid = grid_of(["data=npz", f"data.path={path}", "seed=0,1"])
    assert list(grid.axes) == ["seed"]
    assert f"data.path={path}" in grid.cells[0].words
    grid = grid_of(["data=npz", "data.path='a, b.npz',\"c,d.npz\",e[1,2].npz"])
    assert grid.axes["data.path"] == ("a, b.npz", "c,d.npz", "e[1,2].npz")
    grid = grid_of(["data=npz", "data.path='no, such.npz'", "seed=0,1"])
    assert grid.cells[0].words[1] == "data.path=no, such.npz"


def test_the_order_of_words_and_values_does_not_matter_to_a_grid(tmp_path: Path) -> None:
    one = grid_of(["data.limit=50", "layer.kappa=1,2", "seed=0,1"])
    other = grid_of(["seed=1,0", "layer.kappa=2,1", "data.limit=50"])
    assert one.digest == other.digest
    assert one.digest != grid_of(["data.limit=51", "layer.kappa=1,2", "seed=0,1"]).digest
    assert one.digest != grid_of(["data.limit=50", "layer.kappa=1,2", "seed=0,2"]).digest
    own = tmp_path / "own.toml"
    own.write_text('data = "digits"\n')
    before = grid_of([f"scenario={own}", "seed=0,1"]).digest
    own.write_text('data = "digits"\n[learner]\nbatch = 8\n')
    assert grid_of([f"scenario={own}", "seed=0,1"]).digest != before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "nothing to sweep"),
        (["seed=0"], "nothing to sweep"),
        (["seed=0,,1"], "empty value"),
        (["seed=,"], "empty value"),
        (["seed=0,0"], "has 0 twice"),
        (["seed=0,1", "seed=2,3"], "two lists"),
        (["seed=0,1", "seed=2"], "both one value and a list"),
        (["layer=rbf,softmax", "layer.kind=rbf"], "both one value and a list"),
        (["run.name=a,b"], "--dir"),
        (["sede=0,1"], "with sede=0: sede is not a setting; did you mean seed"),
        (["layer.kappa=1,x"], "with layer.kappa=x"),
        (["scenario=digits-onepass,nosuch"], "with scenario=nosuch"),
        (["learner=knn,growing", "layer.kappa=1,2"], "means nothing for learner=knn"),
        (["digits-onepass", "seed=1,2"], "not key=value"),
        ([f"seed={','.join(map(str, range(10_001)))}"], "at most 10,000"),
    ],
)
def test_a_wrong_grid_is_refused_in_a_sentence(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        grid_of(words)

"""`report`: one page that needs nothing else; `plot`: its charts as files; and bad input."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from streamlearn.cli.chart_names import CHARTS
from streamlearn.cli.figures import FIGURES
from streamlearn.cli.main import main
from streamlearn.cli.report_facts import facts_of
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve

GOLDEN = Path(__file__).parent.parent / "golden" / "v1"


def _learn(*words: str) -> None:
    with Session.start(resolve(["encoder.fit=32", "learner.dtype=float32", *words])) as session:
        for _ in session.events():
            pass


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    turns = ("data.order=classes", "data.experiences=5")
    _learn(f"run.dir={folder}", "run.name=turns", "data.limit=300", "encoder.width=8", *turns)
    _learn(f"run.dir={folder}", "run.name=mixed", "data.limit=300", "encoder.width=8",
           "layer.kappa=5")  # fmt: skip
    _learn(f"run.dir={folder}", "run.name=numbers", "scenario=teacher-student", "data.limit=200")
    return folder


def _page(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    # Names of formats are no addresses that anything is fetched from.
    rest = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search(r"https?://|<script|<link(?! rel=\"icon\" href=\"data:,\")|@import", rest)
    return text


def test_a_run_has_every_figure(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "a.html"
    assert main(["report", str(runs / "turns"), "-o", str(page)]) == 0
    assert capsys.readouterr().out.split() == ["report", str(page)]
    text = _page(page)
    for figure in ("prequential accuracy", "tuples", "memory of tuples", "memory of the process",
                   "throughput", "recall by class", "confusion: share of each true class, %",
                   "accuracy of each experience after each, %"):  # fmt: skip
        assert text.count(f'aria-label="{figure}"') == 1
    assert "experience ended" in text
    assert "forgetting" in text
    assert "encoder.width" in text
    assert text.count('<article class="answer">') == 4
    assert "sample 44 of the test: " in text
    assert "#010203" not in text
    before = page.read_bytes()
    told = facts_of(runs / "turns")
    assert sum(map(sum, told.confusion)) == 300
    assert [point[0] for point in told.course.points][-1] <= 300
    assert before == page.read_bytes()


def test_answers_are_explained_with_pictures_while_the_data_can_be_read(
    tmp_path: Path,
) -> None:
    source = np.random.default_rng(0)
    for colour, name in enumerate(("green", "red")):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(20):
            pixels = source.integers(0, 120, (6, 6, 3))
            pixels[:, :, 1 - colour] += 100
            to = tmp_path / "data" / name / f"{number}.png"
            Image.fromarray(pixels.astype(np.uint8)).save(to)
    _learn("data=folder", f"data.root={tmp_path}/data", f"run.dir={tmp_path}", "run.name=run",
           "encoder.fit=8", "learner.batch=4")  # fmt: skip
    page = tmp_path / "a.html"
    words = ["report", str(tmp_path / "run"), "-o", str(page), "--explain"]
    assert main([*words, "3"]) == 0
    text = _page(page)
    answers = text[text.index("Answers explained") :]
    assert answers.count('<article class="answer">') == 3
    assert answers.count('src="data:image/png;base64,') > 12
    assert re.search(r"sample \d of the test: (red|green), \d+\.\d\d%", answers)
    assert re.search("For (red|green), whose output is", answers)
    (tmp_path / "data").rename(tmp_path / "away")
    assert main([*words, "3"]) == 0
    gone = _page(page)
    assert "<article" not in gone
    assert re.search(r'<p class="note">None, for [^<]*there is no folder[^<]*</p>', gone)
    assert 'aria-label="prequential accuracy"' in gone
    assert main([*words, "0"]) == 0
    assert "Answers explained" not in _page(page)


def test_of_a_stream_without_a_test_the_samples_stored_last_are_explained(tmp_path: Path) -> None:
    rows = [f'{{"x": {4 * (n % 2) + n / 100}, "y": "{"ab"[n % 2]}"}}' for n in range(200)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    with Session.start(
        resolve(["data=jsonl", f"data.path={tmp_path}/rows.jsonl", "data.target=y",
                 f"run.dir={tmp_path}", "run.name=run", "learner.batch=6"])
    ) as session:  # fmt: skip
        list(session.events())
    page = tmp_path / "a.html"
    assert main(["report", str(tmp_path / "run"), "-o", str(page), "--explain", "2"]) == 0
    text = _page(page)
    assert "that were stored last" in text
    assert re.findall(r"<h3>sample (\d+): [ab], ", text) == ["199", "198"]


def test_several_runs_stand_side_by_side(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "b.html"
    assert main(["report", str(runs / "turns"), str(runs / "mixed"), "-o", str(page)]) == 0
    text = _page(page)
    assert "turns: in the window" in text
    assert "mixed: in the window" in text
    settings = text[text.index("<summary>Settings") :]
    assert settings.index("layer.kappa") < settings.index("encoder.width")  # it differs


def test_numbers_have_errors(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "c.html"
    assert main(["report", str(runs / "numbers"), "-o", str(page)]) == 0
    text = _page(page)
    assert 'aria-label="mean absolute error"' in text
    assert "confusion" not in text


def test_a_run_of_an_older_version(tmp_path: Path) -> None:
    assert main(["report", str(GOLDEN), "-o", str(tmp_path / "d.html")]) == 0
    assert 'aria-label="tuples"' in _page(tmp_path / "d.html")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["turns", "-o", "{tmp}/a.txt"], "give a name that ends in .html"),
        (["turns", "-o", "{tmp}/no/a.html"], "lies in a folder that is not there"),
        (["turns", "numbers", "-o", "{tmp}/a.html"], "ask for them apart"),
        (["gone", "-o", "{tmp}/a.html"], "there is no run"),
    ],
)
def test_bad_input(
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    given = [word.format(tmp=tmp_path) for word in words]
    named = [str(runs / w) if w in ("turns", "numbers", "gone") else w for w in given]
    assert main(["report", *named]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_every_chart_of_several_runs_becomes_a_file(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(CHARTS) == list(FIGURES)
    assert main(["plot", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert all(f"{name}, {what}" in told for name, what in CHARTS.items())
    for chart in CHARTS:
        to = tmp_path / f"{chart}.svg"
        assert main(["plot", str(runs / "turns"), str(runs / "mixed"), chart, "-o", str(to)]) == 0
        text = to.read_text("utf-8")
        assert "turns" in text
        assert ("mixed" in text) == (chart != "accuracy-matrix")  # it has none
    picture = tmp_path / "it.png"
    assert main(["plot", str(runs / "numbers"), "quality", "-o", str(picture)]) == 0
    with Image.open(picture) as drawn:
        assert min(drawn.size) > 400
        assert len(drawn.convert("RGB").getcolors(1 << 20) or ()) > 20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["turns", "acuracy"], "chart 'acuracy' is unknown; end the command with one of quality"),
        (["turns", "tuples", "-o", "{tmp}/a.pdf"], "give a name that ends in .png or .svg"),
        (["turns", "tuples", "-o", "{tmp}/no/a.png"], "lies in a folder that is not there"),
        (["mixed", "accuracy-matrix", "-o", "{tmp}/a.png"], "no run given has accuracies of exp"),
        (["numbers", "confusion", "-o", "{tmp}/a.png"], "no run given has classes, 60 at most"),
        (["turns", "numbers", "quality", "-o", "{tmp}/a.png"], "which no one curve can show"),
        (["gone", "tuples", "-o", "{tmp}/a.png"], "there is no run"),
    ],
)
def test_what_cannot_be_plotted_is_one_sentence(
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    given = [word.format(tmp=tmp_path) for word in words]
    named = [str(runs / w) if w in ("turns", "mixed", "numbers", "gone") else w for w in given]
    assert main(["plot", *named]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())

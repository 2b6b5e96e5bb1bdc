"""`report`: one page that needs nothing else; `plot`: its charts as files; and bad input."""

import re
from pathlib import Path

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
    assert "#010203" not in text
    before = page.read_bytes()
    told = facts_of(runs / "turns")
    assert sum(map(sum, told.confusion)) == 300
    assert [point[0] for point in told.course.points][-1] <= 300
    assert before == page.read_bytes()


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
        (["turns", "-o", "{tmp}/a.txt"], "no HTML file; give a name that ends in .html"),
        (["turns", "-o", "{tmp}/no/a.html"], "cannot be written there"),
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
        (["turns", "tuples", "-o", "{tmp}/no/a.png"], "cannot be written there"),
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

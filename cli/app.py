"""The commands and their options; what they do is imported only when they are called.

Each command gives its exit code. Errors are raised to `streamlearn.cli.main`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .chart_names import CHARTS
from .completion import complete_key_or_word, complete_resumable, complete_run, complete_word

if TYPE_CHECKING:
    from streamlearn.scenarios.session import Session

    from .output import Output

__all__ = ["app"]

app = typer.Typer(
    name="streamlearn",
    help="Learn from a stream in a single pass, with a memory that grows and is kept on disk.",
    pretty_exceptions_enable=False,
    # Help in colour and boxes takes as long again as all else, and is less plain to read out.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings, such as scenario=NAME, data.limit=2000, seed=3, run.name=mine.",
        autocompletion=complete_word,
        show_default=False,
    ),
]
Again = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings that may change, such as checkpoint.keep=5 or data.path=moved.csv.",
        autocompletion=complete_resumable,
        show_default=False,
    ),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run's folder, or its name in the folder 'runs'.",
        autocompletion=complete_run,
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line on stdout.")]
Plain = Annotated[bool, typer.Option("--plain", help="Plain lines, even on a terminal.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the result, no progress.")]


@app.callback(invoke_without_command=True)
def streamlearn(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> int:
    """Learn from a stream in a single pass, with a memory that grows and is kept on disk."""
    if version:
        from streamlearn import __version__

        typer.echo(f"streamlearn {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
    return 0


@app.command(short_help="Learn a scenario's stream; without words, the default one.")
def run(words: Words = None, json: Json = False, plain: Plain = False, quiet: Quiet = False) -> int:
    """Learn a scenario's stream; without words, the default scenario.

    Ctrl-C saves a checkpoint and stops; the command that resumes is printed then.
    """
    from .learn import Options, learn

    def start() -> "Session":
        from streamlearn.scenarios.session import Session
        from streamlearn.scenarios.words import resolve

        return Session.start(resolve(words or []))

    return learn(start, Options(json, plain, quiet))


@app.command(short_help="Go on with a run from its last checkpoint, or an older one.")
def resume(
    run: Run,
    words: Again = None,
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            metavar="STEP",
            min=0,
            help="Go back to the kept checkpoint of this step; what came after it is gone then.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    plain: Plain = False,
    quiet: Quiet = False,
) -> int:
    """Go on with a run from its last checkpoint, or from an older one that it keeps."""
    from .learn import Options, learn

    def start() -> "Session":
        from streamlearn.scenarios.session import Session
        from streamlearn.storage import find_run

        return Session.resume(find_run(run), words or [], at=at)

    return learn(start, Options(json, plain, quiet))


@app.command(short_help="Let several learners learn one stream.")
def compare(
    words: Words = None,
    learner: Annotated[
        list[str] | None,
        typer.Option(
            "--learner",
            "-l",
            metavar="TEXT",
            help="A learner's words, 'NAME: KEY=VALUE ...' or a kind such as knn; once for each.",
            show_default=False,
        ),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(
            "--png",
            "-o",
            metavar="FILE",
            help="Draw the learning curves to this file (needs matplotlib).",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    plain: Plain = False,
    quiet: Quiet = False,
) -> int:
    """Let several learners learn one stream, in the same order and the same batches.

    The words are common to all, and each --learner lays its own over them.

    Samples, order and batches (data, seed, learner.batch) cannot differ: each batch is read once.

    Seconds and bytes are each learner's own, bytes without the encoder.

    At equal bytes: the windowed accuracy when a learner last took no more than the smallest one.

    (That one at its end, or the smallest size that each of them once had, if that is more.)

    A learner that fails is left out from there on. Nothing is kept.
    """
    from .compare import compare as show
    from .learn import Options

    return show(words or [], learner or [], png, Options(json, plain, quiet))


@app.command(short_help="Run every combination of the values of words, as a grid.")
def sweep(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE[,VALUE]...]... | DIR",
            help="Settings, some with lists, as in layer.kappa=1,3 seed=0,1,2; or the folder of a "
            "sweep, to see its table.",
            autocompletion=complete_word,
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        str | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="The sweep's folder; without it one in 'sweeps', the same for the same words.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", metavar="N", min=1, help="Runs at a time.")
    ] = 1,
    retry: Annotated[
        bool, typer.Option("--retry", help="Run those again, too, that failed.")
    ] = False,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Sort by this figure, such as prequential_accuracy; the test's if there is none.",
            show_default=False,
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE", help="Write the table to this file.", show_default=False
        ),
    ] = None,
    json: Json = False,
    plain: Plain = False,
    quiet: Quiet = False,
) -> int:
    """Run a grid: every combination of the values of words with several, as layer.kappa=1,3.

    Each combination is a run of its own, in a process of its own, in the sweep's folder.

    The same words again go on: finished runs stay, others are resumed, failed ones with --retry.

    A value in quotes or brackets is one value, whatever commas it has.

    With --jobs N each run computes with an equal share of the processors (OMP_NUM_THREADS).

    With several seeds there is also the mean and the standard deviation over them.

    Ctrl-C lets every run save a checkpoint and stop.
    """
    from .learn import Options
    from .sweep import Choices
    from .sweep import sweep as start

    choices = Choices(folder, jobs, retry, metric, csv)
    return start(words or [], choices, Options(json, plain, quiet))


@app.command()
def scenarios(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also what each of them sets, and its meaning.")
    ] = False,
    json: Json = False,
) -> int:
    """List the built-in scenarios."""
    from .listing import list_scenarios

    return _printed(lambda output: list_scenarios(output, json, verbose))


@app.command(short_help="Explain the keys of a scenario.")
def explain_config(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE | KEY | SECTION]...",
            help="Settings as for run, and the keys or sections to explain; all without any.",
            autocompletion=complete_key_or_word,
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Explain the keys of a scenario: meaning, unit, default, range, and what raising one does."""
    from .explain_config import explain_config as show

    return _printed(lambda output: show(words or [], output, json))


@app.command(short_help="Say what will be used here and why, and what is missing.")
def doctor(
    folder: Annotated[
        str,
        typer.Option("--dir", metavar="DIR", help="Where runs are kept; its disk is looked at."),
    ] = "runs",
    json: Json = False,
) -> int:
    """Say what will be used here and why, and what is missing; exit code 2 if something must be.

    Device and dtype, threads, memory, disk, the packages and their versions, the terminal.
    """
    from .doctor import doctor as examine

    return examine(folder, json=json)


@app.command(short_help="Show what a run holds: progress, memory and disk.")
def inspect(
    run: Run,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            "--layer",
            metavar="NAME",
            help="Read every row of this layer, or of all, and show that instead; may be repeated.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Show what a run holds: progress, memory and disk.

    With --layer: age, weights, values, classes and shards of a layer, with their checksums.
    """
    from .signals import StopSignals

    with StopSignals():
        from streamlearn.storage import find_run

        from .inspect import inspect as show

        return _printed(lambda output: show(find_run(run), output, json, layer or []))


@app.command(short_help="Print the facts of a run for scripts.")
def info(run: Run, json: Json = False) -> int:
    """Print the facts of a run for scripts: one JSON object, or a line a fact."""
    from streamlearn.storage import find_run

    from .info import info as show

    return _printed(lambda output: show(find_run(run), output, json))


@app.command()
def watch(run: Run, json: Json = False, plain: Plain = False, quiet: Quiet = False) -> int:
    """Follow a run from a second terminal, or see how it ended. Ctrl-C leaves the run alone."""
    from .signals import Interrupted, StopSignals

    try:
        with StopSignals():
            from streamlearn.storage import find_run

            from .learn import Options
            from .watch import watch as follow

            return follow(find_run(run), Options(json, plain, quiet))
    except Interrupted as interrupted:
        return 0 if interrupted.name == "SIGINT" else interrupted.exit_code


@app.command()
def evaluate(run: Run, words: Again = None, json: Json = False, quiet: Quiet = False) -> int:
    """Score a run's last checkpoint on the held-out test."""
    from .signals import StopSignals

    with StopSignals():
        from streamlearn.scenarios.session import evaluate as score
        from streamlearn.storage import find_run

        from .evaluate import evaluate as show

        events = score(find_run(run), words or [])
        return _printed(lambda output: show(events, output, json=json, quiet=quiet))


@app.command()
def explain(
    run: Run,
    words: Words = None,
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample",
            metavar="N",
            min=0,
            help="A sample by its number in the data, counted from 0.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="PATH",
            help="A picture, or a .json file with one row.",
            show_default=False,
        ),
    ] = None,
    row: Annotated[
        str | None,
        typer.Option(
            "--row", metavar="JSON", help="A row: an object, or numbers.", show_default=False
        ),
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="Count the sample among those of the held-out test.")
    ] = False,
    top: Annotated[
        int, typer.Option("--top", metavar="K", min=1, max=100, help="Tuples to name of a kind.")
    ] = 8,
    to: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write it to a file, too: .html, or .png (needs matplotlib).",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Show which stored samples made a run's answer, and how much each of them did.

    Contributions of all tuples sum to the answer; exit code 1 if they do not.
    """
    from .signals import StopSignals

    with StopSignals():
        from streamlearn.scenarios.explain import Asked
        from streamlearn.storage import find_run

        from .explain import explain as show
        from .output import Output, output_code

        output = Output(sys.stdout)
        asked = Asked(sample, file, row, test)
        code = show(find_run(run), asked, words or [], output, top=top, json=json, to=to)
        return output_code(output.failed) or code


@app.command(short_help="Read every byte of a run and name each file that is damaged.")
def verify(
    run: Run,
    json: Json = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Go back to the newest checkpoint that is whole.")
    ] = False,
) -> int:
    """Read every byte of a run and name each file that is damaged; exit code 1 if one is."""
    from .signals import StopSignals

    with StopSignals():
        from streamlearn.storage import find_run

        from .output import Output, output_code
        from .verify import verify_run

        output = Output(sys.stdout)
        code = verify_run(find_run(run), output, json=json, mend=repair)
        return output_code(output.failed) or code


@app.command(short_help="Leave the dead tuples out of a run's shards.")
def compact(run: Run, json: Json = False) -> int:
    """Leave the dead tuples of a run that is not running out of its shards, to free their room.

    The others are added up in other blocks then, so results may differ in their last bits.
    """
    from .signals import StopSignals

    with StopSignals():
        from streamlearn.storage import find_run

        from .compact import compact as leave_out

        return _printed(lambda output: leave_out(find_run(run), output, json))


@app.command(short_help="Write one page about runs: curves, classes, answers, settings.")
def report(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN…", help="Run directories.", show_default=False)
    ],
    page: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE.html", help="What to write.")
    ] = Path("report.html"),
    explained: Annotated[
        int,
        typer.Option(
            "--explain",
            metavar="N",
            min=0,
            max=100,
            help="Answers of each run to explain; 0: none.",
        ),
    ] = 4,
) -> int:
    """Write one page about runs: curves, classes, marks and settings, several side by side.

    Answers to held-out samples, or the last ones stored, are explained where the data can be read.
    """
    from .signals import StopSignals

    with StopSignals():
        from streamlearn.storage import find_run

        from .report import report as write

        paths = [find_run(run) for run in runs]
        return _printed(lambda output: write(paths, page, output, explained))


@app.command(
    short_help="Draw one chart of runs to a file.",
    help="Draw one chart of runs to a file, several runs on one axis; needs matplotlib."
    "\n\nCharts: " + "; ".join(f"{name}, {what}" for name, what in CHARTS.items()) + ".",
)
def plot(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…",
            help="Folders of runs, or their names in the folder 'runs'.",
            show_default=False,
        ),
    ],
    chart: Annotated[
        str,
        typer.Argument(metavar="CHART", help="One of the charts named above.", show_default=False),
    ],
    to: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="A .png or .svg file to write.")
    ] = Path("plot.png"),
) -> int:
    """Draw one chart of runs to a file."""
    from .signals import StopSignals

    with StopSignals():
        from .plot_file import plot_runs

        return _printed(lambda output: plot_runs(runs, chart, to, output))


@app.command(short_help="Drop or merge tuples of a run.")
def prune(
    run: Run,
    words: Words = None,
    below: Annotated[
        float | None,
        typer.Option(
            "--below",
            metavar="EPS",
            help="Drop tuples whose value and weight both count for less by now.",
            show_default=False,
        ),
    ] = None,
    merge: Annotated[
        float | None,
        typer.Option(
            "--merge",
            metavar="DISTANCE",
            help="Make one of tuples whose keys differ by no more (root mean square); 0: equal "
            "keys.",
            show_default=False,
        ),
    ] = None,
    merge_near: Annotated[
        float | None,
        typer.Option(
            "--merge-near",
            metavar="SIMILARITY",
            help="Project tuples on others to which the kernel says they are so similar, up to 1.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Change nothing; say what would go, and the held-out accuracy before and after.",
        ),
    ] = False,
    json: Json = False,
) -> int:
    """Drop or merge tuples of a run that is not running, as a new checkpoint of it.

    Their rows are dead then and count for nothing; streamlearn compact frees the bytes.

    The run can be resumed as before, and goes on without them.
    """
    from .signals import StopSignals

    with StopSignals():
        from streamlearn.scenarios.prune import Wanted
        from streamlearn.storage import find_run

        from .prune import prune as leave_out

        wanted, path = Wanted(below, merge, dry_run, merge_near), find_run(run)
        return _printed(lambda output: leave_out(path, wanted, words or [], output, json=json))


@app.command(short_help="Write a run's tuples to a file or folder of a common format.")
def export(
    run: Run,
    to: Annotated[
        Path,
        typer.Option(
            "--to",
            metavar="PATH",
            help="What to make: FILE.safetensors, FILE.npz, or a folder for a zarr group.",
            show_default=False,
        ),
    ],
    json: Json = False,
) -> int:
    """Write the tuples of a run's last checkpoint to a file or folder of a common format."""
    from .signals import StopSignals

    with StopSignals():
        from streamlearn.storage import find_run

        from .export import export as write

        return _printed(lambda output: write(find_run(run), to, output, json))


def _printed(show: "Callable[[Output], None]") -> int:
    """Let a command print to stdout, and give the exit code."""
    from .output import Output, output_code

    output = Output(sys.stdout)
    show(output)
    return output_code(output.failed)

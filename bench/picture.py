"""The picture of the dashboard in the README, drawn by the dashboard itself.

    python -m bench.picture RUN [--share 0.85] [--size 100x30] [-o docs/dashboard.svg]

The event log of a run is replayed until a share of its stream was learnt, and what the dashboard
showed then is exported as SVG by rich. Nothing in the picture names a folder of this machine.
"""

import argparse
import io
import re
from pathlib import Path

from rich.console import Console

from streamlearn.cli.dashboard import render
from streamlearn.cli.model import Model
from streamlearn.events import Progress
from streamlearn.storage import RunReader, find_run

OUT = Path(__file__).resolve().parents[1] / "docs" / "dashboard.svg"


def replayed(run: str, share: float) -> tuple[Model, float]:
    """What the dashboard knew of a run once a share of its stream was learnt, and when."""
    reader = RunReader(find_run(run))
    records, _ = reader.events(0)
    model = Model(run=reader.header.name, scenario=reader.header.scenario)
    now = 0.0
    for record in records:
        event = model.replay(record)
        now = float(record.get("time", now))
        if isinstance(event, Progress) and event.position >= share * (event.total_samples or 0):
            break
    return model, now


def picture(model: Model, now: float, width: int, height: int) -> str:
    """The dashboard as SVG."""
    console = Console(
        record=True, width=width, height=height, file=io.StringIO(), force_terminal=True,
        color_system="truecolor", legacy_windows=False,
    )  # fmt: skip
    console.print(render(model, width, height, now), end="")
    drawn = console.export_svg(title=f"streamlearn run scenario={model.scenario}")
    # A picture that asks the network for its font is none.
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--share", type=float, default=0.85)
    parser.add_argument("--size", default="100x30")
    parser.add_argument("-o", "--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    width, height = map(int, chosen.size.split("x"))
    model, now = replayed(chosen.run, chosen.share)
    model.run = model.run or Path(chosen.run).name
    chosen.out.write_text(picture(model, now, width, height), encoding="utf-8")
    print(chosen.out)


if __name__ == "__main__":
    main()

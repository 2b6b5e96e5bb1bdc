"""The plots of the report."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from .claims import mean_of
from .records import Record

__all__ = ["bars", "curves"]

Runs = Mapping[str, Sequence[Record]]


def bars(path: Path, title: str, runs: Runs, claims: Mapping[str, float | None]) -> None:
    """Test accuracy of each row, the best on top, with a mark at what was claimed."""
    figures = [(key, mean_of(records, "accuracy")) for key, records in runs.items()]
    known = sorted(((f, key) for key, f in figures if f is not None))
    plot, axes = plt.subplots(figsize=(8, 0.34 * len(known) + 1.2))
    for place, (figure, key) in enumerate(known):
        dense = key.split(" / ")[0].endswith("MLP")
        axes.barh(place, figure, color="#8da0cb" if dense else "#66a887", height=0.7)
        axes.text(figure + 0.4, place, f"{figure:.1f}", va="center", fontsize=8)
        claim = claims.get(key)
        if claim is not None:
            axes.plot([claim, claim], [place - 0.42, place + 0.42], color="black", linewidth=2)
    axes.set_yticks(range(len(known)), [key.split(" / ")[0] for _, key in known], fontsize=8)
    axes.set_xlim(0, max([100 / 1.15, *(f for f, _ in known)]) * 1.15)
    axes.set_xlabel("test accuracy, %; black line: claimed, on the original files")
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    plot.tight_layout()
    plot.savefig(path, dpi=110)
    plt.close(plot)


def curves(path: Path, title: str, runs: Runs) -> None:
    """Accuracy of the last 2,000 samples, before they were learnt, against samples learnt."""
    plot, axes = plt.subplots(figsize=(8, 5))
    ranked = sorted(runs, key=lambda key: -(mean_of(runs[key], "accuracy") or 0))
    colours = plt.get_cmap("tab20")
    for place, key in enumerate(ranked):
        done = [run for run in runs[key] if not run.get("error")]
        if not done:
            continue
        points = done[0]["curve"]
        axes.plot(
            [samples for samples, _ in points],
            [100 * accuracy for _, accuracy in points],
            label=key.split(" / ")[0],
            color=colours(place % 20),
            linestyle="--" if key.split(" / ")[0].endswith("MLP") else "-",
            linewidth=1.4,
        )
    axes.set_xlabel("samples learnt")
    axes.set_ylabel("accuracy of the last 2,000 before they were learnt, %")
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, ncols=2, frameon=False)
    plot.tight_layout()
    plot.savefig(path, dpi=110)
    plt.close(plot)

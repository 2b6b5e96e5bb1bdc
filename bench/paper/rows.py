"""The rows of the report as data: what is run, what is swept, what was claimed.

A row's words are those of `streamlearn run` without the place of the data. Its axes are tried one
after the other, each at the best values of those before it; an option is one or more words, where
`key*=factor` multiplies a value that stands already. Every row of a group has as many trials.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["TRIALS", "Axis", "Row", "options_of", "rows", "with_words"]

TRIALS = {"pca": 8, "raw": 5, "patch": 4, "vit": 6, "temperature": 4, "variants": 4}
"""Of every swept row of a group."""

Axis = tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A learner on some features.

    name: unique in its group. group: the table it stands in. words: see above. axes: of the sweep;
    none where `settings_of` names the row whose settings are taken. trial_samples: learnt in a
    trial. samples: learnt in a run; None for all. more: words of a run alone. claim: test accuracy
    in percent that was claimed for it, from `source`.
    """

    name: str
    group: str
    words: tuple[str, ...]
    axes: tuple[Axis, ...] = ()
    trial_samples: int = 10_000
    samples: int | None = None
    more: str = ""
    settings_of: str | None = None
    claim: float | None = None
    source: str = ""

    @property
    def trials(self) -> int:
        """How many trials its sweep has."""
        return sum(len(axis) for axis in self.axes)


def with_words(words: Sequence[str], option: str) -> tuple[str, ...]:
    """Words with those of an option put in: a key that stands already is changed in its place."""
    values = dict(word.split("=", 1) for word in words)
    for word in option.split():
        key, value = word.split("=", 1)
        if key.endswith("*"):
            key = key[:-1]
            value = f"{float(values[key]) * float(value):.6g}"
        values[key] = value
    return tuple(f"{key}={value}" for key, value in values.items())


def options_of(key: str, *values: float | str) -> Axis:
    """An axis of one key."""
    return tuple(f"{key}={value}" for value in values)


PAPER = "arXiv 2610.03858, one pass, original files"
NOTEBOOK = "the authors' notebook, one pass, raw pixels, original files"

# -- networks of fixed size ----------------------------------------------------------------------

# Rates, then a setting of the optimizer's own, a smaller batch and a wider network. Losses are
# summed over a batch: sgd and delta keep their rate in a smaller batch, the others lower it.
_OPTIMIZERS: dict[str, tuple[Axis, ...]] = {
    "sgd": (
        options_of("learner.lr", 0.0003, 0.001, 0.002, 0.004, 0.008),
        ("learner.momentum=0.9 learner.lr*=0.1",),
        ("learner.batch=32",),
    ),
    "adam": (
        options_of("learner.lr", 0.0003, 0.001, 0.002, 0.004, 0.01),
        ("learner.weight_decay=0.01",),
        ("learner.batch=32 learner.lr*=0.7",),
    ),
    "adamw": (
        options_of("learner.lr", 0.0003, 0.001, 0.002, 0.004, 0.01),
        ("learner.weight_decay=1",),
        ("learner.batch=32 learner.lr*=0.7",),
    ),
    "rmsprop": (
        options_of("learner.lr", 0.0001, 0.0003, 0.001, 0.002, 0.004),
        ("learner.momentum=0.9 learner.lr*=0.1",),
        ("learner.batch=32 learner.lr*=0.7",),
    ),
    "muon": (
        options_of("learner.lr", 0.005, 0.01, 0.02, 0.05, 0.1),
        ("learner.weight_decay=1",),
        ("learner.batch=32 learner.lr*=0.7",),
    ),
    "foof": (
        options_of("learner.lr", 0.01, 0.03, 0.1, 0.3, 1.0),
        ("learner.damping=1",),
        ("learner.batch=32 learner.lr*=0.7",),
    ),
    "mesa": (
        options_of("learner.lr", 0.01, 0.03, 0.1, 0.3, 1.0),
        ("learner.damping=1",),
        ("learner.batch=32 learner.lr*=0.7",),
    ),
    "delta": (
        options_of("learner.lr", 0.0003, 0.001, 0.002, 0.004, 0.008),
        ("learner.forget=0.0001",),
        ("learner.batch=32",),
    ),
}
_WIDER: Axis = ("network.width*=2",)

_TITLES = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSProp",
    "muon": "Muon",
    "foof": "FOOF",
    "mesa": "Mesa",
    "delta": "Delta",
}

# Figures claimed for a MLP in one pass, on raw pixels.
_CLAIMED: dict[str, tuple[float, str]] = {
    "sgd": (46.3, NOTEBOOK),
    "adam": (48.2, NOTEBOOK),
    "adamw": (48.3, NOTEBOOK),
    "rmsprop": (49.9, NOTEBOOK),
    "muon": (57.2, NOTEBOOK),
    "foof": (53.8, PAPER),
    "mesa": (53.8, PAPER),
}

_ENCODERS: dict[str, tuple[str, ...]] = {
    "pca": ("scenario=cifar10-onepass-pixels",),
    "raw": ("scenario=cifar10-onepass-raw",),
    "patch": ("scenario=cifar10-onepass",),
}

_TRIAL_SAMPLES = {"pca": 10_000, "raw": 5_000, "patch": 10_000}


def _dense(features: str) -> list[Row]:
    """A ResNet-MLP of two hidden layers by every optimizer."""
    width = 256 if features == "raw" else 512
    made = []
    for word, axes in _OPTIMIZERS.items():
        if word == "mesa" and features != "pca":
            continue  # next to FOOF, and the dearest
        words = (
            *_ENCODERS[features],
            "network.layers=dense",
            "network.hidden=2",
            f"network.width={width}",
            "learner=parametric",
            "learner.schedule=cosine",
            "learner.batch=64",
            f"learner.optimizer={word}",
            *(("learner.refresh=10",) if features == "raw" and word in ("foof", "mesa") else ()),
        )
        tried = {"pca": (*axes, _WIDER), "raw": (axes[0][:4], axes[2]), "patch": (axes[0][:4],)}
        if word == "foof":  # raw pixels' second moments are far from the identity
            words = with_words(words, "learner.damping=1") if features == "raw" else words
            rates = options_of("learner.lr", 0.03, 0.1, 0.3, 1.0)
            tried |= {
                "raw": (rates, ("learner.damping=10 learner.lr*=3",)),
                "patch": (axes[0][1:],),
            }
        claim = _CLAIMED.get(word) if features == "raw" else None
        made.append(
            Row(
                f"{_TITLES[word]} MLP",
                features,
                words,
                tried[features],
                trial_samples=_TRIAL_SAMPLES[features],
                claim=claim[0] if claim else None,
                source=claim[1] if claim else "",
            )
        )
    return made


# -- growing networks ----------------------------------------------------------------------------


def _value_rates(*pairs: tuple[float, float]) -> Axis:
    return tuple(f"layer.lr_value={out} layer.lr_value_hidden={hidden}" for out, hidden in pairs)


_WEIGHT_RATES: Axis = ("layer.lr_weight*=3 layer.lr_weight_hidden*=3",)
_RATES = _value_rates((0.05, 0.025), (0.1, 0.05), (0.2, 0.1), (0.4, 0.2), (0.2, 0.3))


def _growing(features: str) -> list[Row]:
    """Growing layers; one hidden layer, and on raw pixels the authors' figures beside them."""
    base = (*_ENCODERS[features], "network.hidden=1", "learner.batch=64")
    raw = features == "raw"
    common = {"group": features, "trial_samples": _TRIAL_SAMPLES[features]}

    def row(name: str, words: tuple[str, ...], axes: tuple[Axis, ...], claim: float) -> Row:
        return Row(
            name,
            words=(*base, *words),
            axes={"pca": axes, "raw": (axes[0][:4], axes[1][:1]), "patch": (axes[0][:4],)}[
                features
            ],
            claim=claim if raw else None,
            source=PAPER if raw else "",
            **common,  # type: ignore[arg-type]
        )

    return [
        row(
            "weighted softmax",
            ("layer=softmax", "layer.temperature=none", "layer.kappa=8", "layer.lr_weight=0.003",
             "layer.lr_weight_hidden=0.003"),
            (_RATES, options_of("layer.kappa", 6), _WEIGHT_RATES, ("learner.batch=32",)),
            59.4,
        ),
        row(
            "gauge-invariant softmax",
            ("layer=gauge", "layer.kappa=8", "layer.lr_weight=0.001",
             "layer.lr_weight_hidden=0.00005"),
            (
                _RATES,
                options_of("layer.kappa", 6),
                # Always positive weights accumulate, so their rates have to fall.
                ("layer.lr_weight*=0.3 layer.lr_weight_hidden*=0.3",),
                ("learner.batch=32",),
            ),
            58.4,
        ),
        row(
            "RBF",
            ("layer=rbf", "layer.gamma=4"),
            (
                _value_rates((3, 24), (10, 80), (30, 240), (10, 30), (3, 80)),
                options_of("layer.gamma", 3, 5),
                ("learner.batch=32",),
            ),
            58.8,
        ),
    ]  # fmt: skip


def _authors() -> Row:
    """The authors' own settings: two hidden layers, T = 6, batch 16; not swept here."""
    return Row(
        "weighted softmax, as the authors",
        "raw",
        _ENCODERS["raw"],
        claim=59.2,
        source=NOTEBOOK,
    )


def _variants() -> list[Row]:
    """Controls on the whitened principal components."""
    base = (*_ENCODERS["pca"], "network.hidden=1", "learner.batch=64")
    soft = ("layer.kappa=8", "layer.lr_weight=0.003", "layer.lr_weight_hidden=0.003")
    parametric = (
        *base,
        "learner=parametric",
        "layer=parametric-softmax",
        "layer.width=5000",
        "learner.optimizer=adam",
        "learner.schedule=cosine",
    )
    axes = (options_of("learner.lr", 0.03, 0.1, 0.3, 1.0),)
    return [
        Row(
            "decoupled softmax",
            "variants",
            (*base, "layer=decoupled", *soft),
            (_value_rates((0.05, 0.025), (0.1, 0.05), (0.2, 0.1), (0.8, 0.4)),),
        ),
        Row(
            "unweighted softmax (negative control)",
            "variants",
            (*base, "layer=unweighted", "layer.kappa=8"),
            (_value_rates((1, 0.1), (3, 0.3), (10, 1), (30, 3)),),
        ),
        Row(
            "linear attention (dual form)",
            "variants",
            (*base, "layer=linear"),
            (
                _value_rates((0.0001, 1e-05), (0.0003, 3e-05), (0.001, 0.0001), (0.003, 0.0003)),
            ),
        ),
        Row(
            "parametric softmax, weighted",
            "variants",
            (*parametric, "layer.weighted=true", "layer.kappa=6"),
            axes,
        ),
        Row(
            "parametric softmax, unweighted",
            "variants",
            (*parametric, "layer.weighted=false", "layer.kappa=6"),
            axes,
            claim=42.0,
            source=f"{NOTEBOOK}, 5,000 keys",
        ),
    ]  # fmt: skip


# -- classical learners --------------------------------------------------------------------------


def _classical(features: str) -> list[Row]:
    base = (*_ENCODERS[features], "learner.batch=64")
    size = _TRIAL_SAMPLES[features]
    raw = features == "raw"
    refresh = ("learner.refresh=100",) if raw else ()
    short = features != "pca"
    ridge = Row(
        "streaming ridge",
        features,
        (*base, "learner=ridge", *refresh),
        (
            options_of("learner.regularisation", 1, 30, 1000, 10_000, 100_000)[short:],
            ("learner.regularisation*=3", "learner.regularisation*=0.3")[short:],
            ("learner.normalise=true",),
        ),
        trial_samples=size,
    )
    listed = [
        ridge,
        Row(
            "streaming linear discriminant",
            features,
            (*base, "learner=discriminant", *refresh),
            (
                options_of("learner.shrinkage", 0.0001, 0.001, 0.01, 0.1, 0.5)[short:],
                ("learner.shrinkage*=0.3", "learner.shrinkage*=2")[short:],
                ("learner.normalise=true",),
            ),
            trial_samples=size,
        ),
        Row(
            "kNN",
            features,
            (*base, "learner=knn", "learner.normalise=true"),
            (
                options_of("learner.k", 5, 10, 15, 20, 25)[short:],
                options_of("learner.metric", "dot")[short:],
                options_of("learner.weighting", "kernel"),
                ("learner.normalise=false",),
            ),
            trial_samples=size,
            claim=34.8 if raw else None,
            source=PAPER if raw else "",
        ),
        Row(
            "LS-SVM",
            features,
            (*base, "learner=kernel", "learner.normalise=true"),
            (
                options_of("learner.regularisation", 0.01, 0.03, 0.1, 0.3, 1)[short:],
                options_of("learner.scale", 0.3, 0.5)[short:],
                ("learner.normalise=false",),
            ),
            trial_samples=5000,
            more="learner.limit=50000",
            claim=42.3 if raw else None,
            source=PAPER if raw else "",
        ),
    ]
    if features == "patch":
        return [replace(ridge, axes=(options_of("learner.regularisation", 1, 10, 30, 100),))]
    if raw:
        listed = [replace(row, axes=tuple(filter(None, row.axes[:-1]))) for row in listed]
    return listed


def _sampled_features() -> list[Row]:
    base = (*_ENCODERS["pca"], "learner.batch=64")
    axes: tuple[Axis, ...] = (options_of("learner.alpha", 1e-05, 0.0001, 0.001, 0.01),)
    return [
        Row(
            f"SGDClassifier on {title} features",
            "variants",
            (*base, "learner=features", f"learner.map={word}", "learner.normalise=true"),
            axes,
        )
        for word, title in (("fourier", "random Fourier"), ("nystroem", "Nystroem"))
    ]


# -- what one setting does -----------------------------------------------------------------------


def _temperatures() -> list[Row]:
    """T at D = 3072, each with rates of its own."""
    base = (
        *_ENCODERS["raw"],
        "network.hidden=1",
        "learner.batch=64",
        "layer.lr_weight=0.003",
        "layer.lr_weight_hidden=0.003",
    )
    # The sharper the softmax, the larger a step of the same rate.
    rates = {1: (0.003, 0.01, 0.03, 0.1), 10: (0.1, 0.2, 0.5, 1), 30: (0.2, 0.5, 1, 2)}
    return [
        Row(
            f"T = {temperature}",
            "temperature",
            (*base, f"layer.temperature={temperature}"),
            (_value_rates(*((rate, rate) for rate in rates[temperature])),),
            trial_samples=5000,
        )
        for temperature in (1, 10, 30)
    ]


def _depths() -> list[Row]:
    """Hidden layers of a growing network, with the settings of the one that has one."""
    return [
        Row(
            f"weighted softmax, {count} hidden",
            "depth",
            (*_ENCODERS["pca"], f"network.hidden={count}"),
            settings_of="weighted softmax / pca",
        )
        for count in (0, 1, 2, 3)
    ]


def _epochs() -> list[Row]:
    """Five epochs of 20,000 samples with the paper's augmentation."""
    epochs = ("data.epochs=5", "data.augment=paper")
    return [
        Row(
            f"weighted softmax, {title}",
            "epochs",
            (*_ENCODERS["pca"], *epochs, f"learner.revisit={word}"),
            samples=20_000,
            settings_of="weighted softmax / pca",
        )
        for word, title in (("append", "appending"), ("update", "updating in place"))
    ] + [
        Row(
            f"parametric softmax, {title}",
            "epochs",
            (*_ENCODERS["pca"], *epochs),
            samples=20_000,
            settings_of=f"parametric softmax, {title} / variants",
        )
        for title in ("weighted", "unweighted")
    ]


def _transformers() -> list[Row]:
    """A small ViT, dense and with growing feed-forward layers."""
    base = (
        *_ENCODERS["raw"],
        "network=vit",
        "network.hidden=2",
        "network.patch=8",
        "network.width=64",
        "network.inner=256",
        "network.heads=4",
        "learner=parametric",
        "learner.optimizer=adamw",
        "learner.batch=64",
        "learner.schedule=cosine",
    )
    return [
        Row(
            "ViT, dense",
            "vit",
            (*base, "network.layers=dense"),
            (
                options_of("learner.lr", 0.001, 0.002, 0.004, 0.008),
                ("learner.weight_decay=0.1",),
                ("learner.batch=32 learner.lr*=0.7",),
            ),
            trial_samples=2_500,
            claim=48.4,
            source=PAPER,
        ),
        Row(
            "ViT, growing feed-forward layers",
            "vit",
            (
                *base,
                "network.layers=growing",
                "network.output=dense",
                "layer.kappa=4",
                "layer.lr_value_hidden=0.1",
                "layer.lr_weight_hidden=0.001",
            ),
            (
                options_of("learner.lr", 0.002, 0.004, 0.008),
                options_of("layer.lr_value_hidden", 0.03, 0.3),
                ("learner.batch=32 learner.lr*=0.7",),
            ),
            trial_samples=2_500,
            claim=54.4,
            source=PAPER,
        ),
    ]


def rows() -> dict[str, Row]:
    """All rows by `name / group`, in the order in which they are measured."""
    listed = [
        *_growing("pca"),
        *_classical("pca"),
        *_dense("pca"),
        *_growing("raw")[:1],
        *_dense("raw"),
        *_temperatures(),
        *_growing("patch")[:1],
        *_classical("patch"),
        *_dense("patch"),
        *_classical("raw"),
        *_transformers(),
        *_growing("raw")[1:],
        *_variants(),
        *_sampled_features(),
        *_depths(),
        *_epochs(),
        _authors(),
    ]
    return {f"{row.name} / {row.group}": row for row in listed}

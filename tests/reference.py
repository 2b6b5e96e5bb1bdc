"""The mathematics once more, as slow float64 loops that share nothing with the library.

Rows are vectors: q (D,), keys (N, D), weights (N,), weighted values (N, C), g = ∂L/∂s (C,).
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Phi: TypeAlias = Callable[[Array, Array], float]

__all__ = [
    "Array",
    "Phi",
    "clipped_tuple",
    "coefficients",
    "dot_gradient",
    "dot_phi",
    "gauge_tuple",
    "kernel_output",
    "mirrored",
    "patch_features",
    "patch_filters",
    "pca",
    "prequential",
    "rbf_gradient",
    "rbf_phi",
    "softmax_gradient",
    "softmax_output",
]


# -- retrieval, one query and one tuple at a time --------------------------------------------------


def softmax_output(
    query: Array, keys: Array, weights: Array, values: Array, temperature: float, counts: Array
) -> Array:
    """s = Σ c e^l ṽ / Σ c e^l w with l = ⟨k, q⟩/(T√D), less the largest l of a tuple with w > 0."""
    logits = [float(np.dot(key, query)) / (temperature * math.sqrt(len(query))) for key in keys]
    top = max(
        logit for logit, weight, count in zip(logits, weights, counts, strict=True)
        if weight * count > 0
    )  # fmt: skip
    numerator, denominator = np.zeros(values.shape[1]), 0.0
    for logit, weight, value, count in zip(logits, weights, values, counts, strict=True):
        pull = count * math.exp(logit - top)
        numerator += pull * value
        denominator += pull * weight
    result: Array = numerator / denominator
    return result


def softmax_gradient(
    query: Array,
    keys: Array,
    weights: Array,
    values: Array,
    temperature: float,
    counts: Array,
    gradient: Array,
) -> Array:
    """∂⟨g, s⟩/∂q by the quotient rule.

    With N = Σ c e^l ṽ, Z = Σ c e^l w and ∂e^l/∂q = e^l k/(T√D):
    ∂s = (∂N − s ∂Z)/Z, so ⟨g, ∂s⟩ = Σ c e^l (⟨g, ṽ⟩ − ⟨g, s⟩ w)/Z · k/(T√D).
    """
    scale = 1.0 / (temperature * math.sqrt(len(query)))
    output = softmax_output(query, keys, weights, values, temperature, counts)
    logits = [float(np.dot(key, query)) * scale for key in keys]
    top = max(
        logit for logit, weight, count in zip(logits, weights, counts, strict=True)
        if weight * count > 0
    )  # fmt: skip
    agreement = float(np.dot(gradient, output))
    result, denominator = np.zeros(len(query)), 0.0
    for logit, key, weight, value, count in zip(logits, keys, weights, values, counts, strict=True):
        pull = count * math.exp(logit - top)
        denominator += pull * weight
        result += pull * (float(np.dot(gradient, value)) - agreement * weight) * scale * key
    answer: Array = result / denominator
    return answer


def rbf_phi(gamma: float) -> Phi:
    """φ(k, q) = exp(−γ‖k − q‖²/D)."""

    def phi(key: Array, query: Array) -> float:
        distance = sum((float(a) - float(b)) ** 2 for a, b in zip(key, query, strict=True))
        return math.exp(-gamma * distance / len(query))

    return phi


def dot_phi(key: Array, query: Array) -> float:
    """φ(k, q) = ⟨k, q⟩."""
    return float(sum(float(a) * float(b) for a, b in zip(key, query, strict=True)))


def kernel_output(query: Array, keys: Array, values: Array, phi: Phi, counts: Array) -> Array:
    """Σ c φ(k, q) ṽ."""
    result = np.zeros(values.shape[1])
    for key, value, count in zip(keys, values, counts, strict=True):
        result += count * phi(key, query) * value
    return result


def rbf_gradient(
    query: Array, keys: Array, values: Array, gamma: float, counts: Array, gradient: Array
) -> Array:
    """∂φ/∂q = φ · 2γ/D · (k − q), contracted with g."""
    phi = rbf_phi(gamma)
    result = np.zeros(len(query))
    for key, value, count in zip(keys, values, counts, strict=True):
        pull = count * phi(key, query) * float(np.dot(gradient, value))
        result += pull * 2.0 * gamma / len(query) * (key - query)
    return result


def dot_gradient(keys: Array, values: Array, counts: Array, gradient: Array) -> Array:
    """∂φ/∂q = k, contracted with g."""
    result = np.zeros(keys.shape[1])
    for key, value, count in zip(keys, values, counts, strict=True):
        result += count * float(np.dot(gradient, value)) * key
    return result


# -- momentum and decay ----------------------------------------------------------------------------


def coefficients(births: Sequence[int], steps: int, momentum: float, decay: float) -> Array:
    """What a write at each birth step counts after `steps` steps, by running the recursion.

    Each write is its own coordinate of V and F: `V ← μV + G`, `F ← (1 − γ)F + V` (a write holds its
    −η already). Births below 1 belong to no step and count 1.
    """
    velocity, function = np.zeros(len(births)), np.zeros(len(births))
    for step in range(1, steps + 1):
        for place, birth in enumerate(births):
            velocity[place] = momentum * velocity[place] + (1.0 if birth == step else 0.0)
            function[place] = (1.0 - decay) * function[place] + velocity[place]
    for place, birth in enumerate(births):
        if birth < 1:
            function[place] = 1.0
    return function


# -- write rules -----------------------------------------------------------------------------------


def clipped_tuple(
    output: Array, gradient: Array, lr_value: float, lr_weight: float, bound: float | None
) -> tuple[float, Array]:
    """w = η_w max(0, ⟨s, g⟩), ⟨s, g⟩ held within ± bound, and ṽ = −η_v g."""
    agreement = sum(float(a) * float(b) for a, b in zip(output, gradient, strict=True))
    if bound is not None:
        agreement = min(max(agreement, -bound), bound)
    return lr_weight * max(0.0, agreement), -lr_value * gradient


def gauge_tuple(
    query: Array,
    keys: Array,
    weights: Array,
    values: Array,
    temperature: float,
    gradient: Array,
    lr_value: float,
    lr_weight: float,
    alpha: float,
) -> tuple[float, Array, Array]:
    """The gauge rule by doing what it says: shift every value, append plainly, shift back.

    Shifting all values v by b makes the output s + b. There ⟨s + b, g⟩ = α‖g‖, so the plain step
    w = η⟨s + b, g⟩, ṽ = −βg needs no clipping. Going back takes b off every value again.

    Returns:
        w and ṽ of the new tuple, and the older tuples' weighted values after the round trip.
    """
    counts = np.ones(len(keys))
    output = softmax_output(query, keys, weights, values, temperature, counts)
    norm = math.sqrt(float(np.dot(gradient, gradient)))
    offset = (-float(np.dot(output, gradient)) / norm**2 + alpha / norm) * gradient  # b
    shifted = np.array([v + w * offset for v, w in zip(values, weights, strict=True)])
    there = softmax_output(query, keys, weights, shifted, temperature, counts)
    weight = lr_weight * float(np.dot(there, gradient))
    value = -lr_value * gradient
    back = np.array([v - w * offset for v, w in zip(shifted, weights, strict=True)])
    return weight, value - weight * offset, back


# -- encoders --------------------------------------------------------------------------------------


def pca(
    rows: Array, components: int, whiten: float, floor: float, standardise: bool
) -> tuple[Array, Array]:
    """Whitened components of rows by a singular value decomposition: (codes, variances λ)."""
    centred = rows - rows.mean(0)
    if standardise:
        deviation = centred.std(0)
        centred = np.where(deviation > 0, centred / np.where(deviation > 0, deviation, 1.0), 0.0)
    _, singular, basis = np.linalg.svd(centred, full_matrices=False)
    variances = singular**2 / len(rows)
    rank = int((singular > 1e-9 * singular[0]).sum())
    kept = min(components, rank)
    gain = (variances[:kept] + floor * variances[0]) ** (-whiten / 2)
    return centred @ basis[:kept].T * gain, variances[:kept]


def _normalised(patch: Array, contrast: float) -> Array:
    flat = patch.flatten()
    result: Array = (flat - flat.mean()) / math.sqrt(flat.var() + contrast / 255.0**2)
    return result


def patch_filters(
    patches: Array, chosen: Sequence[int], contrast: float, zca: float, mirror: bool
) -> tuple[Array, Array, Array]:
    """From drawn patches (n, channels, side, side): unit filters, ZCA matrix Z and mean m.

    With `mirror` the statistics are those of the patches and of their mirror images.
    """
    seen = [_normalised(patch, contrast) for patch in patches]
    if mirror:
        seen += [_normalised(patch[:, :, ::-1], contrast) for patch in patches]
    rows = np.array(seen)
    mean = rows.mean(0)
    covariance = np.cov(rows.T, bias=True)
    variances, basis = np.linalg.eigh(covariance)
    whitening = basis @ np.diag((np.maximum(variances, 0) + zca) ** -0.5) @ basis.T
    filters = []
    for index in chosen:
        raw = (_normalised(patches[index], contrast) - mean) @ whitening
        filters.append(raw / max(float(np.linalg.norm(raw)), 1e-12))
    return np.array(filters), whitening, mean


def patch_features(
    image: Array,
    filters: Array,
    whitening: Array,
    mean: Array,
    *,
    side: int,
    cells: Sequence[tuple[int, int, int, int]],
    bias: float,
    contrast: float,
    power: float,
) -> Array:
    """(cells, 2, filters): both signs of r = f · Z(n(p) − m), rectified, averaged over cells.

    A cell is (top, bottom, left, right) in patch positions.
    """
    result = np.zeros((len(cells), 2, len(filters)))
    for number, (top, bottom, left, right) in enumerate(cells):
        for y in range(top, bottom):
            for x in range(left, right):
                patch = _normalised(image[:, y : y + side, x : x + side], contrast)
                white = whitening @ (patch - mean)
                for place, weights in enumerate(filters):
                    response = float(np.dot(weights, white))
                    result[number, 0, place] += max(0.0, response - bias)
                    result[number, 1, place] += max(0.0, -response - bias)
        result[number] /= (bottom - top) * (right - left)
    powered: Array = result**power
    return powered


def mirrored(image: Array) -> Array:
    """The image (channels, height, width) flipped left to right."""
    return np.ascontiguousarray(image[:, :, ::-1])


# -- evaluation ------------------------------------------------------------------------------------


def prequential(
    predicted: Sequence[int], targets: Sequence[int], classes: int, window: int
) -> tuple[float, float, NDArray[np.int64]]:
    """Accuracy so far, accuracy over the last `window`, and confusion[target, predicted]."""
    hits = [int(a == b) for a, b in zip(predicted, targets, strict=True)]
    confusion = np.zeros((classes, classes), dtype=np.int64)
    for guess, target in zip(predicted, targets, strict=True):
        confusion[target, guess] += 1
    recent = hits[-window:]
    return sum(hits) / len(hits), sum(recent) / len(recent), confusion

"""scikit-learn's SGDClassifier on random features of a Gaussian kernel."""

from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import SGDClassifier
from torch import Tensor

from streamlearn.errors import NotFiniteError
from streamlearn.losses import Loss
from streamlearn.memory import Memory
from streamlearn.state import StateTree

from .base import Scores, scored, tensor_bytes
from .distances import gaussian, median_distance

__all__ = ["FeatureMap", "FeaturesModel"]

MapName: TypeAlias = Literal["fourier", "nystroem"]


class FeatureMap:
    """`√(2/m) cos(xW + b)`, or a Gaussian of distances to some samples, orthonormalised.

    Args:
        name: "fourier" (Rahimi & Recht 2007) or "nystroem" (Williams & Seeger 2001).
        count: m, features; no more than samples are seen at the start for "nystroem".
        bandwidth: h of `exp(−‖x − y‖²/(2h²))`; None means the median distance of those samples.
        seed: of the draws, which are scikit-learn's.

    Attributes:
        tensors: what was drawn, by name; empty until `fit`.
    """

    def __init__(self, name: MapName, count: int, bandwidth: float | None, seed: int) -> None:
        self.name = name
        self.count = count
        self.bandwidth = bandwidth
        self.seed = seed % 2**32
        self.tensors: dict[str, Tensor] = {}

    def fit(self, codes: Tensor) -> None:
        """Draw the features for codes like these, (n, D)."""
        rows = codes.cpu().to(torch.float64)
        width = median_distance(rows) if self.bandwidth is None else self.bandwidth
        options = {"gamma": 0.5 / width**2, "random_state": self.seed}
        self.tensors = {"bandwidth": torch.tensor(width, dtype=torch.float64)}
        if self.name == "fourier":
            sampler = RBFSampler(n_components=self.count, **options).fit(rows.numpy())
            drawn = {"weights": sampler.random_weights_, "offset": sampler.random_offset_}
        else:
            chosen = Nystroem(n_components=min(self.count, len(rows)), **options).fit(rows.numpy())
            drawn = {"components": chosen.components_, "normalisation": chosen.normalization_}
        self.tensors |= {
            name: torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))
            for name, array in drawn.items()
        }

    def __call__(self, codes: Tensor) -> NDArray[np.float64]:
        """Features (B, m) of codes (B, D)."""
        rows, kept = codes.cpu().to(torch.float64), self.tensors
        if self.name == "fourier":
            count = len(kept["offset"])
            features = torch.addmm(kept["offset"], rows, kept["weights"]).cos_()
            features *= (2.0 / count) ** 0.5
        else:
            near = gaussian(rows, kept["components"], float(kept["bandwidth"]))  # (B, m)
            features = near @ kept["normalisation"].T
        found: NDArray[np.float64] = features.numpy()
        return found


class FeaturesModel:
    """One-against-all logistic regression by scikit-learn's SGD, a step a sample.

    Args:
        features: from codes to features, not yet drawn.
        classes: C.
        loss: of probabilities.
        alpha: regularisation.
        schedule: scikit-learn's learning_rate.
        lr: its eta0.
    """

    def __init__(
        self,
        features: FeatureMap,
        classes: int,
        loss: Loss,
        *,
        alpha: float,
        schedule: Literal["optimal", "constant", "invscaling"],
        lr: float,
    ) -> None:
        self.features = features
        self.classes = classes
        self.loss = loss
        # Shuffling a batch would draw the same order each time.
        self._options: dict[str, Any] = {
            "loss": "log_loss", "alpha": alpha, "learning_rate": schedule, "eta0": lr,
            "shuffle": False,
        }  # fmt: skip
        self._classifier: Any = None
        self.samples = 0

    def start(self, codes: Tensor, targets: Tensor) -> None:
        """Draw the features."""
        self.features.fit(codes)

    def answer(self, codes: Tensor) -> Tensor:
        """Each class's own probability, normalised, (B, C); uniform before anything was learnt."""
        if self._classifier is None:
            return self.loss.blank(len(codes), self.classes)
        if len(codes) == 0:
            return torch.zeros(0, self.classes)
        outputs = torch.from_numpy(self._classifier.decision_function(self.features(codes)))
        if self.classes == 2:
            outputs = torch.stack([-outputs, outputs], 1)
        return torch.softmax(F.logsigmoid(outputs), -1).to(torch.float32)

    def learn(self, codes: Tensor, targets: Tensor, index: Tensor | None = None) -> Scores:
        """Score a batch, then learn it.

        Raises:
            NotFiniteError: the weights overflow; nothing was learnt.
        """
        scores = scored(self.answer(codes), targets, self.loss)
        before = None if self._classifier is None else self._weights()
        if self._classifier is None:
            self._classifier = SGDClassifier(**self._options)
        try:
            self._classifier.partial_fit(
                self.features(codes), targets.cpu().numpy(), classes=np.arange(self.classes)
            )
        except ValueError as error:
            self._set_weights(before)
            raise NotFiniteError(
                f"SGD's weights overflow after {self.samples} samples ({error}); lower learner.lr "
                "or raise learner.alpha"
            ) from error
        self.samples += len(codes)
        return scores

    def _weights(self) -> StateTree:
        return {
            "coefficients": torch.from_numpy(self._classifier.coef_.copy()),
            "intercepts": torch.from_numpy(self._classifier.intercept_.copy()),
            "time": float(self._classifier.t_),
        }

    def _set_weights(self, weights: StateTree | None) -> None:
        if weights is None:
            self._classifier = None
            return
        self._classifier = SGDClassifier(**self._options)
        width = weights["coefficients"].shape[1]
        # Learning anything makes the arrays that are then filled.
        self._classifier.partial_fit(np.zeros((1, width)), [0], classes=np.arange(self.classes))
        self._classifier.coef_ = weights["coefficients"].numpy().copy()
        self._classifier.intercept_ = weights["intercepts"].numpy().copy()
        self._classifier.t_ = float(weights["time"])

    def memories(self) -> dict[str, Memory]:
        """None: weights do not grow."""
        return {}

    @property
    def nbytes(self) -> int:
        """The features' draws and the weights."""
        return tensor_bytes(self.state_dict())

    def state_dict(self) -> StateTree:
        """The features' draws and the weights, as arrays."""
        return {
            "samples": self.samples,
            "features": dict(self.features.tensors),
            "weights": None if self._classifier is None else self._weights(),
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore both."""
        self.samples = int(state["samples"])
        self.features.tensors = {name: part.clone() for name, part in state["features"].items()}
        self._set_weights(state["weights"])

"""Scores for the samples that arrive before the encoder is fitted."""

import torch
import torch.nn.functional as F
from torch import Tensor

from streamlearn.encoders.base import as_float, flatten_features
from streamlearn.layers import WeightedSoftmax
from streamlearn.losses import Loss
from streamlearn.networks import rms_norm
from streamlearn.optim import FunctionalSGD
from streamlearn.state import StateTree

__all__ = ["ColdStart", "RunningMean"]

_SIDE = 8
_KAPPA = 6.0
_LR_VALUE = 0.3


class ColdStart:
    """One growing softmax layer on running-standardised raw features, dropped after the fit.

    Images are averaged to at most 8×8 pixels first. The mean and variance of each feature are
    running ones (Chan, Golub & LeVeque 1979), so that no sample is looked at before it is scored.
    """

    def __init__(self, classes: int, loss: Loss, seed: int) -> None:
        self.classes = classes
        self.loss = loss
        self.seed = seed
        self.layer: WeightedSoftmax | None = None
        self.optimizer: FunctionalSGD | None = None
        self.count = 0
        self.mean = torch.zeros(0)
        self.moment = torch.zeros(0)

    def predict(self, features: Tensor) -> Tensor:
        """Class probabilities (B, classes); uniform before anything was learnt."""
        if self.layer is None:
            return torch.full((len(features), self.classes), 1.0 / self.classes)
        with torch.no_grad():
            return self.loss.answers(self.layer(self._codes(_reduce(features))))

    def learn(self, features: Tensor, targets: Tensor) -> None:
        """Learn a batch that was scored."""
        rows = _reduce(features)
        if self.layer is None:
            self._build(rows.shape[1])
        self._track(rows)
        layer, optimizer = self.layer, self.optimizer
        if layer is None or optimizer is None:  # made just above
            return
        optimizer.zero_grad()
        self.loss.per_sample(layer(self._codes(rows)), targets).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def _build(self, width: int) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.layer = WeightedSoftmax(
            width,
            self.classes,
            temperature=width**0.5 / _KAPPA,
            generator=generator,
            block_rows=512,
        )
        self.optimizer = FunctionalSGD(self.layer, lr_value=_LR_VALUE, lr_weight=0.003)
        if len(self.mean) != width:
            self.mean = torch.zeros(width, dtype=torch.float64)
            self.moment = torch.zeros(width, dtype=torch.float64)

    def _track(self, rows: Tensor) -> None:
        """Add a batch to the running mean and sum of squared deviations."""
        wide = rows.to(torch.float64)
        count = len(wide)
        mean = wide.mean(0)
        gap = mean - self.mean
        total = self.count + count
        self.moment += (wide - mean).square().sum(0) + gap.square() * self.count * count / total
        self.mean += gap * count / total
        self.count = total

    def _codes(self, rows: Tensor) -> Tensor:
        deviation = (self.moment / max(self.count, 1)).sqrt()
        safe = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
        codes = ((rows - self.mean) / safe).clamp(-10, 10)
        return rms_norm(codes.to(torch.float32))

    def state_dict(self) -> StateTree:
        """The running statistics and the layer's tuples."""
        state: StateTree = {
            "count": self.count,
            "mean": self.mean.clone(),
            "moment": self.moment.clone(),
        }
        if self.layer is not None and self.optimizer is not None:
            state["layer"] = self.layer.get_extra_state()
            state["optimizer"] = self.optimizer.state_dict()
        return state

    def load_state_dict(self, state: StateTree) -> None:
        """Restore both."""
        self.count = int(state["count"])
        self.mean, self.moment = state["mean"].clone(), state["moment"].clone()
        if "layer" in state:
            self._build(len(self.mean))
            if self.layer is not None and self.optimizer is not None:
                self.layer.set_extra_state(state["layer"])
                self.optimizer.load_state_dict(state["optimizer"])


class RunningMean:
    """The mean of all targets so far: what a regression says before its encoder is fitted.

    Args:
        width: K, numbers of a target.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean = torch.zeros(width, dtype=torch.float64)

    def predict(self, features: Tensor) -> Tensor:
        """The mean for every sample, (B, K); zeros before anything was learnt."""
        return self.mean.repeat(len(features), 1)

    def learn(self, features: Tensor, targets: Tensor) -> None:
        """Take in the targets (B, K) of a batch that was scored."""
        self.count += len(targets)
        if self.count:
            self.mean += (targets - self.mean).sum(0) / self.count

    def state_dict(self) -> StateTree:
        """Count and mean."""
        return {"count": self.count, "mean": self.mean.clone()}

    def load_state_dict(self, state: StateTree) -> None:
        """Restore both."""
        self.count = int(state["count"])
        self.mean = state["mean"].clone()


def _reduce(features: Tensor) -> Tensor:
    """Features as float rows; images averaged to at most 8×8 pixels."""
    if features.ndim == 4:
        height, width = features.shape[-2:]
        size = (min(_SIDE, height), min(_SIDE, width))
        features = F.adaptive_avg_pool2d(as_float(features), size)
    return flatten_features(features)

"""Models over codes: what learns behind a learner's encoder, one module a kind."""

from .base import Model, Scores, Taken
from .discriminant import DiscriminantModel
from .features import FeatureMap, FeaturesModel
from .kernel import KernelModel
from .knn import KNNModel
from .network import NetworkModel
from .normalised import NormalisedModel
from .rehearsal import Rehearsal, Rehearse, Rehearsed, notes_for
from .ridge import RidgeModel
from .scaled import ScaledModel
from .schedule import Schedule

__all__ = [
    "DiscriminantModel",
    "FeatureMap",
    "FeaturesModel",
    "KNNModel",
    "KernelModel",
    "Model",
    "NetworkModel",
    "NormalisedModel",
    "Rehearsal",
    "Rehearse",
    "Rehearsed",
    "RidgeModel",
    "ScaledModel",
    "Schedule",
    "Scores",
    "Taken",
    "notes_for",
]

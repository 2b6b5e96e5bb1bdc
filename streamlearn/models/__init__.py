"""Models over codes: what learns behind a learner's encoder, one module a kind."""

from .base import Model, Scores, Taken
from .discriminant import DiscriminantModel
from .draws import Rehearse
from .features import FeatureMap, FeaturesModel
from .kernel import KernelModel
from .knn import KNNModel
from .network import NetworkModel, Seen
from .normalised import NormalisedModel
from .rehearsal import Rehearsal, Rehearsed, notes_for
from .reservoir import Replayed, Reservoir, reservoir_columns
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
    "Replayed",
    "Reservoir",
    "RidgeModel",
    "ScaledModel",
    "Schedule",
    "Scores",
    "Seen",
    "Taken",
    "notes_for",
    "reservoir_columns",
]

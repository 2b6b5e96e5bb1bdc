"""Encoders, fitted on a stream's first samples and frozen."""

from streamlearn.encoders.base import Chain, Encoder
from streamlearn.encoders.linear import PCA, Standardise
from streamlearn.encoders.module import ModuleEncoder
from streamlearn.encoders.patches import PatchFeatures
from streamlearn.encoders.views import Views

__all__ = ["PCA", "Chain", "Encoder", "ModuleEncoder", "PatchFeatures", "Standardise", "Views"]

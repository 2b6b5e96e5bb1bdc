"""Frozen torchvision backbones, from weights that the user has on disk."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamlearn.errors import ConfigError, DataError, DataNotFoundError

__all__ = ["backbone"]

_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)
_HEADS = ("fc", "classifier", "heads", "head")


def backbone(
    name: str, weights: Path, image_size: int
) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """A torchvision classification model without its classifier, and what prepares its images.

    Args:
        name: as in `torchvision.models.list_models()`.
        weights: a state_dict, `.safetensors` or a file of `torch.save` (read weights-only).
        image_size: side to which images are resized, pixels.

    Raises:
        ConfigError: no such model.
        DataNotFoundError: no such file.
        DataError: the file does not fit the model.
    """
    import torchvision

    names = torchvision.models.list_models(torchvision.models)
    if name not in names:
        import difflib

        nearest = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {nearest[0]!r}" if nearest else "try resnet18"
        raise ConfigError(f"encoder.model={name!r} is not a torchvision model; {hint}?")
    if not weights.is_file():
        raise DataNotFoundError(
            f"encoder.weights={str(weights)!r} is not a file; give the path of {name}'s state_dict"
        )
    module: nn.Module = torchvision.models.get_model(name, weights=None)
    try:
        if weights.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(weights)
        else:
            state = torch.load(weights, map_location="cpu", weights_only=True)
        module.load_state_dict(state)
    except Exception as error:  # every reader has its own kinds of error for a wrong file
        raise DataError(
            f"{str(weights)!r} is not a state_dict of {name}: {str(error).splitlines()[0]}; "
            "save it with torch.save(model.state_dict(), path)"
        ) from error
    for head in _HEADS:
        if hasattr(module, head):
            setattr(module, head, nn.Identity())
            break

    def prepare(images: Tensor) -> Tensor:
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        size = (image_size, image_size)
        images = F.interpolate(images, size=size, mode="bilinear", antialias=True)
        mean = images.new_tensor(_MEAN)[:, None, None]
        deviation = images.new_tensor(_DEVIATION)[:, None, None]
        return (images - mean) / deviation

    return module, prepare

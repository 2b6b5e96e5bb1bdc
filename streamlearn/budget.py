"""A budget of bytes for a whole learner, as the rows that each of its growing layers may have.

    N = ⌊(budget − all that does not grow) / Σ bytes of a sample's tuples⌋

What does not grow is measured on a network that has learnt one sample, so that optimizers have made
their state by then. So the budget holds from the first step on, not only once layers are full.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from streamlearn.errors import ConfigError
from streamlearn.krls import LeastSquaresLayer
from streamlearn.models import Model, NetworkModel, ScaledModel
from streamlearn.settings import LearnerSettings

__all__ = ["Needs", "needs_of", "within"]


class Needs(NamedTuple):
    """What a learner takes: fixed bytes, and bytes of each row that all growing layers have."""

    fixed: int
    row: int


def needs_of(model: Model, codes: torch.Tensor, targets: torch.Tensor) -> Needs:
    """What a network will need at the most, without its encoder.

    Args:
        model: a new one, which learns one sample for this.
        codes: (1, D).
        targets: (1,) or (1, K).
    """
    network = model.model if isinstance(model, ScaledModel) else model
    if not isinstance(network, NetworkModel):
        raise ConfigError("memory.budget is about networks; set memory.rows")
    if network.optimizer is not None:  # its state is made at the first step
        network.learn(codes, targets)
    growing = [] if network.growth is None else network.growth.param_groups
    row = sum(layer.memory.row_bytes for group in growing for layer in group["layers"])
    fixed = model.nbytes - sum(memory.nbytes for memory in model.memories().values())
    if network.growth is not None and network.growth.eviction is not None:
        eviction = network.growth.eviction
        fixed -= eviction.nbytes
        row += eviction.nbytes // eviction.rows
    if network.rehearsal is not None:
        fixed -= network.rehearsal.nbytes
        row += network.rehearsal.sample_bytes
    if network.reservoir is not None:
        fixed += network.reservoir.most_bytes - network.reservoir.nbytes
    if network.readout is not None:
        solved = [m for m in network.network.modules() if isinstance(m, LeastSquaresLayer)]
        fixed += sum(layer.sums.limit * layer.memory.row_bytes for layer in solved)
    return Needs(fixed, row)


def within(
    settings: LearnerSettings,
    beside: int,
    measure: Callable[[LearnerSettings], Needs],
    sharing: int = 1,
) -> LearnerSettings:
    """The settings with rows for each growing layer in the place of a budget.

    Args:
        settings: of a learner whose memory has a budget.
        beside: bytes that stand beside the model: its encoder's.
        measure: what a model of other settings needs.
        sharing: models among which the budget is divided.

    Raises:
        ConfigError: there is no room for a tuple beside what does not grow.
    """
    memory, starting = settings.memory, settings.starting_rows()
    if memory.budget is None:
        return settings
    tiny = {"budget": None, "rows": starting + 1, "block_rows": None,
            "device_budget": None, "host_budget": None}  # fmt: skip
    grows = settings.any_grows()
    if not grows:
        tiny["rows"] = None
    needs = measure(settings.model_copy(update={"memory": memory.model_copy(update=tiny)}))
    fixed = needs.fixed + beside
    least = fixed + (starting + 1) * needs.row
    budget = memory.budget // sharing
    if budget < least:
        raise ConfigError(
            f"memory.budget={memory.budget} leaves no room: encoder, parameters, sums and the "
            f"starting rows take {least - needs.row} bytes and a sample's tuples {needs.row}; set "
            f"memory.budget to {least * sharing} bytes or more, or make the learner smaller"
        )
    rows = (budget - fixed) // needs.row if grows else None
    bounded = memory.model_copy(update={"budget": None, "rows": rows})
    return settings.model_copy(update={"memory": bounded})

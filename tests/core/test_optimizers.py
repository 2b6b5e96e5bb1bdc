"""The suite that every optimizer of the table passes, and how the table is used."""

import json
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from streamlearn.errors import ConfigError, FormatError, StreamlearnError
from streamlearn.losses import cross_entropy
from streamlearn.optimizers import (
    OPTIMIZERS,
    OptimizerName,
    build_optimizer,
    load_state_tree,
    state_tree,
)
from streamlearn.optimizers.split import SplitOptimizer
from streamlearn.state import flatten, unflatten

from .making import backward, generator

NAMES = list(OPTIMIZERS)

# Settings that make every part of the state matter.
CASES: list[tuple[OptimizerName, dict[str, Any]]] = [
    ("sgd", {"lr": 1e-3}),
    ("sgd", {"lr": 1e-3, "momentum": 0.9, "nesterov": True}),
    ("adam", {"lr": 1e-3}),
    ("adamw", {"lr": 1e-3, "amsgrad": True}),
    ("rmsprop", {"lr": 1e-3, "momentum": 0.5, "centered": True}),
    ("muon", {"lr": 0.01, "weight_decay": 0.1}),
    ("foof", {"lr": 0.05}),
    ("foof", {"lr": 0.05, "inverse": "newton_schulz", "refresh": 2, "momentum": 0.5}),
    ("mesa", {"lr": 0.05, "momentum": 0.9, "decay": 0.01}),
    ("mesa", {"lr": 0.05, "refresh": 3, "average": False}),
    ("delta", {"lr": 1e-3}),
    ("delta", {"lr": 1e-3, "form": "batch", "forget": 0.01, "decay": 0.01}),
]
every_case = pytest.mark.parametrize(
    ("name", "options"), CASES, ids=[f"{name}-{index}" for index, (name, _) in enumerate(CASES)]
)
# What goes on at a rate of 0: forgetting has a rate of its own.
WITHOUT_DECAY: dict[str, dict[str, Any]] = {
    "adamw": {"weight_decay": 0.0},
    "delta": {"forget": 0.0},
}
every_name = pytest.mark.parametrize("name", NAMES)


class Net(nn.Module):
    """Linear layers with and without bias, a normalisation with parameters, a free parameter."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.second = nn.Linear(8, 8, bias=False)
        self.output = nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.ones(()))
        source = generator(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=source))
            for one in (self.norm.weight, self.scale):
                one.add_(1)
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x)).relu()
        hidden = hidden + self.scale * self.second(hidden)
        output: Tensor = self.output(hidden)
        return output


def batch(step: int, rows: int = 8, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    source = generator(1000 + step)
    x = torch.randn(rows, 6, generator=source)
    return x.to(dtype), (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def loss_of(network: nn.Module, step: int, rows: int = 8) -> Tensor:
    dtype = next(network.parameters()).dtype
    x, target = batch(step, rows, dtype)
    return cross_entropy(network(x), target).sum()


def learn(
    network: nn.Module, optimizer: torch.optim.Optimizer, steps: range, rows: int = 8
) -> None:
    for step in steps:
        optimizer.zero_grad()
        backward(loss_of(network, step, rows))
        optimizer.step()


def values(network: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def grouped(
    name: OptimizerName, groups: list[dict[str, Any]], **options: Any
) -> torch.optim.Optimizer:
    """Groups of modules for classes that take modules, of their parameters for those of torch."""
    kind: Callable[..., torch.optim.Optimizer] = OPTIMIZERS[name]
    if not issubclass(OPTIMIZERS[name], SplitOptimizer):
        groups = [
            {
                **{key: value for key, value in group.items() if key != "fallback_lr"},
                "params": [p for module in group["params"] for p in module.parameters()],
            }
            for group in groups
        ]
    return kind(groups, **options)


# -- state -----------------------------------------------------------------------------------------


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_run_resumed_from_saved_bytes_goes_on_to_the_bit(
    name: OptimizerName, options: dict[str, Any], dtype: torch.dtype
) -> None:
    network = Net(dtype=dtype)
    optimizer = build_optimizer(name, network, **options)
    learn(network, optimizer, range(5))
    tensors, tree = flatten(state_tree(optimizer))
    weights, file, text = values(network), save(tensors), json.dumps(tree)
    learn(network, optimizer, range(5, 12))

    resumed = Net(seed=9, dtype=dtype)
    with torch.no_grad():
        for parameter, value in zip(resumed.parameters(), weights, strict=True):
            parameter.copy_(value)
    other = build_optimizer(name, resumed, lr=0.7)
    load_state_tree(other, unflatten(load(file), json.loads(text)))
    for ours, theirs in zip(optimizer.param_groups, other.param_groups, strict=True):
        assert {**ours, "params": []} == {**theirs, "params": []}
    learn(resumed, other, range(5, 12))
    assert same(values(network), values(resumed))
    assert not same(values(network), weights)


@every_case
def test_state_dict_round_trips_and_shares_nothing(
    name: OptimizerName, options: dict[str, Any]
) -> None:
    network, twin = Net(), Net()
    optimizer, other = (build_optimizer(name, each, **options) for each in (network, twin))
    learn(network, optimizer, range(4))
    tree = state_tree(optimizer)
    before = {key: value.clone() for key, value in flatten(tree)[0].items()}
    load_state_tree(other, tree)
    again = flatten(state_tree(other))
    assert again[1] == flatten(tree)[1]
    learn(twin, other, range(4, 6))
    after = flatten(tree)[0]
    assert all(torch.equal(value, after[key]) for key, value in before.items())


@pytest.mark.parametrize("name", ["muon", "foof", "mesa", "delta"])
def test_a_loaded_state_dict_shares_nothing_with_the_optimizer_that_gave_it(
    name: OptimizerName,
) -> None:
    network, twin = Net(), Net()
    optimizer, other = (build_optimizer(name, each, lr=0.01) for each in (network, twin))
    learn(network, optimizer, range(4))
    twin.load_state_dict(network.state_dict())
    other.load_state_dict(optimizer.state_dict())
    learn(network, optimizer, range(4, 6))
    learn(twin, other, range(4, 6))
    assert same(values(network), values(twin))


@every_name
def test_the_state_of_another_optimizer_or_network_is_refused(name: OptimizerName) -> None:
    network = Net()
    optimizer = build_optimizer(name, network, lr=0.01)
    learn(network, optimizer, range(1))
    before = state_tree(optimizer)
    small = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(FormatError, match="build it with the same class over the same network"):
        load_state_tree(optimizer, state_tree(build_optimizer(name, small, lr=0.01)))
    if issubclass(OPTIMIZERS[name], SplitOptimizer):
        for foreign in set(NAMES) - {name}:
            tree = state_tree(build_optimizer(foreign, Net(), lr=0.01))
            with pytest.raises(FormatError, match=f"but this {type(optimizer).__name__} has"):
                load_state_tree(optimizer, tree)
    assert flatten(state_tree(optimizer))[1] == flatten(before)[1]


# -- groups and schedulers -------------------------------------------------------------------------


@every_name
def test_each_group_is_moved_at_its_own_rate(name: OptimizerName) -> None:
    network = Net()
    still: dict[str, Any] = {"params": [network.first], "lr": 0.0, "fallback_lr": 0.0}
    moving: dict[str, Any] = {"params": [network.second, network.output, network.norm]}
    optimizer = grouped(name, [still, moving], lr=0.01, **WITHOUT_DECAY.get(name, {}))
    before = {key: value.detach().clone() for key, value in network.named_parameters()}
    learn(network, optimizer, range(3))
    moved = {
        key for key, value in network.named_parameters() if not torch.equal(value, before[key])
    }
    assert moved == {"second.weight", "output.weight", "output.bias", "norm.weight", "norm.bias"}


@every_name
def test_equal_groups_are_the_same_as_one(name: OptimizerName) -> None:
    whole, parted = Net(dtype=torch.float64), Net(dtype=torch.float64)
    for network in (whole, parted):
        network.scale.requires_grad_(False)
    learn(whole, build_optimizer(name, whole, lr=0.01), range(4))
    parts = [parted.first, parted.norm, parted.second, parted.output]
    learn(parted, grouped(name, [{"params": [part]} for part in parts], lr=0.01), range(4))
    assert all(map(torch.allclose, values(whole), values(parted)))


@every_name
def test_a_group_can_be_added_later(name: OptimizerName) -> None:
    network = Net()
    optimizer = grouped(name, [{"params": [network.first]}], lr=0.01)
    held = network.output.weight.detach().clone()
    learn(network, optimizer, range(2))
    assert torch.equal(network.output.weight, held)
    modules = isinstance(optimizer, SplitOptimizer)
    added = network.output if modules else list(network.output.parameters())
    optimizer.add_param_group({"params": added, "lr": 0.02})
    learn(network, optimizer, range(2, 4))
    assert not torch.equal(network.output.weight, held)
    with pytest.raises(ValueError, match=r"two groups|more than one parameter group"):
        optimizer.add_param_group({"params": added})


@every_name
def test_a_scheduler_scales_every_group_and_resumes(name: OptimizerName) -> None:
    network, twin = Net(), Net()
    options = {"lr": 0.01, **WITHOUT_DECAY.get(name, {})}
    optimizer, other = (build_optimizer(name, each, **options) for each in (network, twin))
    schedule, again = (
        torch.optim.lr_scheduler.LambdaLR(each, lambda step: max(0.0, 1 - step / 4))
        for each in (optimizer, other)
    )
    first = [group["lr"] for group in optimizer.param_groups]
    for step in range(2):
        learn(network, optimizer, range(step, step + 1))
        schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [rate / 2 for rate in first]
    twin.load_state_dict(network.state_dict())
    load_state_tree(other, state_tree(optimizer))
    again.load_state_dict(schedule.state_dict())
    for step in range(2, 4):
        for each, using, clock in ((network, optimizer, schedule), (twin, other, again)):
            learn(each, using, range(step, step + 1))
            clock.step()
    assert same(values(network), values(twin))
    stopped = values(network)
    learn(network, optimizer, range(4, 6))  # the rate is 0 by now
    assert same(values(network), stopped)


# -- steps -----------------------------------------------------------------------------------------


@every_case
def test_a_closure_gives_its_loss_and_the_same_step(
    name: OptimizerName, options: dict[str, Any]
) -> None:
    network, twin = Net(), Net()
    learn(network, build_optimizer(name, network, **options), range(3))
    optimizer = build_optimizer(name, twin, **options)
    for step in range(3):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(twin, step)
            backward(loss)
            return loss

        expected = loss_of(twin, step).detach()
        found: Any = optimizer.step(closure)  # type: ignore[arg-type]
        assert float(found.detach()) == float(expected)
    assert same(values(network), values(twin))


@every_case
def test_frozen_and_unused_parameters_stay_as_they_are(
    name: OptimizerName, options: dict[str, Any]
) -> None:
    network = Net()
    spare = nn.Linear(4, 4)
    whole = nn.ModuleDict({"network": network, "spare": spare})
    network.second.requires_grad_(False)
    network.norm.bias.requires_grad_(False)
    optimizer = build_optimizer(name, whole, **options)
    before = {key: value.detach().clone() for key, value in whole.named_parameters()}
    learn(network, optimizer, range(3))
    moved = {key for key, value in whole.named_parameters() if not torch.equal(value, before[key])}
    assert moved == set(before) - {
        "spare.weight", "spare.bias", "network.second.weight", "network.norm.bias"
    }  # fmt: skip
    network.second.requires_grad_(True)
    learn(network, optimizer, range(3, 4))
    assert not torch.equal(network.second.weight, before["network.second.weight"])


@every_case
def test_a_step_without_gradients_changes_nothing(
    name: OptimizerName, options: dict[str, Any]
) -> None:
    network = Net()
    optimizer = build_optimizer(name, network, **options)
    learn(network, optimizer, range(2))
    before = values(network)
    optimizer.zero_grad()
    optimizer.step()
    network(batch(0)[0])  # evaluated, never run backward
    optimizer.step()
    assert same(values(network), before)


@every_case
def test_each_step_starts_anew_where_only_the_networks_gradients_are_cleared(
    name: OptimizerName, options: dict[str, Any]
) -> None:
    network, twin = Net(), Net()
    learn(network, build_optimizer(name, network, **options), range(4))
    optimizer = build_optimizer(name, twin, **options)
    for step in range(4):
        twin.zero_grad()
        backward(loss_of(twin, step))
        optimizer.step()
    assert same(values(network), values(twin))


@every_name
def test_a_sparse_gradient_is_learnt_or_refused(name: OptimizerName) -> None:
    table = nn.Embedding(10, 6, sparse=True)
    network = nn.Sequential(table, nn.Linear(6, 3))
    optimizer = build_optimizer(name, network, lr=0.01)
    before = table.weight.detach().clone()
    words, target = torch.tensor([1, 4, 4]), torch.tensor([0, 1, 2])
    backward(cross_entropy(network(words), target).sum())
    if name in ("adam", "adamw", "rmsprop"):
        with pytest.raises(RuntimeError, match="sparse gradients"):
            optimizer.step()
        assert torch.equal(table.weight, before)
        return
    optimizer.step()
    changed = (table.weight != before).any(1)
    assert changed[[1, 4]].all()
    assert table.weight.isfinite().all()


@every_case
def test_two_backward_passes_before_a_step_are_one_batch(
    name: OptimizerName, options: dict[str, Any]
) -> None:
    network, twin = Net(dtype=torch.float64), Net(dtype=torch.float64)
    optimizer, other = (build_optimizer(name, each, **options) for each in (network, twin))
    for step in range(4):
        x, target = batch(step, 10, torch.float64)
        optimizer.zero_grad()
        backward(cross_entropy(network(x), target).sum())
        optimizer.step()
        other.zero_grad()
        for part in (slice(0, 4), slice(4, 10)):
            backward(cross_entropy(twin(x[part]), target[part]).sum())
        other.step()
    tolerance = 1e-3 if name == "muon" else 1e-9  # Muon orthogonalises in bfloat16
    for one, two in zip(values(network), values(twin), strict=True):
        assert torch.allclose(one, two, rtol=0, atol=tolerance)


@every_case
def test_the_loss_falls(name: OptimizerName, options: dict[str, Any]) -> None:
    network = Net()
    rate = {"sgd": 0.005, "adam": 0.01, "adamw": 0.01, "rmsprop": 0.003, "delta": 0.005}
    options = {**options, "lr": rate.get(name, options["lr"])}
    if options.get("average") is False:
        options["lr"] *= 10  # a step is a tenth of that, once Φ has grown
    optimizer = build_optimizer(name, network, **options)

    def error() -> float:
        with torch.no_grad():
            return sum(float(loss_of(network, 500 + step)) for step in range(20)) / 160

    first = error()
    learn(network, optimizer, range(150), rows=16)
    assert error() < 0.7 * first


# -- the table -------------------------------------------------------------------------------------


def test_the_table_names_what_can_be_asked_for() -> None:
    assert set(get_args(OptimizerName)) == set(OPTIMIZERS)
    for kind in OPTIMIZERS.values():
        assert issubclass(kind, torch.optim.Optimizer)


def test_unknown_names_and_settings_are_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match="optimizer 'lion' is unknown; use one of sgd, adam"):
        build_optimizer("lion", Net())
    for name in NAMES:
        with pytest.raises(ConfigError, match=f"optimizer {name} has no setting 'speed'; it takes"):
            build_optimizer(name, Net(), speed=1)
        with pytest.raises(ConfigError, match=r"lr=-1|refuses its settings"):
            build_optimizer(name, Net(), lr=-1.0)


@pytest.mark.parametrize("name", ["muon", "foof", "mesa", "delta"])
def test_groups_that_cannot_be_are_refused(name: OptimizerName) -> None:
    kind: Callable[..., torch.optim.Optimizer] = OPTIMIZERS[name]
    network = Net()
    with pytest.raises(ConfigError, match="has no setting 'speed'; it takes params, lr"):
        kind([{"params": [network], "speed": 3}])
    with pytest.raises(ConfigError, match="was given no parameter"):
        kind([])
    with pytest.raises(ConfigError, match="was given no parameter"):
        kind([{"params": [nn.ReLU()]}])
    with pytest.raises(ConfigError, match=r"was given a tensor of shape \(8, 6\)"):
        kind(network.first.weight)
    with pytest.raises(ConfigError, match="was given a int to optimise"):
        kind([1, 2])
    with pytest.raises(ConfigError, match=r"shape \(8, 6\) is in two groups"):
        kind([{"params": [network]}, {"params": [network.first]}])
    with pytest.raises(StreamlearnError, match=r"momentum=2|has no setting 'momentum'"):
        kind([{"params": [network], "momentum": 2}])


def test_muon_moves_matrices_as_torchs_muon_and_the_rest_as_adamw() -> None:
    network, twin = Net(), Net()
    optimizer = build_optimizer("muon", network, lr=0.02, weight_decay=0.1, fallback_lr=3e-3)
    matrices = [parameter for parameter in twin.parameters() if parameter.dim() == 2]
    rest = [parameter for parameter in twin.parameters() if parameter.dim() != 2]
    muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1)
    adamw = torch.optim.AdamW(rest, lr=3e-3, weight_decay=0.0)
    learn(network, optimizer, range(5))
    for step in range(5):
        twin.zero_grad()
        backward(loss_of(twin, step))
        muon.step()  # type: ignore[no-untyped-call]
        adamw.step()
    assert same(values(network), values(twin))
    with pytest.raises(ConfigError, match="adjust_lr_fn='wide' is unknown"):
        build_optimizer("muon", network, adjust_lr_fn="wide")


def test_groups_of_adamw_have_adamws_settings_only() -> None:
    rest = build_optimizer("mesa", Net(), lr=0.3, fallback_lr=2e-3).param_groups[1]
    plain = torch.optim.AdamW([torch.zeros(1)], lr=2e-3, weight_decay=0.0).param_groups[0]
    assert {**rest, "params": []} == {**plain, "params": [], "rule": "adamw"}


def test_parameters_that_are_no_layers_are_moved_by_adamw() -> None:
    network, twin = Net(), Net()
    for each in (network, twin):
        for part in (each.first, each.second, each.output):
            part.requires_grad_(False)
    learn(network, build_optimizer("foof", network, fallback_lr=3e-3), range(5))
    rest = [parameter for parameter in twin.parameters() if parameter.requires_grad]
    learn(twin, torch.optim.AdamW(rest, lr=3e-3, weight_decay=0.0), range(5))
    assert same(values(network), values(twin))

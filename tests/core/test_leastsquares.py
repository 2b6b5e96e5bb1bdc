"""Kernel least squares: its sums against regressions over all samples, in float64."""

import pytest
import torch
from torch import Tensor

from streamlearn.errors import FormatError
from streamlearn.leastsquares import KernelLeastSquares

WIDTH, OUTPUTS = 4, 3


def _kernel(one: Tensor, other: Tensor) -> Tensor:
    return (-0.5 * torch.cdist(one, other).square()).exp()


def _data(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, WIDTH, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, OUTPUTS, generator=generator, dtype=torch.float64)
    return x, torch.stack([x.sum(1), x[:, 0] * x[:, 1], x.square().sum(1)], 1) + 0.1 * noise


class Machine:
    """Sums, and the keys that whoever uses them keeps."""

    def __init__(self, limit: int, gate: float = 0.0, **more: object) -> None:
        self.sums = KernelLeastSquares(limit, OUTPUTS, **more)  # type: ignore[arg-type]
        self.gate = gate
        self.keys = torch.zeros(0, WIDTH, dtype=torch.float64)

    def step(self, x: Tensor, y: Tensor, *, grow: bool = True) -> None:
        sums = self.sums
        z = sums.coordinates(_kernel(self.keys, x))
        if not grow:
            sums.observe(z, y)
            return
        own = _kernel(x, x)
        growth = sums.growth(z, own, self.gate, len(x))
        z = sums.grow(growth, z, own)
        self.keys = torch.cat([self.keys, x[growth.chosen]])
        sums.observe(z, y, keys=len(growth.chosen))

    def answer(self, x: Tensor, regularisation: float) -> Tensor:
        return _kernel(x, self.keys) @ self.sums.solve(regularisation)


def _regressors(keys: Tensor, x: Tensor, y: Tensor, weight: Tensor, penalty: float) -> Tensor:
    """Subset of regressors, from all samples at once: ṽ (n, C)."""
    cross = _kernel(keys, x)
    matrix = (cross * weight) @ cross.T + penalty * _kernel(keys, keys)
    solved: Tensor = torch.linalg.solve(matrix, (cross * weight) @ y)
    return solved


def test_where_every_sample_is_a_key_it_is_kernel_ridge_regression() -> None:
    x, y = _data(300)
    machine = Machine(300)
    for start in range(0, 300, 7):
        machine.step(x[start : start + 7], y[start : start + 7])
    assert len(machine.keys) == 300
    fresh, _ = _data(50, seed=1)
    ridge = torch.linalg.solve(_kernel(x, x) + 0.3 * torch.eye(300, dtype=torch.float64), y)
    assert torch.allclose(machine.answer(fresh, 0.3), _kernel(fresh, x) @ ridge, atol=1e-6)


@pytest.mark.parametrize("limit", [40, 700])  # one tile and two
def test_keys_from_the_start_make_sums_exact(limit: int) -> None:
    x, y = _data(2000)
    machine = Machine(limit, discount=0.9)
    machine.step(x[:limit], y[:limit])
    weight = torch.full((limit,), 0.9**20, dtype=torch.float64)
    rest = []
    for step, start in enumerate(range(limit, limit + 1000, 50)):
        machine.step(x[start : start + 50], y[start : start + 50])
        rest += [0.9 ** (19 - step)] * 50
    weight = torch.cat([weight, torch.tensor(rest, dtype=torch.float64)])
    used = slice(0, limit + 1000)
    values = _regressors(machine.keys, x[used], y[used], weight, 0.2)
    expected = _kernel(x[1900:], machine.keys) @ values
    assert torch.allclose(machine.answer(x[1900:], 0.2), expected, atol=1e-6)
    assert machine.sums.weight == pytest.approx(float(weight.sum()))
    assert machine.sums.outside == pytest.approx(float(weight[limit:].sum()))


def test_keys_that_come_late_cost_little() -> None:
    x, y = _data(4000)
    machine = Machine(200, gate=0.05)
    for start in range(0, 3000, 20):
        machine.step(x[start : start + 20], y[start : start + 20])
    used, held = slice(0, 3000), slice(3000, 4000)
    ones = torch.ones(3000, dtype=torch.float64)
    values = _regressors(machine.keys, x[used], y[used], ones, 0.1)
    batch = (_kernel(x[held], machine.keys) @ values - y[held]).square().mean()
    online = (machine.answer(x[held], 0.1) - y[held]).square().mean()
    assert 20 < len(machine.keys) <= 200
    assert online < 1.02 * batch


def test_the_gate_keeps_what_others_span_out() -> None:
    x, y = _data(30)
    machine = Machine(100, gate=1e-6)
    machine.step(x, y)
    machine.step(torch.cat([x, x]), torch.cat([y, y]))
    assert len(machine.keys) == 30
    again = Machine(100, gate=1e-6)
    again.step(torch.cat([x, x]), torch.cat([y, y]))  # each twice in one step
    assert len(again.keys) == 30


def test_a_key_costs_what_the_minimum_rises_by_and_can_go() -> None:
    x, y = _data(900)
    machine = Machine(60)
    machine.step(x[:60], y[:60])
    machine.step(x[60:], y[60:])

    def minimum(keys: Tensor) -> float:
        values = _regressors(keys, x, y, torch.ones(900, dtype=torch.float64), 0.5)
        loss = (_kernel(x, keys) @ values - y).square().sum()
        return float(loss + 0.5 * (values * (_kernel(keys, keys) @ values)).sum())

    costs = machine.sums.costs(0.5)
    least = int(costs.argmin())
    left = torch.arange(60) != least
    rise = minimum(machine.keys[left]) - minimum(machine.keys)
    assert float(costs[least]) == pytest.approx(rise, rel=1e-4)
    going = torch.tensor([least, 3, 59])
    left[going] = False
    machine.sums.remove(going)
    machine.keys = machine.keys[left]
    values = _regressors(machine.keys, x, y, torch.ones(900, dtype=torch.float64), 0.5)
    assert torch.allclose(machine.sums.solve(0.5), values, atol=1e-7)
    machine.step(*_data(5, seed=2))  # and there is room again
    assert machine.sums.count == len(machine.keys) > 57


def test_state_goes_on_to_the_bit() -> None:
    x, y = _data(900)
    machine = Machine(600, dtype=torch.float32)
    for start in range(0, 600, 60):
        machine.step(x[start : start + 60], y[start : start + 60], grow=start < 540)
    other = Machine(600, dtype=torch.float32)
    other.sums.load_state_dict(machine.sums.state_dict())
    other.keys = machine.keys
    for one in (machine, other):
        one.step(x[600:], y[600:])
    assert torch.equal(machine.sums.solve(0.1), other.sums.solve(0.1))
    with pytest.raises(FormatError, match=r"sums of \d+ keys and 3 outputs where 100"):
        KernelLeastSquares(100, OUTPUTS).load_state_dict(machine.sums.state_dict())


def test_two_hundred_thousand_samples_in_float32_do_not_drift() -> None:
    generator = torch.Generator().manual_seed(0)
    machines = [Machine(64, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    for step in range(200):
        x = torch.randn(1000, WIDTH, generator=generator, dtype=torch.float64)
        y = torch.stack([x.sum(1), x[:, 0] * x[:, 1], x.square().sum(1)], 1)
        for machine in machines:
            machine.step(x, y, grow=step == 0)
    narrow, wide = (machine.answer(x, 0.01) for machine in machines)
    assert float((narrow - y).square().mean()) < 1.001 * float((wide - y).square().mean())

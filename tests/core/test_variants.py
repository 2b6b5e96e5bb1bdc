"""Variants of networks: decoupled and unweighted softmax, linearised kernels, dense layers, ViT."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from streamlearn import Learner
from streamlearn.build import build_network
from streamlearn.dense import DenseBlock, ParametricSoftmax
from streamlearn.errors import ConfigError, GraphError
from streamlearn.hardware import resolve_hardware
from streamlearn.layers import (
    DecoupledSoftmax,
    DualLinear,
    GrowingLayer,
    UnweightedSoftmax,
    WeightedSoftmax,
)
from streamlearn.memory import PRIOR, Tuples
from streamlearn.models import NetworkModel
from streamlearn.optim import FunctionalSGD
from streamlearn.settings import settings_of
from streamlearn.vit import Attention, VisionTransformer

from .making import Dense, arrays, backward, fill, generator, make_layer, randn
from .test_learner import CLASSES, content, feed, learner, pictures

CPU = resolve_hardware("cpu", "float32")
F64: dict[str, Any] = {"dtype": torch.float64, "block_rows": 512}


def one_step(layer: GrowingLayer, query: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """What a step with these gradients of the output stores."""
    before = len(layer.memory)
    optimizer = FunctionalSGD(layer, lr_value=0.3, lr_weight=0.2)
    backward((layer(query) * gradient).sum())
    optimizer.step()
    rows = torch.arange(before, len(layer.memory))
    return layer.memory.gather(rows)


@pytest.mark.parametrize("size", [1.0, 12.0])  # below and above what needs a running maximum
def test_decoupled_writes_are_divided_by_the_old_denominator(size: float) -> None:
    layer = DecoupledSoftmax(6, 3, generator=generator(5), **F64)
    layer.memory.append(Tuples(randn(20, 6, seed=1), randn(20, seed=2).abs(), randn(20, 3)), born=1)
    query, gradient = size * randn(5, 6, seed=3), randn(5, 3, seed=4)
    dense = Dense.of(layer)
    similar = np.exp(arrays(query) @ dense.key.T / (layer.temperature * np.sqrt(6)))
    whole = similar @ dense.weight  # (B,)
    said = similar @ dense.value / whole[:, None]
    found = one_step(layer, query, gradient)
    agreement = (said * arrays(gradient)).sum(-1).clip(0)
    np.testing.assert_allclose(arrays(found["weight"]), 0.2 * agreement / whole, rtol=1e-9)
    np.testing.assert_allclose(
        arrays(found["value"]), -0.3 * arrays(gradient) / whole[:, None], rtol=1e-9
    )
    assert torch.equal(found["key"], query)


def test_a_decoupled_step_is_the_functional_gradient_of_numerator_and_denominator() -> None:
    numerator, denominator = randn(3, seed=1).requires_grad_(), torch.tensor(1.7).double()
    denominator.requires_grad_()
    output = numerator / denominator
    slope = randn(3, seed=2)
    backward((output * slope).sum())
    assert numerator.grad is not None
    assert denominator.grad is not None
    torch.testing.assert_close(numerator.grad, slope / 1.7)
    torch.testing.assert_close(denominator.grad, -(output.detach() @ slope) / 1.7)


def test_unweighted_rows_all_weigh_one() -> None:
    layer = UnweightedSoftmax(6, 3, start_values="random", generator=generator(5), **F64)
    gradient = randn(5, 3, seed=4)
    start = layer.memory.gather(torch.arange(16))
    assert (start["weight"] == 1).all()
    assert (start["born"] == PRIOR).all()
    np.testing.assert_allclose(arrays(start["value"].square().mean(-1)), 1.0, rtol=1e-6)
    found = one_step(layer, randn(5, 6, seed=3), gradient)
    assert (found["weight"] == 1).all()
    torch.testing.assert_close(found["value"], -0.3 * gradient)
    query = randn(4, 6, seed=9)
    dense = Dense.of(layer)
    logits = torch.from_numpy(arrays(query) @ dense.key.T / (layer.temperature * np.sqrt(6)))
    with torch.no_grad():
        torch.testing.assert_close(
            layer.eval()(query), torch.softmax(logits, -1) @ torch.from_numpy(dense.value)
        )


@pytest.mark.parametrize("kind", ["decoupled", "unweighted"])
def test_variants_learn_and_are_saved(kind: str, tmp_path: Path) -> None:
    model = learner(layer=kind, encoder={"kind": "pca", "width": 5, "fit": 40})
    feed(model, *pictures(300, seed=1))
    features, targets = pictures(200, seed=2)
    assert (model.predict(features) == targets).float().mean().item() > 0.7
    model.save(tmp_path / "a")
    assert content(Learner.load(tmp_path / "a")) == content(model)


# -- linearised ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["softmax", "gauge"])
def test_a_linearised_layer_is_linear_attention_over_its_tuples(kind: Any) -> None:
    layer = make_layer(kind, 6, 3)
    fill(layer, 700)  # two blocks
    assert isinstance(layer, WeightedSoftmax) or kind == "gauge"
    query = 30 * randn(5, 6, seed=3)  # where e^x would need a running maximum
    dense = Dense.of(layer)
    scale = layer.kernel.scale
    # Two sums of fixed size: Σ k ṽᵀ and Σ ṽ, and the same of weights.
    matrix, vector = dense.key.T @ dense.value, dense.value.sum(0)
    above = vector + scale * arrays(query) @ matrix
    below = dense.weight.sum() + scale * arrays(query) @ (dense.key.T @ dense.weight)
    with torch.no_grad():
        plain = layer(query)
        with layer.linearised():
            found = layer(query)
        np.testing.assert_allclose(arrays(found), above / below[:, None], rtol=1e-8)
        assert torch.equal(layer(query), plain)


def test_a_linearised_layer_refuses_to_learn_and_a_linear_one_stays() -> None:
    layer = make_layer("softmax", 6, 3)
    with layer.linearised(), pytest.raises(GraphError, match="linearised kernel answers only"):
        layer(randn(2, 6))
    linear = DualLinear(6, 3, **F64)
    fill(linear, 20)
    with torch.no_grad(), linear.linearised():
        found = linear(randn(2, 6))
    torch.testing.assert_close(found, linear(randn(2, 6)).detach())


def test_a_learner_is_linearised_for_a_while_and_refused_where_nothing_grows() -> None:
    model = learner(encoder={"kind": "pca", "width": 5, "fit": 40})
    feed(model, *pictures(80))
    probe = pictures(9, seed=3)[0]
    plain = model.predict_proba(probe)
    with model.linearised():
        assert not torch.allclose(model.predict_proba(probe), plain)
    assert torch.equal(model.predict_proba(probe), plain)
    for section in ({"kind": "ridge"}, {"kind": "parametric"}):
        other = learner(learner=section, encoder={"kind": "pca", "width": 5, "fit": 40})
        feed(other, *pictures(80))
        with pytest.raises(ConfigError, match=r"leave evaluation\.linearise out"):
            other.linearised()


# -- layers of fixed size --------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_the_parametric_softmax_is_its_formula(weighted: bool) -> None:
    layer = ParametricSoftmax(4, 3, 7, temperature=1.3, weighted=weighted, generator=generator(),
                              dtype=torch.float64)  # fmt: skip
    np.testing.assert_allclose(arrays(layer.keys.square().mean(-1)), 1.0, rtol=1e-6)
    with torch.no_grad():
        layer.values.copy_(randn(7, 3, seed=1))
        if layer.log_weights is not None:
            layer.log_weights.copy_(randn(7, seed=2))
    weight = np.exp(arrays(randn(7, seed=2))) if weighted else np.ones(7)
    query = randn(2, 5, 4, seed=3)
    similar = np.exp(arrays(query) @ arrays(layer.keys).T / (1.3 * 2)) * weight
    wanted = similar @ arrays(layer.values) / similar.sum(-1, keepdims=True)
    np.testing.assert_allclose(arrays(layer(query)), wanted, rtol=1e-10)
    assert len(list(layer.parameters())) == 2 + weighted


def test_a_dense_block_begins_by_adding_nothing_and_is_seeded() -> None:
    blocks = [DenseBlock(4, 9, activation="relu", generator=generator(seed)) for seed in (1, 1, 2)]
    assert torch.equal(blocks[0].first.weight, blocks[1].first.weight)
    assert not torch.equal(blocks[0].first.weight, blocks[2].first.weight)
    x = torch.randn(3, 4, generator=generator())
    assert (blocks[0](x) == 0).all()
    with torch.no_grad():
        blocks[0].second.weight.fill_(1.0)
    wanted = torch.relu(x @ blocks[0].first.weight.T).sum(-1)
    torch.testing.assert_close(blocks[0](x)[:, 0], wanted)


# -- vision transformer ----------------------------------------------------------------------------


def vit(layers: str = "dense", **network: Any) -> dict[str, Any]:
    return {
        "encoder": {"kind": "standardise", "constant": 0, "fit": 40},
        "learner": {"kind": "parametric", "optimizer": "adamw", "lr": 0.003, "batch": 8,
                    "dtype": "float32"},
        "network": {"kind": "vit", "patch": 5, "width": 16, "heads": 2, "hidden": 2, "inner": 20,
                    "layers": layers, **network},
    }  # fmt: skip


def test_attention_is_the_formula() -> None:
    layer = Attention(6, 2, generator=generator(), dtype=torch.float64)
    with torch.no_grad():
        layer.out.weight.copy_(randn(6, 6, seed=1))
    tokens = randn(3, 5, 6, seed=2)
    parts = arrays(tokens) @ arrays(layer.into.weight).T
    heads = []
    for head in range(2):
        query, key, value = (
            parts[..., 6 * part + 3 * head : 6 * part + 3 * head + 3] for part in range(3)
        )
        scores = np.exp(query @ key.transpose(0, 2, 1) / np.sqrt(3))
        heads.append(scores / scores.sum(-1, keepdims=True) @ value)
    wanted = np.concatenate(heads, -1) @ arrays(layer.out.weight).T
    np.testing.assert_allclose(arrays(layer(tokens)), wanted, rtol=1e-9, atol=1e-12)


def test_patches_are_squares_of_the_image_row_by_row() -> None:
    class Tokens(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            self.seen = tokens
            return tokens

    block = Tokens()
    model = VisionTransformer((2, 4, 6), 2, 8, [block], nn.Identity(), generator=generator())
    image = torch.randn(3, 2, 4, 6, generator=generator(1))
    model(image.flatten(1))
    assert block.seen.shape == (3, 6, 8)
    corner = image[:, :, 2:4, 4:6].flatten(1)  # the last patch
    wanted = model.embedding(corner) + model.places[5]
    torch.testing.assert_close(block.seen[:, 5], wanted)


@pytest.mark.parametrize(("layers", "grown"), [
    ("dense", []), ("growing", ["hidden.0.ffn", "hidden.1.ffn"]), ("mixed", ["hidden.0.ffn"]),
])  # fmt: skip
def test_a_vision_transformer_learns_grows_and_is_saved(
    layers: str, grown: list[str], tmp_path: Path
) -> None:
    model = learner(**vit(layers))
    feed(model, *pictures(240, seed=1))
    features, targets = pictures(200, seed=2)
    assert (model.predict(features) == targets).float().mean().item() > 0.6
    assert list(model.memories()) == grown
    # A tuple for each of four patches.
    assert all(len(memory) == 16 + 4 * 240 for memory in model.memories().values())
    model.save(tmp_path / "a")
    restored = Learner.load(tmp_path / "a")
    assert content(restored) == content(model)
    for one in (model, restored):
        feed(one, *pictures(24, seed=4))
    assert content(restored) == content(model)


def test_shapes_that_a_vision_transformer_cannot_take_are_refused() -> None:
    model = learner(**vit(patch=3))
    with pytest.raises(
        ConfigError, match=r"network\.patch=3 does not divide images of 10×10 pixels"
    ):
        feed(model, *pictures(48))
    assert model.held == 40
    with pytest.raises(ConfigError, match=r"network\.heads=3 does not divide network\.width=16"):
        learner(**vit(heads=3))


def test_a_vision_transformer_wants_pixels_and_gradients() -> None:
    model = learner(**{**vit(), "encoder": {"kind": "pca", "width": 8, "fit": 40}})
    with pytest.raises(ConfigError, match=r"samples of shape \(1, 10, 10\) come otherwise"):
        feed(model, *pictures(48))
    with pytest.raises(ConfigError, match="has attention, which is trained by gradients"):
        learner(network="vit")


def test_mixed_networks_grow_where_they_should() -> None:
    chosen = settings_of({
        "learner": "parametric", "network": {"hidden": 3, "layers": "mixed", "growing": 2},
    })  # fmt: skip
    network = build_network(chosen, 6, CLASSES, CPU)
    kinds = [type(layer).__name__ for layer in (*network.hidden, network.output)]
    assert kinds == ["WeightedSoftmax", "WeightedSoftmax", "DenseBlock", "Linear"]
    chosen = settings_of({
        "learner": "parametric", "layer": {"kind": "parametric-softmax", "width": 9},
    })  # fmt: skip
    network = build_network(chosen, 6, CLASSES, CPU)
    assert all(isinstance(layer, ParametricSoftmax) for layer in (*network.hidden, network.output))


def test_a_growing_network_has_no_ordinary_optimizer() -> None:
    model = learner()
    feed(model, *pictures(48))
    assert isinstance(model.model, NetworkModel)
    assert model.model.optimizer is None
    assert model.nbytes == sum(memory.nbytes for memory in model.memories().values())

"""What a learner can be told, and the one sentence for everything that it cannot."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from streamlearn import Learner
from streamlearn.build import build_encoder, build_growth, build_network
from streamlearn.encoders import PCA, Chain, ModuleEncoder, PatchFeatures, Standardise
from streamlearn.errors import ConfigError
from streamlearn.hardware import resolve_hardware
from streamlearn.layers import DualLinear, GaugeSoftmax, RBFLayer, WeightedSoftmax
from streamlearn.settings import (
    GaugeSettings,
    LearnerSettings,
    PatchSettings,
    PCASettings,
    RBFSettings,
    settings_of,
)

CPU = resolve_hardware("cpu", "float32")


def test_a_kind_may_be_given_by_its_bare_name() -> None:
    chosen = settings_of({"encoder": "pca", "layer": "gauge", "seed": 3})
    assert isinstance(chosen.encoder, PCASettings)
    assert isinstance(chosen.layer, GaugeSettings)
    assert chosen.seed == 3
    assert chosen == settings_of(
        {"encoder": {"kind": "pca"}, "layer": {"kind": "gauge"}, "seed": 3}
    )


def test_settings_survive_json() -> None:
    chosen = settings_of({
        "encoder": {"kind": "patch", "zca": 0.123456789012345},
        "layer": {"kind": "softmax", "bound": 1e-300, "temperature": None},
        "optimizer": {"momentum": 0.1 + 0.2},
    })  # fmt: skip
    assert LearnerSettings.model_validate_json(chosen.model_dump_json()) == chosen


def test_words_for_none_leave_an_optional_number_unset() -> None:
    for word in ("none", "null", "None", "", None):
        chosen = settings_of({"layer": {"kind": "softmax", "bound": word}})
        assert chosen.layer.bound is None  # type: ignore[union-attr]


def test_settings_never_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        settings_of({}).seed = 5  # type: ignore[misc]


@pytest.mark.parametrize(("sections", "message"), [
    ({"colour": 1}, "colour is not a setting; known here: seed, encoder, network, layer"),
    ({"sed": 1}, r"sed is not a setting; did you mean seed\?"),
    ({"layer": {"kind": "softmax", "kapa": 1}},
     r"layer.kapa is not a setting; did you mean layer.kappa\?"),
    ({"layer": {"kind": "rbf", "alpha": 1}}, "layer.alpha is not a setting; known here: .*gamma"),
    ({"network": {"hiden": 1}}, r"network.hiden is not a setting; did you mean network.hidden\?"),
    ({"encoder": {"kind": "patch", "filtres": 1}}, r"did you mean encoder.filters\?"),
    ({"encoder": "pcaa"}, r"encoder=pcaa is not a kind of encoder; did you mean pca\?"),
    ({"layer": "attention"}, "layer=attention is not a kind of layer; choose softmax, gauge, rbf"),
    ({"layer": {"kind": 5}}, "layer=5 is not a kind of layer"),
    ({"layer": {"kappa": 2}}, "layer.kind is missing; choose softmax, gauge, rbf, linear"),
    ({"learner": "shrinking"}, "learner=shrinking is not a kind of learner; did you mean growing"),
    ({"encoder": 5}, "encoder=5 cannot be used"),
    ({"layer": None}, "layer=None cannot be used"),
    ({"network": 3}, "network=3 cannot be used"),
    ({"encoder": {"kind": "torchvision"}}, "encoder.weights is missing; set encoder.weights="),
    ({"seed": -1}, "seed=-1 cannot be used: it should be greater than or equal to 0"),
    ({"seed": 2**63}, "seed=.* should be less than"),
    ({"seed": "x"}, "seed=x cannot be used: it should be a valid integer"),
    ({"seed": 1.5}, "seed=1.5 cannot be used: it should be a valid integer"),
    ({"encoder": {"kind": "pca", "fit": 0}}, "encoder.fit=0 .* greater than or equal to 1"),
    ({"encoder": {"kind": "pca", "width": 0}}, "encoder.width=0"),
    ({"encoder": {"kind": "pca", "whiten": 3}}, "encoder.whiten=3 .* less than or equal to 2"),
    ({"encoder": {"kind": "pca", "floor": -0.1}}, "encoder.floor=-0.1"),
    ({"encoder": {"kind": "standardise", "per": "row"}},
     "encoder.per=row .* 'feature' or 'channel'"),
    ({"encoder": {"kind": "standardise", "clip": 0}}, "encoder.clip=0 .* greater than 0"),
    ({"encoder": {"kind": "patch", "zca": 0}}, "encoder.zca=0 .* greater than 0"),
    ({"layer": {"kind": "softmax", "kappa": 0}}, "layer.kappa=0 .* greater than 0"),
    ({"layer": {"kind": "softmax", "kappa": float("inf")}}, "layer.kappa=inf .* finite number"),
    ({"layer": {"kind": "softmax", "lr_value": float("nan")}}, "layer.lr_value=nan"),
    ({"layer": {"kind": "softmax", "start_rows": 0}}, "layer.start_rows=0"),
    ({"layer": {"kind": "gauge", "alpha": 0}}, "layer.alpha=0 .* greater than 0"),
    ({"layer": {"kind": "rbf", "gamma": 0}}, "layer.gamma=0 .* greater than 0"),
    ({"network": {"hidden": 65}}, "network.hidden=65 .* less than or equal to 64"),
    ({"optimizer": {"momentum": 1}}, "optimizer.momentum=1 .* less than 1"),
    ({"optimizer": {"decay": 1.0}}, "optimizer.decay=1.0 .* less than 1"),
    ({"learner": {"batch": 0}}, "learner.batch=0"),
    ({"learner": {"loss": "mse"}}, "learner.loss=mse .* 'auto', 'cross_entropy', 'squared_error'"),
    ({"learner": {"dtype": "f32"}}, "learner.dtype=f32 .* 'auto', 'float32', 'bfloat16'"),
    ({"learner": {"device": "tpu"}}, "learner.device=tpu .* 'auto', 'cpu' or 'cuda'"),
    ({"learner": {"cold_start": "warm"}}, "learner.cold_start=warm .* 'online' or 'chance'"),
    (
        {"learner": {"kind": "parametric"}, "network": {"layers": "mixed", "hidden": 0}},
        "network.growing=1 of network.hidden=0 hidden layers",
    ),
    (
        {
            "learner": {"kind": "parametric"},
            "network": {"layers": "mixed", "hidden": 2, "growing": 0},
        },
        "network.layers=mixed has no layer that is as layer says",
    ),
    (
        {
            "learner": {"kind": "parametric", "optimizer": "mesa"},
            "layer": {"kind": "parametric-softmax", "width": 9},
        },
        "learner.optimizer=mesa moves linear layers, and all",
    ),
    (
        {"learner": {"kind": "parametric"}, "network": {"kind": "vit", "heads": 3}},
        "network.heads=3 does not divide network.width=128",
    ),
    ({"memory": {"block_rows": 1000}}, "memory.block_rows=1000 .* multiple of 512"),
    ({"memory": {"block_rows": 256}}, "memory.block_rows=256"),
])  # fmt: skip
def test_the_first_wrong_setting_is_named_in_one_sentence(
    sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Learner(3, **sections)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_settings_and_sections_together_are_refused() -> None:
    for extra in ({"seed": 1}, {"encoder": "pca"}):
        with pytest.raises(ConfigError, match="not both"):
            Learner(3, settings_of({}), **extra)
    own = ModuleEncoder(torch.nn.Identity())
    assert Learner(3, settings_of({"seed": 4}), encoder=own).encoder is own


@pytest.mark.parametrize("classes", [0, 1, -3, [], ["one"]])
def test_fewer_than_two_classes_are_refused(classes: Any) -> None:
    with pytest.raises(ConfigError, match=r"at least 2 classes but was given \d; look at"):
        Learner(classes)


# -- building --------------------------------------------------------------------------------------


def test_encoders_are_built_as_set() -> None:
    plain = build_encoder(settings_of({"encoder": {"kind": "standardise", "clip": 3}}), CPU)
    assert isinstance(plain, Standardise)
    assert plain.clip == 3
    components = build_encoder(
        settings_of({"encoder": {"kind": "pca", "width": 7, "whiten": 0.5, "floor": 0.2}}), CPU
    )
    assert isinstance(components, PCA)
    assert (components.components, components.whiten, components.floor) == (7, 0.5, 0.2)
    assert not components.standardise
    chain = build_encoder(settings_of({"encoder": {"kind": "patch", "width": 9}, "seed": 4}), CPU)
    assert isinstance(chain, Chain)
    first, second = chain.stages
    assert isinstance(first, PatchFeatures)
    assert isinstance(second, PCA)
    for name in ("filters", "patch", "pool", "bias", "contrast", "zca", "power", "mirror"):
        assert getattr(first, name) == getattr(PatchSettings(), name)
    assert first.seed == 4
    assert second.components == 9


@pytest.mark.parametrize(("kind", "made"), [
    ("softmax", WeightedSoftmax), ("gauge", GaugeSoftmax), ("rbf", RBFLayer),
    ("linear", DualLinear),
])  # fmt: skip
def test_networks_and_optimizers_are_built_as_set(kind: str, made: type) -> None:
    chosen = settings_of({
        "layer": {"kind": kind, "lr_value": 0.5, "lr_value_hidden": 0.25},
        "network": {"hidden": 2},
        "optimizer": {"momentum": 0.5, "decay": 0.125},
        "memory": {"block_rows": 1024},
    })  # fmt: skip
    network = build_network(chosen, 8, 3, CPU)
    layers = [*network.hidden, network.output]
    assert all(isinstance(layer, made) for layer in layers)
    assert [layer.out_features for layer in layers] == [8, 8, 3]
    assert all(layer.memory.block_rows == 1024 for layer in layers)
    growth = build_growth(chosen, network)
    assert growth is not None
    hidden, output = growth.param_groups
    assert hidden["layers"] == list(network.hidden)
    assert output["layers"] == [network.output]
    assert (hidden["lr_value"], output["lr_value"]) == (0.25, 0.5)
    assert (hidden["momentum"], output["decay"]) == (0.5, 0.125)
    if kind in ("softmax", "gauge"):
        assert hidden["lr_weight"] == chosen.layer.lr_weight_hidden  # type: ignore[union-attr]
        assert output["lr_weight"] == chosen.layer.lr_weight  # type: ignore[union-attr]


def test_kappa_is_the_largest_logit_at_every_width_and_temperature_overrides_it() -> None:
    for width in (4, 100):
        by_kappa = build_network(settings_of({"layer": {"kind": "softmax", "kappa": 5}}), width, 3,
                                 CPU)  # fmt: skip
        assert by_kappa.output.kernel.scale * width == pytest.approx(5.0)  # type: ignore[operator, union-attr]
        direct = settings_of({"layer": {"kind": "softmax", "kappa": 5, "temperature": 2.0}})
        assert build_network(direct, width, 3, CPU).output.temperature == 2.0


def test_a_network_without_hidden_layers_has_one_group() -> None:
    chosen = settings_of({"network": {"hidden": 0}})
    network = build_network(chosen, 8, 3, CPU)
    growth = build_growth(chosen, network)
    assert growth is not None
    assert len(growth.param_groups) == 1


def test_layers_of_one_network_start_from_different_rows_and_seeds_differ() -> None:
    chosen = settings_of({"network": {"hidden": 2}, "layer": {"kind": "softmax"}})
    network = build_network(chosen, 8, 8, CPU)
    keys = [layer.memory.blocks[0].key[:16] for layer in (*network.hidden, network.output)]
    assert not torch.equal(keys[0], keys[1])
    again = build_network(chosen, 8, 8, CPU)
    assert torch.equal(keys[0], again.hidden[0].memory.blocks[0].key[:16])  # type: ignore[union-attr, index]
    other = build_network(settings_of({"seed": 1}), 8, 8, CPU)
    assert not torch.equal(keys[0], other.hidden[0].memory.blocks[0].key[:16])  # type: ignore[union-attr, index]


def test_the_rbf_defaults_are_the_softmax_kernel_at_its_default_kappa() -> None:
    assert RBFSettings().gamma == settings_of({}).layer.kappa / 2  # type: ignore[union-attr]

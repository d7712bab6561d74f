"""Shapes, sizes and names of the five backbones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chorale.spec.job_spec import ModelSpec
from chorale_models.networks.residual import InvertedResidual
from crypto.errors import ConfigError, RemoteProtocolError
from silo_agent.seeding import seeded
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.registry import build_model
from silo_agent.training.models.state import flat_values, load_arrays, model_arrays

WIDTHS = {"mlp": 48, "cnn": 128, "resnet18": 512, "vgg11": 512, "mobilenet_v2": 1280}
IMAGE_MODELS = [name for name in WIDTHS if name != "mlp"]


def make_model(
    name: str, *, norm: str = "none", shape: tuple[int, ...] = (1, 28, 28), seed: int = 0
) -> FederatedModel:
    spec = ModelSpec(name=name, norm=norm, hidden=(48,), seed=seed)
    with seeded(seed):
        return build_model(spec, classes=7, input_shape=shape)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("name", WIDTHS)
def test_model_is_features_then_head(name: str, shape: tuple[int, ...]) -> None:
    model = make_model(name, shape=shape, norm="batch").eval()
    inputs = torch.rand(2, *shape)
    features_ND = model.features(inputs)
    assert features_ND.shape == (2, WIDTHS[name])
    assert model(inputs).shape == (2, 7)
    torch.testing.assert_close(model(inputs), model.head(features_ND))


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_image_models_take_small_images_too(name: str) -> None:
    assert make_model(name, shape=(1, 8, 8))(torch.rand(2, 1, 8, 8)).shape == (2, 7)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("name", WIDTHS)
def test_only_batch_norm_has_buffers(name: str, norm: str) -> None:
    buffers = {key for key in model_arrays(make_model(name, norm=norm)) if "running_" in key}
    assert bool(buffers) == (norm == "batch")
    assert not any(key.endswith("num_batches_tracked") for key in model_arrays(make_model(name, norm=norm)))


def test_group_norm_sees_no_other_sample_of_the_batch() -> None:
    model = make_model("resnet18", norm="group").train()
    inputs = torch.rand(3, 1, 28, 28)
    torch.testing.assert_close(model(inputs)[:1], model(inputs[:1]), rtol=1e-4, atol=1e-5)


def test_group_norm_takes_widths_that_sixteen_does_not_divide() -> None:
    spec = ModelSpec(name="mlp", norm="group", hidden=(50, 7))
    assert build_model(spec, classes=3, input_shape=(5,))(torch.rand(1, 5)).shape == (1, 3)


def test_mlp_without_hidden_layers_is_a_linear_model() -> None:
    model = build_model(ModelSpec(name="mlp", hidden=()), classes=3, input_shape=(1, 2, 2))
    assert set(model_arrays(model)) == {"model/head.weight", "model/head.bias"}
    assert model.features(torch.ones(2, 1, 2, 2)).shape == (2, 4)


def test_blocks_of_mobilenet_add_to_their_input_where_the_shapes_agree() -> None:
    inputs = torch.rand(2, 8, 4, 4)
    same = InvertedResidual(8, 8, expansion=6, stride=1, norm="none")
    strided = InvertedResidual(8, 8, expansion=6, stride=2, norm="none")
    for block in (same, strided):
        for parameter in block.parameters():
            torch.nn.init.zeros_(parameter)
    assert torch.equal(same(inputs), inputs)
    assert torch.equal(strided(inputs), torch.zeros(2, 8, 2, 2))


def test_vgg11_body_has_the_size_of_the_papers() -> None:
    body = make_model("vgg11", shape=(3, 32, 32)).body
    assert sum(parameter.numel() for parameter in body.parameters()) == 9_745_792


def test_resnet18_body_has_the_size_of_its_cifar_form() -> None:
    body = make_model("resnet18", shape=(3, 32, 32), norm="batch").body
    assert sum(parameter.numel() for parameter in body.parameters()) == 11_168_832


def test_mobilenet_v2_body_has_the_size_of_the_original() -> None:
    body = make_model("mobilenet_v2", shape=(3, 32, 32), norm="batch").body
    # 3,504,872 of the original less its classifier of 1,280 x 1,000 weights and 1,000 biases
    assert sum(parameter.numel() for parameter in body.parameters()) == 2_223_872


def test_every_parameter_of_every_model_gets_a_gradient() -> None:
    for name in WIDTHS:
        model = make_model(name, norm="batch", shape=(3, 32, 32))
        torch.autograd.backward(model(torch.rand(4, 3, 32, 32)).square().sum())
        without = [key for key, value in model.named_parameters() if value.grad is None]
        assert without == [], name


def test_same_seed_gives_the_same_model_and_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, second, other = (make_model("cnn", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    names = [name for name, _ in first.named_parameters()]
    assert np.array_equal(flat_values(first, names), flat_values(second, names))
    assert not np.array_equal(flat_values(first, names), flat_values(other, names))


def test_image_model_refuses_a_flat_input() -> None:
    with pytest.raises(ConfigError, match=r"input_shape: it should be \(channels, height, width\)"):
        make_model("cnn", shape=(13,))


def test_custom_model_is_not_built_in() -> None:
    with pytest.raises(ConfigError, match=r"model.name: the built-in training has mlp, cnn, .* got custom"):
        make_model("custom")


def test_arrays_travel_back_into_a_model() -> None:
    source, target = make_model("mlp", norm="batch", seed=1), make_model("mlp", norm="batch", seed=2)
    load_arrays(target, {**model_arrays(source), "method/total": np.asarray(3)})
    inputs = torch.rand(2, 1, 28, 28)
    assert torch.equal(target.eval()(inputs), source.eval()(inputs))


def test_state_of_another_model_is_refused_by_name() -> None:
    state = model_arrays(make_model("mlp"))
    del state["model/head.bias"]
    with pytest.raises(RemoteProtocolError, match=r"differing in head\.bias"):
        load_arrays(make_model("mlp"), state)


def test_state_of_another_shape_is_refused_by_name() -> None:
    state = model_arrays(make_model("mlp"))
    state["model/head.bias"] = np.zeros(8, dtype=np.float32)
    with pytest.raises(RemoteProtocolError, match=r"head\.bias is float32 \(8,\), expected float32 \(7,\)"):
        load_arrays(make_model("mlp"), state)

"""Shapes, sizes and names of Chorale's networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from chorale.spec.plug_in_specs import OWN_MODELS, ModelSpec
from chorale_models.networks.residual import SqueezeExcitation
from chorale_models.networks.separable import InvertedResidual
from crypto.errors import ConfigError, RemoteProtocolError
from silo_agent.training.machine.seeding import seeded
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.registry import OWN, build_model
from silo_agent.training.models.state import flat_values, load_arrays, model_arrays

WIDTHS = {
    "mlp": 48,
    "cnn": 128,
    "lenet": 84,
    "lenet_linear": 128,
    "vgg11": 512,
    "vgg13": 512,
    "convnet7": 1024,
    "resnet18": 512,
    "resnet18_imagenet": 512,
    "resnet50": 2048,
    "resnet50_imagenet": 2048,
    "senet18": 512,
    "mobilenet": 1024,
    "mobilenet_v2": 1280,
    "mobilenet_v2_relu": 1280,
}
SIZED = {"lenet", "lenet_linear"}
RGB, DIGITS, IMAGENET = (3, 32, 32), (1, 28, 28), (3, 224, 224)
PUBLISHED = [  # network, classes, input, norm, parameters with a biased head, and who says so
    # torchvision's model pages
    ("alexnet", 1_000, IMAGENET, "none", 61_100_840),
    ("resnet18_imagenet", 1_000, IMAGENET, "batch", 11_689_512),
    ("resnet50_imagenet", 1_000, IMAGENET, "batch", 25_557_032),
    ("mobilenet_v2", 1_000, IMAGENET, "batch", 3_504_872),
    # Keras Applications, trainable parameters; the paper's table 8 has 4.2 million
    ("mobilenet", 1_000, IMAGENET, "batch", 4_231_976),
    # kuangliu/pytorch-cifar, which SphereFed cites
    ("vgg13", 10, RGB, "batch", 9_416_010),
    ("resnet18", 10, RGB, "batch", 11_173_962),
    # bodies of 9,745,792 and 3,206,976 in FedDr+'s code
    ("vgg11", 10, RGB, "none", 9_745_792 + 10 * 513),
    ("mobilenet", 100, RGB, "batch", 3_206_976 + 100 * 1_025),
    # ResNet-50 of FedCSD's code, with 3x3 stem, and with the paper's own
    ("resnet50", 100, RGB, "batch", 23_705_252),
    ("resnet50_imagenet", 100, RGB, "batch", 23_712_932),
    # MOON's simple-cnn; PyTorch's CIFAR-10 tutorial has the same with three channels
    ("lenet", 10, DIGITS, "none", 44_426),
    ("lenet", 10, RGB, "none", 62_006),
    # FedDW's code, models.py, CNN_cifar10: 5x5 layers, 400-256-128
    ("lenet_linear", 10, RGB, "none", 456 + 2_416 + 400 * 256 + 256 + 256 * 128 + 128 + 1_290),
    # resnet18 and in each block two layers of w to w / 16 to w
    (
        "senet18",
        10,
        RGB,
        "batch",
        11_173_962 + 2 * sum(2 * w * w // 16 + w // 16 + w for w in (64, 128, 256, 512)),
    ),
    # SphereFed's printed list of layers
    (
        "convnet7",
        100,
        RGB,
        "group",
        sum(
            9 * a * b + 3 * b
            for a, b in ((3, 32), (32, 64), (64, 64), (64, 64), (64, 128), (128, 128), (128, 256))
        )
        + 100 * 1_025,
    ),
    # mobilenet_v2, and in the first block an expansion by 1: 32 x 32 weights and a norm
    ("mobilenet_v2_relu", 1_000, IMAGENET, "batch", 3_504_872 + 32 * 32 + 2 * 32),
]


@pytest.mark.parametrize(("name", "classes", "shape", "norm", "parameters"), PUBLISHED)
def test_network_has_as_many_parameters_as_its_source_says(
    name: str, classes: int, shape: tuple[int, ...], norm: str, parameters: int
) -> None:
    with torch.device("meta"):  # shapes alone
        model = build_model(ModelSpec(name=name, norm=norm), classes=classes, input_shape=shape)
        assert model.train()(torch.empty(2, *shape)).shape == (2, classes)
    assert sum(each.numel() for each in model.parameters()) == parameters


def test_every_network_is_counted() -> None:
    assert {name for name, *_ in PUBLISHED} == {*OWN_MODELS} - {"mlp", "cnn", "trees"}
    assert {*OWN} == {*OWN_MODELS}


@pytest.mark.parametrize(
    ("name", "shape", "least"),
    [
        ("lenet", (1, 15, 28), "16x16"),
        ("lenet_linear", (1, 15, 28), "16x16"),
        ("alexnet", (3, 32, 32), "63x63"),
    ],
)
def test_network_says_which_images_are_too_small(name: str, shape: tuple[int, ...], least: str) -> None:
    message = rf"model.name: {name} takes images of {least} and more, the job's input_shape is \["
    with pytest.raises(ConfigError, match=message):
        make_model(name, shape=shape)


def test_squeeze_and_excitation_scales_channels_by_their_means() -> None:
    gate = SqueezeExcitation(32)
    inputs = torch.rand(2, 32, 3, 3)
    hidden_NK = torch.clamp(inputs.mean((2, 3)) @ gate.squeeze.weight.T + gate.squeeze.bias, min=0)
    shares_NK = 1 / (1 + torch.exp(-(hidden_NK @ gate.excite.weight.T + gate.excite.bias)))
    torch.testing.assert_close(gate(inputs), torch.einsum("nkhw,nk->nkhw", inputs, shares_NK))


def test_features_of_lenet_linear_have_both_signs_and_those_of_lenet_do_not() -> None:
    inputs = torch.rand(8, 1, 28, 28)
    assert (make_model("lenet_linear").features(inputs) < 0).any()
    assert (make_model("lenet").features(inputs) >= 0).all()


def test_mobilenet_v2_of_spherefed_has_a_relu_after_every_projection() -> None:
    inputs = torch.randn(2, 8, 4, 4)
    projected = InvertedResidual(8, 16, expansion=1, stride=1, norm="none", is_relu=True)
    assert (projected(inputs) >= 0).all()
    assert (InvertedResidual(8, 16, expansion=1, stride=1, norm="none")(inputs) < 0).any()
    assert not [layer for layer in make_model("mobilenet_v2_relu").modules() if isinstance(layer, nn.ReLU6)]


@pytest.mark.parametrize(
    "name", ["cnn", "lenet", "lenet_linear", "vgg11", "vgg13", "alexnet", "resnet50_imagenet"]
)
def test_relu_after_pooling_gives_the_papers_order_to_the_last_bit(name: str) -> None:
    shape = (3, 64, 64) if name == "alexnet" else RGB
    as_built, as_printed = (make_model(name, norm="group", shape=shape).eval() for _ in range(2))
    swaps = 0
    for layers in [each for each in as_printed.modules() if isinstance(each, nn.Sequential)]:
        for place in [place for place, each in enumerate(layers) if isinstance(each, nn.MaxPool2d)]:
            layers[place], layers[place + 1] = layers[place + 1], layers[place]
            assert isinstance(layers[place], nn.ReLU)
            swaps += 1
    assert swaps > 0
    inputs = torch.rand(4, *shape)
    outputs = [model(inputs) for model in (as_built, as_printed)]
    assert torch.equal(*outputs)
    for output in outputs:
        output.square().sum().backward()
    gradients = [torch.cat([each.grad.flatten() for each in m.parameters()]) for m in (as_built, as_printed)]
    assert torch.equal(*gradients)
    assert gradients[0].count_nonzero() > 0


def make_model(
    name: str, *, norm: str = "none", shape: tuple[int, ...] = (1, 28, 28), seed: int = 0
) -> FederatedModel:
    spec = ModelSpec(name=name, norm=norm, hidden=(48,), seed=seed)
    with seeded(seed):
        return build_model(spec, classes=7, input_shape=shape)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("name", ["mlp", "cnn", "lenet_linear", "resnet18"])
def test_model_is_features_then_head(name: str, shape: tuple[int, ...]) -> None:
    model = make_model(name, shape=shape, norm="batch").eval()
    inputs = torch.rand(2, *shape)
    torch.testing.assert_close(model(inputs), model.head(model.features(inputs)))


@pytest.mark.parametrize("name", WIDTHS)
def test_features_have_the_networks_width_whatever_the_size_of_an_image(name: str) -> None:
    smallest = (1, 16, 16) if name in SIZED else (1, 8, 8)
    for shape in (smallest, DIGITS, RGB):
        with torch.device("meta"):
            model = make_model(name, shape=shape)
            assert model.features(torch.empty(2, *shape)).shape == (2, WIDTHS[name])
            assert model(torch.empty(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("name", WIDTHS)
def test_only_batch_norm_has_buffers(name: str, norm: str) -> None:
    with torch.device("meta"):
        buffers = {key.rpartition(".")[2] for key, _ in make_model(name, norm=norm).named_buffers()}
    batch = {"running_mean", "running_var", "num_batches_tracked"}
    assert buffers == (batch if norm == "batch" else set())


def test_counter_of_batches_is_no_array_of_the_state() -> None:
    assert not [key for key in model_arrays(make_model("resnet18", norm="batch")) if "num_batches" in key]


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
        with torch.device("meta"):
            model = make_model(name, norm="batch", shape=(3, 32, 32))
            torch.autograd.backward(model(torch.empty(4, 3, 32, 32)).square().sum())
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
    with pytest.raises(ConfigError, match=r"input_shape: expected \(channels, height, width\), got"):
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

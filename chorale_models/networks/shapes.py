"""Names and shapes of the arrays of Chorale's networks, by arithmetic: what torch would say, without torch.

A network is its layers one after the other, each an entry of a Sequential; layers without arrays take a place
too. tests/unit/chorale_models/test_network_shapes.py compares with the networks themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from chorale_models.model import Sizes
from chorale_models.networks import tables
from chorale_models.networks.tables import check_size, image_channels

Shape: TypeAlias = tuple[int, ...]
Arrays: TypeAlias = dict[str, Shape]  # of a layer, by the names it gives them
IDLE: Arrays = {}  # of a layer without arrays
HEAD = "head."


def declared(network: str, sizes: Sizes, *, norm: str, hidden: tuple[int, ...]) -> Arrays:
    """Parameters and running means of a network, with the head's as `head.weight` and `head.bias`.

    Raises ConfigError for samples that the network does not take, and KeyError for another network.
    """
    layers, width = NETWORKS[network](sizes, norm, hidden)
    return {**_in_a_row(layers), **_named(HEAD, linear(width, sizes.outputs))}


def trees_shapes(sizes: Sizes, *, trees: int, depth: int) -> Arrays:
    """Of the arrays of `networks/trees.py`: (trees, side by side, nodes), and the base scores."""
    side_by_side = 1 if sizes.classes == 2 else sizes.outputs
    nodes = (trees, side_by_side, (2 << depth) - 1)
    names = ("split_on", "threshold", "missing_left", "value")
    return {**dict.fromkeys(names, nodes), "base": (side_by_side,)}


def conv(before: int, channels: int, size: int, *, groups: int = 1, has_bias: bool = True) -> Arrays:
    weight: Arrays = {"weight": (channels, before // groups, size, size)}
    return {**weight, "bias": (channels,)} if has_bias else weight


def linear(width: int, outputs: int) -> Arrays:
    return {"weight": (outputs, width), "bias": (outputs,)}


def normed(kind: str, channels: int) -> Arrays:
    """batch, group or none."""
    names = {
        "batch": ("weight", "bias", "running_mean", "running_var"),
        "group": ("weight", "bias"),
        "none": (),
    }[kind]
    return dict.fromkeys(names, (channels,))


def _in_a_row(layers: Iterable[Arrays]) -> Arrays:
    found: Arrays = {}
    for place, arrays in enumerate(layers):
        found |= _named(f"{place}.", arrays)
    return found


def _named(prefix: str, arrays: Mapping[str, Shape]) -> Arrays:
    return {prefix + name: shape for name, shape in arrays.items()}


Layers: TypeAlias = tuple[list[Arrays], int]  # and the feature width


def _mlp(sizes: Sizes, norm: str, hidden: tuple[int, ...]) -> Layers:
    layers, width = [IDLE], math.prod(sizes.input_shape)
    for next_width in hidden:
        layers += [linear(width, next_width), normed(norm, next_width), IDLE]
        width = next_width
    return layers, width


def _cnn(sizes: Sizes, norm: str, _: object) -> Layers:
    layers, before = [], image_channels(sizes)
    for channels in tables.CNN_CHANNELS:
        layers += [conv(before, channels, 3), normed(norm, channels), IDLE, IDLE]
        before = channels
    layers += [IDLE, IDLE, linear(before * tables.CNN_GRID**2, tables.CNN_WIDTH)]
    return [*layers, normed(norm, tables.CNN_WIDTH)], tables.CNN_WIDTH


def _vgg11(sizes: Sizes, norm: str, _: object) -> Layers:
    layers, before = _vgg(sizes, tables.VGG_STAGES, norm)
    width = tables.VGG_WIDTH
    return [*layers, linear(before, width), IDLE, linear(width, width)], width


def _vgg13(sizes: Sizes, norm: str, _: object) -> Layers:
    return _vgg(sizes, tables.VGG13_STAGES, norm)


def _vgg(sizes: Sizes, stages: tuple[tuple[int, ...], ...], norm: str) -> Layers:
    layers, before = [], image_channels(sizes)
    for stage in stages:
        for channels in stage:
            layers += [conv(before, channels, 3), normed(norm, channels), IDLE]
            before = channels
        layers.append(IDLE)
    return [*layers, IDLE, IDLE], before


def _convnet7(sizes: Sizes, norm: str, _: object) -> Layers:
    layers, before = [], image_channels(sizes)
    for channels, _stride in tables.CONVNET7:
        layers += [conv(before, channels, 3), normed(norm, channels), IDLE]
        before = channels
    return layers, before * tables.CONVNET7_GRID**2


def _lenet(network: str, first: int, second: int, *, is_linear: bool) -> Network:
    def layers_of(sizes: Sizes, norm: str, _: object) -> Layers:
        layers: list[Arrays] = []
        (height, width), before = tables.lenet_grid(sizes, network), image_channels(sizes)
        for channels in tables.LENET_CHANNELS:
            layers += [conv(before, channels, 5), normed(norm, channels), IDLE, IDLE]
            before = channels
        layers += [IDLE, linear(before * height * width, first), normed(norm, first), IDLE]
        return [*layers, linear(first, second), normed("none" if is_linear else norm, second)], second

    return layers_of


def _alexnet(sizes: Sizes, norm: str, _: object) -> Layers:
    check_size(sizes, "alexnet", smallest=tables.ALEXNET_SMALLEST)
    layers, before = [], image_channels(sizes)
    for channels, size, _stride, _padding, is_pooled in tables.ALEXNET:
        layers += [conv(before, channels, size), normed(norm, channels), IDLE, *([IDLE] if is_pooled else [])]
        before = channels
    wide, width = tables.ALEXNET_WIDTH, before * tables.ALEXNET_GRID**2
    return [*layers, IDLE, IDLE, IDLE, linear(width, wide), IDLE, IDLE, linear(wide, wide)], wide


def _basic(before: int, channels: int, stride: int, norm: str) -> Arrays:
    return {
        **_conv_norm(1, before, channels, 3, norm),
        **_conv_norm(2, channels, channels, 3, norm),
        **_shortcut(before, channels, stride, norm),
    }


def _squeezed(before: int, channels: int, stride: int, norm: str) -> Arrays:
    narrow = channels // tables.SQUEEZED
    return {
        **_conv_norm(1, before, channels, 3, norm),
        **_conv_norm(2, channels, channels, 3, norm),
        **_named("gate.squeeze.", linear(channels, narrow)),
        **_named("gate.excite.", linear(narrow, channels)),
        **_shortcut(before, channels, stride, norm),
    }


def _bottleneck(before: int, channels: int, stride: int, norm: str) -> Arrays:
    wide = tables.WIDENED * channels
    return {
        **_conv_norm(1, before, channels, 1, norm),
        **_conv_norm(2, channels, channels, 3, norm),
        **_conv_norm(3, channels, wide, 1, norm),
        **_shortcut(before, wide, stride, norm),
    }


def _conv_norm(place: int, before: int, channels: int, size: int, norm: str) -> Arrays:
    return {
        **_named(f"conv{place}.", conv(before, channels, size, has_bias=False)),
        **_named(f"norm{place}.", normed(norm, channels)),
    }


def _shortcut(before: int, channels: int, stride: int, norm: str) -> Arrays:
    if stride == 1 and before == channels:
        return IDLE
    return _named("shortcut.", _in_a_row([conv(before, channels, 1, has_bias=False), normed(norm, channels)]))


def _residual(
    block: Callable[[int, int, int, str], Arrays],
    blocks: tuple[int, ...],
    *,
    is_imagenet: bool = False,
    widened: int = 1,
) -> Network:
    def layers_of(sizes: Sizes, norm: str, _: object) -> Layers:
        before, _stride = tables.RESNET_STAGES[0]
        stem = conv(image_channels(sizes), before, 7 if is_imagenet else 3, has_bias=False)
        layers = [stem, normed(norm, before), IDLE, *([IDLE] if is_imagenet else [])]
        for (channels, first_stride), count in zip(tables.RESNET_STAGES, blocks, strict=True):
            for place in range(count):
                layers.append(block(before, channels, first_stride if place == 0 else 1, norm))
                before = widened * channels
        return layers, before

    return layers_of


def _mobilenet(sizes: Sizes, norm: str, _: object) -> Layers:
    before = tables.STEM
    layers = _separable(image_channels(sizes), before, 3, norm)
    for channels, _stride in tables.V1_BLOCKS:
        layers += [
            *_separable(before, before, 3, norm, groups=before),
            *_separable(before, channels, 1, norm),
        ]
        before = channels
    return layers, before


def _mobilenet_v2(*, is_relu: bool) -> Network:
    def layers_of(sizes: Sizes, norm: str, _: object) -> Layers:
        before = tables.STEM
        layers = _separable(image_channels(sizes), before, 3, norm)
        for expansion, channels, blocks, _stride in tables.V2_STAGES:
            for _block in range(blocks):
                inner = before * expansion
                is_expanded = expansion > 1 or is_relu
                inside = _separable(before, inner, 1, norm) if is_expanded else []
                inside += _separable(inner, inner, 3, norm, groups=inner)
                inside += _separable(inner, channels, 1, norm)
                layers.append(_named("layers.", _in_a_row(inside)))
                before = channels
        return [*layers, *_separable(before, tables.V2_WIDTH, 1, norm)], tables.V2_WIDTH

    return layers_of


def _separable(before: int, channels: int, size: int, norm: str, *, groups: int = 1) -> list[Arrays]:
    return [conv(before, channels, size, groups=groups, has_bias=False), normed(norm, channels), IDLE]


Network: TypeAlias = Callable[[Sizes, str, tuple[int, ...]], Layers]

NETWORKS: Mapping[str, Network] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "lenet": _lenet("lenet", 120, 84, is_linear=False),
    "lenet_linear": _lenet("lenet_linear", 256, 128, is_linear=True),
    "alexnet": _alexnet,
    "vgg11": _vgg11,
    "vgg13": _vgg13,
    "convnet7": _convnet7,
    "resnet18": _residual(_basic, tables.BASIC_BLOCKS),
    "resnet18_imagenet": _residual(_basic, tables.BASIC_BLOCKS, is_imagenet=True),
    "resnet50": _residual(_bottleneck, tables.BOTTLENECKS, widened=tables.WIDENED),
    "resnet50_imagenet": _residual(_bottleneck, tables.BOTTLENECKS, is_imagenet=True, widened=tables.WIDENED),
    "senet18": _residual(_squeezed, tables.BASIC_BLOCKS),
    "mobilenet": _mobilenet,
    "mobilenet_v2": _mobilenet_v2(is_relu=False),
    "mobilenet_v2_relu": _mobilenet_v2(is_relu=True),
}

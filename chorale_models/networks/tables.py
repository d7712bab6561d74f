"""Sizes that Chorale's networks and their declared shapes (shapes.py) are both made of; without torch.

Sources: those of the networks, in plain.py, residual.py and separable.py.
"""

from __future__ import annotations

from chorale_models.model import Sizes
from crypto.errors import ConfigError

CNN_CHANNELS = (32, 64)
CNN_GRID = 4  # the maps are pooled to 4x4, so any image size fits
CNN_WIDTH = 128
VGG_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # a pool ends each stage
VGG_WIDTH = 512
VGG13_STAGES = ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512))
CONVNET7 = ((32, 1), (64, 2), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2))  # channels and stride
CONVNET7_GRID = 2  # 32x32 ends so
LENET_CHANNELS = (6, 16)
LENET_SMALLEST = 16  # height or width: below it nothing is left of the maps
# channels, size, stride, padding, and whether a pooling follows
ALEXNET = (
    (64, 11, 4, 2, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, True),
)
ALEXNET_GRID, ALEXNET_WIDTH, ALEXNET_SMALLEST = 6, 4096, 63

RESNET_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels and stride of the stage's first block
BASIC_BLOCKS = (2, 2, 2, 2)  # by stage
BOTTLENECKS = (3, 4, 6, 3)
WIDENED = 4  # output channels of a bottleneck for each inner one
SQUEEZED = 16  # channels for each one between squeeze and excitation

STEM = 32  # channels
# channels and stride of a block
V1_BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *(((512, 1),) * 5),
    (1024, 2),
    (1024, 1),
)
V2_WIDTH = 1280
# expansion, channels, blocks, stride of the first block
V2_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def image_channels(sizes: Sizes) -> int:
    """Raises ConfigError for samples that are no images."""
    if len(sizes.input_shape) != 3:
        raise ConfigError(f"input_shape: expected (channels, height, width), got {sizes.input_shape}")
    return sizes.input_shape[0]


def check_size(sizes: Sizes, network: str, *, smallest: int) -> None:
    """Raises ConfigError for samples that are no images, or too small ones."""
    image_channels(sizes)
    if min(sizes.input_shape[1:]) < smallest:
        raise ConfigError(
            f"model.name: {network} takes images of {smallest}x{smallest} and more, the job's input_shape is "
            f"{list(sizes.input_shape)}"
        )


def lenet_grid(sizes: Sizes, network: str) -> tuple[int, int]:
    """Height and width of the maps that its convolutions end in. Raises ConfigError as `check_size`."""
    check_size(sizes, network, smallest=LENET_SMALLEST)
    height, width = sizes.input_shape[1:]
    for _ in LENET_CHANNELS:
        height, width = (height - 4) // 2, (width - 4) // 2
    return height, width

"""A U-Net of MONAI that marks shapes in noisy images."""

import numpy as np
from monai.data import create_test_image_2d
from monai.networks.nets import UNet

from chorale_models import Data, model


@model()
def unet(sizes, *, channels=(8, 16, 32)):
    strides = (2,) * (len(channels) - 1)
    return UNet(2, sizes.input_shape[0], sizes.classes, channels=channels, strides=strides, norm="instance")


class Shapes:
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, place):
        drawn = {"num_objs": 3, "rad_max": 8, "rad_min": 3, "num_seg_classes": 1, "noise_max": 0.3}
        random = np.random.RandomState(place)
        image, mask = create_test_image_2d(32, 32, random_state=random, **drawn)
        return np.float32(image[None]), np.int64(mask)


def shapes(sizes, *, samples=300):
    return Data(train=Shapes(samples))

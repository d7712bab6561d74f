"""The one place that imports torchvision.

Its compiled extension needs CUDA libraries. With a CPU build of torch it does not load, and
`import torchvision` then fails because it registers fake kernels for operators that nothing has
defined. Their schemas are all it misses: models, transforms and datasets need no compiled code.
Where the extension loads, this module does nothing but import.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

SCHEMAS = {
    "torchvision::nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "torchvision::qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def _load() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # half-imported
    for name, schema in SCHEMAS.items():
        torch.library.define(name, schema)
    return importlib.import_module("torchvision")


torchvision = _load()
v2 = importlib.import_module("torchvision.transforms.v2")
tv_tensors = importlib.import_module("torchvision.tv_tensors")

"""What all of the training leans on: samples as tensors, what a part is given, passes through a model."""

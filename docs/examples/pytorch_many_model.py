"""Trains any of torchvision's classification and segmentation models on random images, with LMS or without.

    python pytorch_many_model.py resnet50 --batch 64 --limit 4G --csv steps.csv

Prints a table: what tensors needed, what was resident at most, bytes moved, and seconds. README.md beside this file says
more. Needs torchvision 0.14 or later; downloads no weights.
"""

from __future__ import annotations

import gc
import inspect
import sys

import many_model
import torch
from torch.nn import functional

CLASSES = 1000
SIZE_ARGUMENT = {"vit": "image_size", "maxvit": "input_size"}  # of models that are made for one size of image


def models():
    """torchvision.models."""
    try:
        import torchvision
    except RuntimeError as error:
        # A torchvision that is built for CUDA cannot load its operators beside a CPU build of torch, and then fails to
        # describe two of them. No model here uses them; once they are declared, the import succeeds.
        if "torchvision::" not in str(error):
            raise
        models.library = torch.library.Library("torchvision", "DEF")  # kept: the operators live as long as it does
        for name in ("nms", "qnms"):
            models.library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision.models


def build(name, image_size):
    builder = models().get_model_builder(name)
    accepted = inspect.signature(builder).parameters
    options = {"weights": None, "num_classes": CLASSES}
    if "weights_backbone" in accepted:
        options["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = True
    family = name.split("_")[0]
    if family in SIZE_ARGUMENT:
        options[SIZE_ARGUMENT[family]] = (image_size, image_size) if family == "maxvit" else image_size
    return builder(**options)


def known(name):
    """Whether the model takes images and answers with scores; those for detection, optical flow and video do not."""
    found = models()
    return name in (*found.list_models(found), *found.list_models(found.segmentation))


def scores(output):
    """The scores for every class; some models give more than that."""
    if isinstance(output, dict):
        return output["out"]
    return output[0] if isinstance(output, tuple) else output


def train(name, batch, log, options):
    """Takes `options.steps` steps, calls `log()` after each, and returns the last loss."""
    gc.collect()  # the model before this one
    torch.manual_seed(0)
    model = build(name, options.image_size).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images = torch.randn(batch, 3, options.image_size, options.image_size, device=options.device)
    labels = None
    for _ in range(options.steps):
        optimizer.zero_grad()
        output = scores(model(images))
        if labels is None:
            labels = torch.randint(CLASSES, (batch, *output.shape[2:]), device=options.device)
        loss = functional.cross_entropy(output, labels)
        loss.backward()
        optimizer.step()
        value = loss.item()  # waits for the device
        del output, loss
        log()
    return value


def main():
    parser = many_model.parser("Trains torchvision models on random images, with LMS or without.", ("cpu", "cuda"))
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    options.device = options.device or ("cuda" if gpu else "cpu")
    lms = getattr(torch, "lms", None)
    many_model.check(parser, options, lms, gpu)
    if unknown := [name for name in options.models if not known(name)]:
        parser.error(f"no classification or segmentation model of torchvision: {', '.join(unknown)}")
    if options.no_lms:
        lms = None
    else:
        many_model.enable(lms, options.device, options)
    error = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    return many_model.run(
        options, lms, options.device, lambda name, batch, log: train(name, batch, log, options), error
    )


if __name__ == "__main__":
    sys.exit(main())

"""Trains one Keras model on the first GPU, with stock devices or under a limit, and answers with losses and a digest.

Usage: train_keras.py MODEL STEPS SCALE FOLDER [LIMIT [POLICY]]. FOLDER is that of the package lmsbuild; LIMIT in bytes, 0
is the default limit, under which everything fits.
"""

from __future__ import annotations

import sys

from answer import answer

name, steps, scale, folder, *rest = sys.argv[1:]
sys.path.insert(0, folder)

import tensorflow as tf

from lmsbuild.programs import keras_models

keras_models.deterministic()
if rest:
    limit, policy = int(rest[0]), rest[1] if len(rest) > 1 else "iteration"
    tf.lms.enable("gpu:0", limit=limit or None, policy=policy)
trainer = keras_models.make(name, scale=float(scale))
losses = [trainer.step().hex() for _ in range(int(steps))]
statistics = dict(tf.lms.stats("gpu:0")) if rest else {}
answer({"losses": losses, "digest": trainer.digest(), "statistics": statistics})

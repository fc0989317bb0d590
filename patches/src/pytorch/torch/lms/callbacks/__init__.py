"""LMS's statistics of every step, in the log of a training library: a module for each, which imports that library.

    from torch.lms.callbacks.transformers import LmsCallback
    from torch.lms.callbacks.lightning import LmsCallback
    from torch.lms.callbacks.pytorch_lightning import LmsCallback

For Keras there is ``tf.lms.callbacks.LmsCallback``.
"""

"""LMS as the environment asks for it, without a change of the program.

``TF_LMS_ENABLED=1`` is ``tf.config.experimental.set_lms_enabled(True)``, and ``TF_LMS_LIMIT=8GiB`` is ``set_lms_limit``, when TensorFlow is
imported, which is before any GPU has devices. ``TF_LMS_SHARE=1`` makes that limit a budget that processes share, and
``TF_LMS_SHARE=job42,weight=2,minimum=1GiB`` a named one, with the terms of :class:`tf.lms.Share`.
"""

from __future__ import annotations

import os

from . import _library, _share, config

_VALUES = {"": None, "0": False, "false": False, "1": True, "true": True}


def switch_on() -> None:
    """Does what the variables say.

    :raises ValueError: one is not written as it has to be; the sentence begins with its name.
    """
    limit, enabled = os.environ.get("TF_LMS_LIMIT", ""), os.environ.get("TF_LMS_ENABLED", "").lower()
    if enabled not in _VALUES:
        raise ValueError(f"TF_LMS_ENABLED: expected 1 or 0, got {enabled!r}")
    try:
        share = _share.read(os.environ.get("TF_LMS_SHARE", ""))
        terms = None if share is None else _share.terms(share, None)
    except ValueError as error:
        raise ValueError(f"TF_LMS_SHARE: {error}") from None
    _library.load().lms_tensorflow_set_share(terms)
    if limit:
        try:
            config.set_lms_limit(int(limit) if limit.isdigit() else limit)
        except ValueError as error:
            raise ValueError(f"TF_LMS_LIMIT: {error}") from None
    if _VALUES[enabled] is not None:
        config.set_lms_enabled(_VALUES[enabled])

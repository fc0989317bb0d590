"""Where things are: the patches that travel with the tool, and the cache."""

from __future__ import annotations

import os
from pathlib import Path

from lmsbuild.errors import BadSetting

_PROGRAMS = Path(__file__).resolve().parent / "programs"


def patches_folder() -> Path:
    """The folder `patches`: inside the installed package, or beside `tools` in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "patches"
    return installed if installed.is_dir() else package.parent.parent / "patches"


def in_checkout() -> bool:
    """Whether the tool runs from a checkout, whose patches can be made anew, or from an installed package."""
    return not (Path(__file__).resolve().parent / "patches").is_dir()


def pager_folder() -> Path:
    """The folder with the pager's sources."""
    return patches_folder() / "src" / "pager"


def recipes_folder() -> Path:
    """The folder `recipes`, likewise."""
    package = Path(__file__).resolve().parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent.parent / "recipes"


def cache_folder() -> Path:
    """Where base wheels are kept: $LMSBUILD_CACHE, or a folder in the user's cache. Raises BadSetting."""
    from platformdirs import user_cache_path  # not above: a script that only asks for the patches needs no package

    if chosen := os.environ.get("LMSBUILD_CACHE"):
        return Path(chosen)
    try:
        found = user_cache_path("lmsbuild")
    except RuntimeError:  # of newer releases, where older ones leave the "~"
        found = Path("~")
    if not found.is_absolute():
        raise BadSetting(
            "there is no home folder, where the cache would be: name a folder in LMSBUILD_CACHE, or set HOME"
        )
    return found


def models_file(framework: str = "pytorch") -> Path:
    """The models that `lmsbuild try` trains."""
    return _PROGRAMS / {"pytorch": "models.py", "tensorflow": "keras_models.py"}[framework]


def trial_program() -> Path:
    """The program that `lmsbuild try` runs in the throw-away environment."""
    return _PROGRAMS / "training.py"


def trial_backend(framework: str) -> Path:
    """What of that program is the framework's own."""
    return _PROGRAMS / f"training_{framework}.py"

"""Asks pip for the versions of packages, of all in one process, since pip takes longer to load than to ask.

Usage: python -m lmsbuild.programs.pip_versions PACKAGE... Prints what `pip index versions` prints of each, and a zero byte after it.
Ends as pip does with the first that it does not find.
"""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    for package in sys.argv[1:]:
        sys.argv = ["pip", "--disable-pip-version-check", "--no-input", "index", "versions", package]
        try:
            runpy.run_module("pip", run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
        print(end="\0", flush=True)

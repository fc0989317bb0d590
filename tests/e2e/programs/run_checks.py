"""run_checks.py [MODULE [NAME...]]: runs the named checks of a module, or all, each in a forked process, two at a time.

Without arguments it runs those that standard input names, a line with MODULE NAME for each. The framework, which
LMS_TEST_FRAMEWORK names, is imported once, before the forks, and so is what most checks of a module of TRAIN would import
next. LMS is never enabled in the parent, and the modules never imported, which may start CUDA: every check starts from scratch,
and one that crashes takes no other with it. Prints one JSON object a line: module, check, status, text, seconds.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy  # noqa: F401  imported here so that no check has to pay for it
from check_names import TRAIN, check_names
from skip import Skip

SKIPPED = 77
LIMIT_SECONDS = 480  # after which it hangs; compilers take long where much else runs
AT_ONCE = 2


def checks(module: str) -> list[str]:
    """The names of all checks of a module."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, f"there is no module {module}"
    return check_names(Path(spec.origin))


def start(module: str, name: str, output: IO[bytes]) -> int:
    child = os.fork()
    if child == 0:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        signal.alarm(LIMIT_SECONDS)
        status = 1
        try:
            getattr(importlib.import_module(module), name)()
            status = 0
        except Skip as skip:
            print(skip)
            status = SKIPPED
        finally:
            if status == 1:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return child


def main(waiting: list[tuple[str, str]]) -> None:
    running: dict[int, tuple[tuple[str, str], float, IO[bytes]]] = {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            check, output = waiting.pop(0), tempfile.TemporaryFile()  # noqa: SIM115  closed below
            running[start(*check, output)] = (check, time.monotonic(), output)
        child, status = os.wait()
        (module, name), begin, output = running.pop(child)
        output.seek(0)
        text = output.read().decode(errors="replace")
        outcome = {
            "module": module,
            "check": name,
            "status": {0: "passed", SKIPPED << 8: "skipped"}.get(status, f"wait status {status}"),
            "text": text[-6000:],
            "seconds": round(time.monotonic() - begin, 2),
        }
        output.close()
        print(json.dumps(outcome), flush=True)


def named(module: str = "", *names: str) -> list[tuple[str, str]]:
    if module:
        return [(module, name) for name in names or checks(module)]
    words = [line.split() for line in sys.stdin]
    return [(module, name) for module, name in words]


if __name__ == "__main__":
    importlib.import_module(os.environ.get("LMS_TEST_FRAMEWORK", "torch"))
    found = named(*sys.argv[1:])
    if any(module in TRAIN for module, _ in found):
        with suppress(ImportError):  # old releases have it not
            importlib.import_module("torch._dynamo")
    main(found)

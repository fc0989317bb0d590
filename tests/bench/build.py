"""Times `lmsbuild pytorch TAG` with an empty cache and with a warm one.

    python tests/bench/build.py [TAG]

Prints seconds of wall clock, each in folders of its own. An empty cache means that pip has to get the base wheel; how long
that takes is up to the network and to pip's own cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def build(tag: str, cache: Path, output: Path) -> float:
    environment = {**os.environ, "LMSBUILD_CACHE": str(cache)}
    start = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "lmsbuild", "pytorch", tag, "--output", str(output)],
        env=environment,
        check=True,
        capture_output=True,
    )
    return time.monotonic() - start


def main() -> None:
    tag = sys.argv[1] if len(sys.argv) > 1 else "v2.13.0"
    with tempfile.TemporaryDirectory() as name:
        cache = Path(name) / "cache"
        print("| cache | seconds |")
        print("| --- | --- |")
        for state in ("empty", "warm"):
            print(f"| {state} | {build(tag, cache, Path(name) / state):.0f} |")


if __name__ == "__main__":
    main()

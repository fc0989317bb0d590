"""Asks channels of conda packages; a program of its own, which `lmsbuild conda` starts.

Usage: python -m lmsbuild.programs.conda_channels SUBDIR REQUIREMENTS [CHANNEL...]. REQUIREMENTS is a JSON object with the lists
`depends` and `constrains`, or null to look only whether the channels can be read. Prints what is wrong; nothing when nothing is.

py-rattler (0.28 was tried) crashed one process in six that ended after it had asked a channel, while its threads still ran. So this
ends without waiting for them, and what asks for it goes on in any case.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import rattler
from rattler.exceptions import GatewayError, SolverError

NOARCH = "noarch"
PATIENCE_S = 60


async def ask(subdir: str, requirements: dict[str, list[str]] | None, channels: list[rattler.Channel]) -> str:
    """What is wrong, in one line; empty when nothing is."""
    try:
        if requirements is None:
            platforms = [rattler.Platform(subdir), rattler.Platform(NOARCH)]
            await asyncio.wait_for(rattler.Gateway().names(channels, platforms), PATIENCE_S)
        else:
            await rattler.solve(
                channels,
                requirements["depends"],
                platforms=[subdir, NOARCH],  # type: ignore[list-item]
                constraints=requirements["constrains"],
                virtual_packages=rattler.VirtualPackage.detect(rattler.VirtualPackageOverrides.from_env()),
            )
    except asyncio.TimeoutError:
        return f"no answer within {PATIENCE_S} s"
    except GatewayError as error:
        return str(error).strip().splitlines()[-1].removeprefix("Caused by: ")
    except SolverError as error:
        return " ".join(str(error).split())
    return ""


if __name__ == "__main__":
    print(asyncio.run(ask(sys.argv[1], json.loads(sys.argv[2]), [rattler.Channel(name) for name in sys.argv[3:]])))
    sys.stdout.flush()
    os._exit(0)

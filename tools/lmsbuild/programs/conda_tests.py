"""Runs the tests inside a conda package, in environments of their own; a program of its own, which `lmsbuild conda` starts.

Usage: python -m lmsbuild.programs.conda_tests PACKAGE [CHANNEL...]. Prints what the tests said, and ends with 0, with FAILED, with
NO_ENVIRONMENT when what the package requires could not be installed, or with NO_TESTS.
"""

from __future__ import annotations

import sys

FAILED = 1
NO_ENVIRONMENT = 3
NO_TESTS = 4
_SAID = "failed to setup test environment"  # as rattler-build puts it


def main(package: str, *channels: str) -> int:
    from rattler_build import Package, RattlerBuildError  # not where only the codes are wanted

    try:
        results = Package.from_file(package).run_tests(channel=list(channels))
    except RattlerBuildError as error:
        print(error)
        return NO_ENVIRONMENT if _SAID in str(error) else FAILED
    for result in results:
        print(*result.output, sep="\n")
    failed = [result for result in results if not result.success]
    if any(_SAID in line for result in failed for line in result.output):
        return NO_ENVIRONMENT
    if failed:
        return FAILED
    return 0 if results else NO_TESTS


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

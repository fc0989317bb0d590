"""`lmsbuild`, and `python -m lmsbuild`."""

import os
import sys
from contextlib import suppress
from types import TracebackType

_REPORT = "error: this is a fault of lmsbuild: please report it, with the lines above and the command that you gave\n"


def main() -> None:
    sys.excepthook = _ask_for_report
    try:
        from lmsbuild import errors
        from lmsbuild.ending import refusals, streams

        streams.guard()
        with refusals.loading():
            from lmsbuild import cli  # a second and more, in which the user may give up
    except KeyboardInterrupt:
        _give_up("interrupted", 130)
    except (OSError, MemoryError) as error:  # even for the modules that would say more about it
        _give_up(f"the system refused to load lmsbuild: {error}; raise its limits, see `ulimit -a`", 74)
    except errors.Failure as error:
        _give_up(str(error), error.exit_code)
    cli.main()


def _give_up(message: str, code: int) -> None:
    """Not by `report`, which may not be there."""
    with suppress(OSError):
        os.write(2, f"error: {message}\n".encode())
    sys.exit(code)


def _ask_for_report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.__excepthook__(kind, error, trace)
    sys.stderr.write(_REPORT)


if __name__ == "__main__":
    main()

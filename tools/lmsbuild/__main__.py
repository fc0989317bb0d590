"""`lmsbuild`, and `python -m lmsbuild`."""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType, TracebackType
from typing import NoReturn

_REPORT = "error: this is a fault of lmsbuild: please report it, with the lines above and the command that you gave\n"


def main() -> None:
    sys.excepthook = _ask_for_report
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _interrupted)
    try:
        from lmsbuild import errors
        from lmsbuild.ending import refusals, streams

        streams.guard()
        with refusals.refused():
            from lmsbuild import cli
    except (OSError, MemoryError) as error:  # even for the modules that would say more about it
        _give_up(f"the system refused to load lmsbuild: {error}; raise its limits, see `ulimit -a`", 74)
    except errors.Failure as error:
        _give_up(str(error), error.exit_code)
    cli.main()


def _give_up(message: str, code: int) -> NoReturn:
    _say(message)
    sys.exit(code)


def _say(message: str) -> None:
    """Not by `report`, which may not be there."""
    with suppress(OSError):
        os.write(2, f"error: {message}\n".encode())


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Until `signals.install`. There is nothing to clean up yet, and modules that are being loaded may turn an exception into another."""
    _say("interrupted" if number == signal.SIGINT else f"interrupted by {signal.Signals(number).name}")
    os._exit(128 + number)


def _ask_for_report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.__excepthook__(kind, error, trace)
    sys.stderr.write(_REPORT)


if __name__ == "__main__":
    main()

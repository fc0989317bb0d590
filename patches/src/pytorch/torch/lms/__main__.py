"""``python -m torch.lms COMMAND``."""

from __future__ import annotations

import argparse

from . import _run, _top

_COMMANDS = {"run": _run, "top": _top}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m torch.lms", description="Large Model Support.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module in _COMMANDS.items():
        command = commands.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(main=module.main, parser=command)
    options = parser.parse_args()
    options.main(options)


if __name__ == "__main__":
    main()

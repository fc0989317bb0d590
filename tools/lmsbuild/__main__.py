"""`lmsbuild`, and `python -m lmsbuild`."""

import sys


def main() -> None:
    try:
        from lmsbuild import cli  # a second and more, in which the user may give up
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()

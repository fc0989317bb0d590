"""`python -m lmsbuild`."""

from lmsbuild.cli import main

if __name__ == "__main__":
    main()

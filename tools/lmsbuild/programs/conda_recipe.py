"""Runs a recipe whose variants.yaml has one value for each variable; a program of its own, which `lmsbuild conda` starts.

Usage: python -m lmsbuild.programs.conda_recipe RECIPE OUTPUT SUBDIR LEVEL THREADS native|skip [CHANNEL...]. Prints what
the build said, and as the last line the package's file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rattler_build import (
    PlatformConfig,
    RattlerBuildError,
    RenderConfig,
    Stage0Recipe,
    ToolConfiguration,
    VariantConfig,
)


def main(recipe: Path, output: Path, subdir: str, level: str, threads: str, test: str, *channels: str) -> None:
    variants = VariantConfig.from_file(recipe / "variants.yaml")
    (rendered,) = Stage0Recipe.from_file(recipe / "recipe.yaml").render(
        variants, RenderConfig(platform=PlatformConfig(target_platform=subdir))
    )
    tool = ToolConfiguration(compression_threads=int(threads), test_strategy="native" if test == "native" else "skip")
    result = rendered.run_build(
        tool,
        output_dir=output,
        channels=list(channels),
        package_format=f"conda:{level}",
        no_build_id=True,
    )
    for line in result.log:
        print(line)
    (package,) = result.packages
    print(package)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
    except RattlerBuildError as error:
        sys.exit(str(error))

"""Runs a recipe whose variants.yaml has one value for each variable; a program of its own, which `lmsbuild conda` starts.

Usage: python -m lmsbuild.programs.conda_recipe RECIPE OUTPUT SUBDIR FORMAT. Prints what the build said, and as the last line the
packages' files, as JSON. The tests that need an environment do not run.
"""

from __future__ import annotations

import json
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


def main(recipe: Path, output: Path, subdir: str, package_format: str) -> None:
    variants = VariantConfig.from_file(recipe / "variants.yaml")
    platform = RenderConfig(platform=PlatformConfig(target_platform=subdir))
    packages: list[str] = []
    for rendered in Stage0Recipe.from_file(recipe / "recipe.yaml").render(variants, platform):
        result = rendered.run_build(
            ToolConfiguration(test_strategy="skip"),
            output_dir=output,
            channels=[],
            package_format=package_format,
            no_build_id=True,
        )
        for line in result.log:
            print(line)
        packages += map(str, result.packages)
    print(json.dumps(packages))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
    except RattlerBuildError as error:
        sys.exit(str(error))

"""Runs a recipe whose variants.yaml has one value for each variable; a program of its own, which `lmsbuild conda` starts.

Usage: python -m lmsbuild.programs.conda_recipe RECIPE SUBDIR [OUTPUT FORMAT]. Prints what the build said, and as the last line, as
JSON, the packages' files; without OUTPUT nothing is built, and it has the name of each file and what that package would require.
The tests that need an environment do not run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rattler_build import (
    PlatformConfig,
    RattlerBuildError,
    RenderConfig,
    RenderedVariant,
    Stage0Recipe,
    ToolConfiguration,
    VariantConfig,
)


def render(recipe: Path, subdir: str) -> list[RenderedVariant]:
    variants = VariantConfig.from_file(recipe / "variants.yaml")
    platform = RenderConfig(platform=PlatformConfig(target_platform=subdir))
    return Stage0Recipe.from_file(recipe / "recipe.yaml").render(variants, platform)


def plan(recipe: Path, subdir: str) -> None:
    rendered = [each.recipe for each in render(recipe, subdir)]
    exact = {
        each.package.name: f"{each.package.name} =={each.package.version} {each.build.string}" for each in rendered
    }

    def requirement(need: Any) -> str:
        return exact[need["pin_subpackage"]["name"]] if isinstance(need, dict) else str(need)

    files = [f"{each.package.name}-{each.package.version}-{each.build.string}.conda" for each in rendered]
    needs = [[requirement(need) for need in each.requirements.run] for each in rendered]
    print(json.dumps(list(zip(files, needs, strict=True))))


def build(recipe: Path, subdir: str, output: Path, package_format: str) -> None:
    packages: list[str] = []
    for rendered in render(recipe, subdir):
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


def main(recipe: str, subdir: str, output: str = "", package_format: str = "") -> None:
    if output:
        build(Path(recipe), subdir, Path(output), package_format)
    else:
        plan(Path(recipe), subdir)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except RattlerBuildError as error:
        sys.exit(str(error))

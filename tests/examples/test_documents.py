"""What docs/ says of TensorFlow is what there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from example_programs import ROOT

PACKAGE = ROOT / "patches" / "src" / "tensorflow" / "tensorflow" / "python" / "lms"


def public(module: Path) -> list[str]:
    """The names in a module's ``__all__``."""
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise AssertionError(f"{module} has no __all__")


def test_the_statistics_functions() -> None:
    text = (ROOT / "docs" / "statistics.md").read_text()
    section = text.split("\n## In tf.experimental\n")[1].split("\n## ")[0]
    assert sorted(re.findall(r"`(get_\w+)(?:\(numa_node\))?`", section)) == sorted(public(PACKAGE / "statistics.py"))


def test_the_functions_of_tf_lms() -> None:
    text = (ROOT / "docs" / "tensorflow.md").read_text()
    assert not [
        name for name in public(PACKAGE / "__init__.py") if f"`{name}`" not in text and f"tf.lms.{name}(" not in text
    ]


PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/examples/README.md"]


@pytest.mark.parametrize("name", [*PAGES, *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_links(name: str) -> None:
    document = ROOT / name
    for target, section in re.findall(r"\]\((?!https:)([^)#]*)(?:#([^)]*))?\)", document.read_text()):
        path = document.parent / target if target else document
        assert path.exists(), target
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE) if section else []
        anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert not section or section in anchors, (target, section)

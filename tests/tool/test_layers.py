"""The packages of tools/lmsbuild: their arrows point downward only, and each stays small enough to read as one."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from lmsbuild import paths

TOOL = Path(paths.__file__).parent

# From the lowest to the highest. Each module of the root, or package, imports only from lines above its own.
LAYERS = (
    ("errors",),
    ("ending", "paths", "programs", "report"),
    ("command", "elf", "lock", "source_date", "workspace"),
    ("git_command", "published"),
    ("wheel",),
    ("catalogue", "index"),
    ("fetch",),
    ("source",),
    ("patch", "trial"),
    ("sbom",),
    ("graft",),
    ("conda", "full", "tag"),
    ("bases", "channel", "doctor"),
    ("conda_commands", "matrix"),
    ("cli",),
    ("__main__",),
)
MOST = 12  # modules in one folder


@cache
def _modules() -> dict[str, ast.Module]:
    """The tool's modules, parsed, by dotted name below lmsbuild; a package's __init__ has the package's name."""
    found = {}
    for path in sorted(TOOL.rglob("*.py")):
        name = ".".join(path.relative_to(TOOL).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        if name:
            found[name] = ast.parse(path.read_text(), path.name)
    return found


def _imports(tree: ast.Module) -> Iterator[str]:
    """The dotted names that a module imports, at its top or in a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _uses(name: str) -> set[str]:
    """The modules of the tool that this one imports."""
    found = set()
    for imported in _imports(_modules()[name]):
        top, _, rest = imported.partition(".")
        if top == "lmsbuild":
            found.add(rest if rest in _modules() else rest.rpartition(".")[0])
    return found


def _unit(name: str) -> str:
    return name.partition(".")[0]


def test_every_module_has_a_layer() -> None:
    assert sorted({_unit(name) for name in _modules()}) == sorted(unit for layer in LAYERS for unit in layer)


def test_arrows_point_downward() -> None:
    layer_of = {unit: number for number, layer in enumerate(LAYERS) for unit in layer}
    others = {(name, used) for name in _modules() for used in _uses(name) if _unit(used) != _unit(name)}
    assert not {(name, used) for name, used in others if layer_of[_unit(used)] >= layer_of[_unit(name)]}


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Within a package, too: graphlib raises CycleError, which names them."""
    list(TopologicalSorter({name: _uses(name) for name in _modules()}).static_order())


def test_folders_are_small() -> None:
    folders = Counter(path.parent for path in TOOL.rglob("*.py") if path.name != "__init__.py")
    assert not {folder: modules for folder, modules in folders.items() if modules > MOST}


def test_no_module_is_called_as_a_library_that_the_tool_uses() -> None:
    libraries = {_unit(imported) for tree in _modules().values() for imported in _imports(tree)} - {"lmsbuild"}
    own = {part for name in _modules() for part in name.split(".") if part != "__main__"}
    # Those in programs/ import each other, by the names under which `lmsbuild try` copies them.
    programs = {name.rpartition(".")[2] for name in _modules() if _unit(name) == "programs"}
    assert not own & (libraries - programs | sys.stdlib_module_names)


def test_programs_do_without_the_tool() -> None:
    assert not {name: _uses(name) for name in _modules() if _unit(name) == "programs" and _uses(name)}

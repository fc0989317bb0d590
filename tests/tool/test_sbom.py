"""The SBOM in a patched wheel: what the wheel was made of, and by what."""

from __future__ import annotations

import getpass
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import sboms
import synthetic
from lmsbuild.errors import DamagedWheel
from lmsbuild.graft import graft
from lmsbuild.sbom import document, in_wheel, sbom
from lmsbuild.wheel.wheel import WheelFile, file_sha256
from synthetic import Member
from workshop import Workshop

PAGE = Path(__file__).resolve().parents[2] / "docs/pip.md"
WHEEL = synthetic.wheel_name("2.13.0+cpu.lms1")
EPOCH = 1700000000


def test_a_graft_says_what_it_was_made_of(workshop: Workshop, stand_in: dict[str, Member]) -> None:
    """An SBOM that the base has from another tool stays; one of an earlier graft does not."""
    folder = f"{synthetic.DIST_INFO}/sboms"
    there = {f"{folder}/auditwheel.cdx.json": Member(b"{}"), f"{synthetic.DIST_INFO}/{sbom.MEMBER}": Member(b"older")}
    synthetic.write_wheel(workshop.base, {**stand_in, **there})
    synthetic.write_sources(workshop.patches, {workshop.base.name: file_sha256(workshop.base)})
    made = graft.build(workshop.options())
    with WheelFile(made) as wheel:
        assert wheel.verify(lambda name: None, lambda done: None) == {}
        assert {f"{wheel.dist_info}/{name}" for name in ("sboms/auditwheel.cdx.json", sbom.MEMBER)} <= set(
            wheel.record()
        )
    found = sboms.of_wheel(made)
    assert (found.whole["name"], found.whole["version"]) == ("torch", "2.13.0+cpu.lms1")
    stated = {"file": made.name, "python": synthetic.TARGET.python, "machine": synthetic.TARGET.machine}
    assert sboms.properties(found.whole) == stated
    assert found.document["metadata"]["timestamp"] == "2026-07-03T22:22:46+00:00"  # as the base's own
    parts = found.parts()
    assert set(parts) == {"torch", "large-model-support", "C++ compiler", "lmsbuild"}
    base = parts["torch"]
    assert (base["version"], sboms.sha256(base)) == ("2.13.0+cpu", file_sha256(workshop.base))
    assert base["purl"] == f"pkg:pypi/torch@2.13.0%2Bcpu?file_name={workshop.base.name.replace('+', '%2B')}"
    assert sboms.properties(base) == {"file": workshop.base.name, "in-catalogue": "true"}
    lms, patch = parts["large-model-support"], workshop.patch
    assert (lms["version"], sboms.sha256(lms)) == ("lms1", patch.digest)
    files = {name: sboms.sha256(row) for name, row in found.parts(lms).items()}
    assert files == {path.name: file_sha256(path) for path in patch.files}
    assert parts["lmsbuild"]["version"] == metadata.version("lmsbuild")
    said = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
    assert parts["C++ compiler"]["version"] == said.splitlines()[0]
    assert sboms.properties(parts["C++ compiler"])["target"].startswith(synthetic.TARGET.machine)
    assert {name for name, row in parts.items() if row.get("scope") == "excluded"} == {"C++ compiler", "lmsbuild"}
    for private in (str(workshop.folder), str(Path.home()), f'"{platform.node()}', f'"{getpass.getuser()}'):
        assert private not in str(found.document)


def test_the_program_of_the_page_reads_it(tmp_path: Path) -> None:
    """As it is in an environment: unpacked, with the RECORD that names it."""
    member = f"torch-2.13.0+cpu.lms1.dist-info/{sbom.MEMBER}"
    text = sbom.of_wheel(WHEEL, synthetic.TARGET, [sbom.wheel(synthetic.wheel_name(), "a" * 64)], EPOCH)
    (tmp_path / member).parent.mkdir(parents=True)
    (tmp_path / member).write_bytes(text)
    (tmp_path / member).parents[1].joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n"
    )
    (tmp_path / member).parents[1].joinpath("RECORD").write_text(f"{member},,\n")
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"torch 2.13.0+cpu {'a' * 64}\n"


def test_a_base_wheel_that_is_not_in_the_catalogue() -> None:
    part = sbom.base_wheel(synthetic.wheel_name(), "a" * 64, {}, [])
    assert (part.sha256, part.properties["in-catalogue"]) == ("a" * 64, "false")


def test_the_same_gives_the_same_bytes_and_something_else_another_number() -> None:
    def text(digest: str, seconds: int) -> bytes:
        return sbom.of_wheel(WHEEL, synthetic.TARGET, [sbom.wheel(synthetic.wheel_name(), digest)], seconds)

    texts = [text("a" * 64, EPOCH), text("b" * 64, EPOCH), text("a" * 64, EPOCH + 1)]
    assert texts[0] == text("a" * 64, EPOCH)
    assert len({sboms.Sbom(each).document["serialNumber"] for each in texts}) == 3


def test_a_wheel_that_another_program_built_gets_one(workshop: Workshop) -> None:
    target = workshop.folder / "dist" / workshop.base.name
    target.parent.mkdir()
    commit = "1" * 40
    source = sbom.checkout("pytorch", "v2.13.0", "https://example.org/pytorch", commit)
    in_wheel.add(workshop.base, target, synthetic.TARGET, [source])
    with WheelFile(workshop.base) as before, WheelFile(target) as after:
        assert after.verify(lambda name: None, lambda done: None) == {}
        assert set(after.members) - set(before.members) == {f"{before.dist_info}/{sbom.MEMBER}"}
        for name, info in before.members.items():
            assert after.members[name].external_attr == info.external_attr
            assert name.endswith("/RECORD") or after.read(name) == before.read(name)
    (part,) = sboms.of_wheel(target).parts().values()
    assert (part["name"], part["version"], sboms.properties(part)) == ("pytorch", "v2.13.0", {"commit": commit})
    assert part["purl"].endswith(f"vcs_url=git%2Bhttps://example.org/pytorch%40{commit}")


def test_a_compilers_folders_are_left_out(tmp_path: Path) -> None:
    """clang says where its source was, when that was a clone of a clone."""
    compiler = tmp_path / "clang++"
    compiler.write_text('#!/bin/sh\necho "clang version 18.0.0git (/home/me/llvm 1a2b)"\necho "InstalledDir: /opt"\n')
    compiler.chmod(0o755)
    part = next(part for part in sbom.tools([str(compiler)]) if part.name == "C++ compiler")
    assert part.version == "clang version 18.0.0git (… 1a2b)"


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"bomFormat": "CycloneDX", "specVersion": "1.6"}'])
def test_what_is_no_sbom_is_refused(text: bytes) -> None:
    part = sbom.wheel(WHEEL, "a" * 64)
    with pytest.raises(
        DamagedWheel, match=r"the SBOM in torch-2\.13\.0\+cpu\.lms1-.* cannot be read.*build the wheel again"
    ):
        document.wrap(part, part, text, EPOCH)

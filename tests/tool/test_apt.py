"""What is unpacked of Debian's packages."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lmsbuild.fetch import apt

CONTROL = "Package: small\nVersion: 1\nArchitecture: all\nMaintainer: a <a@localhost>\nDescription: small\n"


def test_a_package_that_is_swapped_while_it_is_unpacked_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stand-in for dpkg-deb, which does that before it starts the real one."""
    real = shutil.which("dpkg-deb")
    if real is None:
        pytest.skip("needs dpkg-deb, which only Debian and its like have")
    package, tree, programs = tmp_path / "small.deb", tmp_path / "small", tmp_path / "programs"
    for folder in (tree / "DEBIAN", tree / "usr", programs):
        folder.mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(CONTROL)
    (tree / "usr/file").write_text("contents")
    subprocess.run([real, "--build", tree, package], check=True, capture_output=True)
    sha256 = hashlib.sha256(package.read_bytes()).hexdigest()
    (programs / "dpkg-deb").write_text(f"#!/bin/sh\nrm -f '{package}'\necho other > '{package}'\nexec {real} \"$@\"\n")
    (programs / "dpkg-deb").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    apt._unpack([package], tmp_path / "made")
    assert package.read_text() == "other\n"
    assert (tmp_path / "made" / apt.LISTED).read_text() == f"small 1 all {sha256}\n"
    assert (tmp_path / "made" / apt.TREE / "usr/file").read_text() == "contents"

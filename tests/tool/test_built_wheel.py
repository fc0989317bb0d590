"""The real patched wheel."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

import grafted
from lmsbuild import paths
from lmsbuild.catalogue import catalogue
from lmsbuild.fetch import download
from lmsbuild.graft import graft
from lmsbuild.patch import series
from lmsbuild.wheel.target import target_for
from lmsbuild.wheel.wheel import WheelFile, record_hash

PATCHES = paths.patches_folder()
TAG = catalogue.find_tag(PATCHES, "v2.13.0", "pytorch")


@pytest.fixture(scope="module")
def base_wheel(built_wheel: Path) -> Path:
    """The official wheel that `built_wheel` was made from, out of the cache."""
    return download.fetch(TAG, target_for(None), paths.cache_folder())


@pytest.fixture(scope="module")
def libraries(base_wheel: Path) -> set[str]:
    """What is added: also the library for CUDA, where pip is configured to give a CUDA wheel."""
    with WheelFile(base_wheel) as wheel:
        return {library.path for library in graft.fitting_libraries(series.read_series(PATCHES, TAG).graft, wheel)}


def test_every_file_is_what_its_record_says(built_wheel: Path) -> None:
    with WheelFile(built_wheel) as wheel:
        wheel.verify(lambda name: None, lambda done: None)


def test_it_differs_from_the_official_wheel_only_where_it_should(
    built_wheel: Path, base_wheel: Path, libraries: set[str]
) -> None:
    grafted.check_differences(built_wheel, base_wheel, TAG, PATCHES, libraries)


def test_the_platform_tag_is_true(built_wheel: Path, libraries: set[str], tmp_path: Path) -> None:
    grafted.check_platform(built_wheel, libraries, tmp_path)


def test_the_libraries_name_no_folder_of_the_build(built_wheel: Path, libraries: set[str]) -> None:
    grafted.check_names_no_folder(built_wheel, libraries)


def test_the_libraries_are_hardened(built_wheel: Path, libraries: set[str], tmp_path: Path) -> None:
    grafted.check_hardened(built_wheel, libraries, tmp_path)


def test_pip_is_content(lms_python: Path) -> None:
    done = subprocess.run([lms_python, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "No broken requirements found.\n")


def test_it_imports_and_says_its_version(lms_python: Path, built_wheel: Path) -> None:
    program = "import torch; print(torch.__version__, torch.lms.is_enabled('cpu'), torch.cuda.get_enabled_lms())"
    done = subprocess.run([lms_python, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [grafted.stated_version(built_wheel), "False", "False"]


def test_importing_torch_does_not_load_what_was_added(lms_python: Path) -> None:
    program = "import sys, torch; print('torch.lms' in sys.modules, 'libtorch_lms' in open('/proc/self/maps').read())"
    done = subprocess.run([lms_python, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_packages_that_require_this_version_still_resolve(lms_python: Path, tmp_path: Path) -> None:
    requires = tmp_path / "needs_torch-1.0-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: needs-torch\nVersion: 1.0\nRequires-Dist: torch==2.13.0\n"
    files = {
        "needs_torch.py": b"import torch\n",
        "needs_torch-1.0.dist-info/METADATA": metadata.encode(),
        "needs_torch-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [[name, record_hash(data), str(len(data))] for name, data in files.items()]
    record = io.StringIO()
    csv.writer(record).writerows([*rows, ["needs_torch-1.0.dist-info/RECORD", "", ""]])
    with zipfile.ZipFile(requires, "w") as archive:
        for name, data in {**files, "needs_torch-1.0.dist-info/RECORD": record.getvalue().encode()}.items():
            archive.writestr(name, data)
    words = [lms_python, "-m", "pip", "install", "--no-index", "--dry-run", "--no-input", requires]
    environment = {key: value for key, value in os.environ.items() if key != "PIP_FIND_LINKS"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "Would install needs-torch-1.0" in done.stdout
    assert "Requirement already satisfied: torch==2.13.0" in done.stdout

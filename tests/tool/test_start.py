"""How little the tool loads and reads for what has to answer at once: counted, as a clock would also measure the machine."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lmsbuild import cli
from lmsbuild.catalogue import catalogue

# Each takes longer to load than `lmsbuild --help` may.
HEAVY = {
    *("asyncio", "auditwheel", "cyclonedx", "distributed", "elftools", "filelock", "google", "matplotlib"),
    *("packageurl", "packaging", "rattler", "requests", "rich", "urllib3", "zstandard"),
}


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["list"], ["matrix"], ["conda", "pytorch", "--help"]], ids=" ".join
)
def test_a_short_answer_loads_nothing_heavy(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "lmsbuild", *words], capture_output=True, text=True, check=True
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"lmsbuild.cli", "click"} < loaded
    assert not {name for name in loaded if name.partition(".")[0] in HEAVY}


@pytest.mark.parametrize("word", ["list", "matrix"])
def test_no_table_is_read_twice(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[str] = Counter()
    read_file = catalogue.read_file

    def counted(path: Path) -> bytes:
        read[path.parent.name + "/" + path.name] += 1
        return read_file(path)

    monkeypatch.setattr(catalogue, "read_file", counted)
    cli.cli.main([word], standalone_mode=False)
    assert {"pytorch/tags.toml", "tensorflow/tags.toml", "pytorch/debian.toml"} <= read.keys()
    assert set(read.values()) == {1}

"""A stand-in for the framework's repository, made of the stand-in wheel's files, and a catalogue that knows its commit."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import synthetic
from lmsbuild.catalogue import catalogue
from workshop import Workshop

NAME = "github.com/pytorch/pytorch"
TAG = "v2.13.0"
FILES = {
    "torch/__init__.py": synthetic.INIT,
    "torch/cuda/__init__.py": synthetic.CUDA_INIT,
    "aten/src/ATen/ATen.h": b"#pragma once\n",
    "caffe2/large.txt": b"not needed to apply the patch\n" * 1000,
    "version.txt": b"2.13.0a0\n",
}
SOURCE = f"""repository = "{NAME}"
folders = ["aten/src/ATen", "torch", "test"]
"""


def git(tree: Path, *words: str | Path, environment: dict[str, str] | None = None) -> str:
    identity = ["-c", "user.name=Someone", "-c", "user.email=someone@localhost", "-c", "protocol.file.allow=always"]
    variables = {**os.environ, **(environment or {})}
    arguments = ["git", "-C", tree, *identity, *words]
    return subprocess.run(arguments, capture_output=True, text=True, check=True, env=variables).stdout


def commit(tree: Path, message: str, files: dict[str, bytes]) -> str:
    """Adds a commit with these files to the repository `tree`, which is made when it is missing; returns its name."""
    for name, data in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)
    if not (tree / ".git").exists():
        git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", message)
    return git(tree, "rev-parse", "HEAD").strip()


@dataclass(frozen=True)
class Upstream:
    """A workshop with an upstream repository, whose tag is not its newest commit, and which has a submodule."""

    workshop: Workshop
    repository: Path
    commit: str

    @property
    def tag(self) -> catalogue.Tag:
        return catalogue.find_tag(self.workshop.patches, TAG)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which git, asked for GitHub, goes to the stand-in; that is how users reach mirrors."""
        return {"GIT_CONFIG_GLOBAL": str(self.workshop.folder / "gitconfig"), "GIT_CONFIG_NOSYSTEM": "1"}

    @property
    def offline(self) -> dict[str, str]:
        """Variables with which git finds no host that it is asked for."""
        return {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "https_proxy": "http://nowhere.invalid:1"}

    def run(self, *words: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return self.workshop.run(*words, environment=environment or self.environment)


def make(workshop: Workshop, files: dict[str, bytes] | None = None) -> Upstream:
    """Makes the repository beside the workshop's other folders, and tells the catalogue its commit."""
    submodule, repository = workshop.folder / "submodule", workshop.folder / "upstream"
    commit(submodule, "submodule", {"part.h": b"#pragma once\n"})
    repository.mkdir()
    git(repository, "init", "-q")
    git(repository, "submodule", "-q", "add", submodule, "third_party/part")
    git(repository, "config", "--file", ".gitmodules", "submodule.third_party/part.url", f"https://{NAME}-part")
    tagged = commit(repository, "release", {**FILES, **(files or {})})
    git(repository, "tag", "-a", TAG, "-m", TAG)
    commit(repository, "later", {"version.txt": b"2.14.0a0\n"})
    for served in (repository, submodule):
        git(served, "config", "uploadpack.allowFilter", "true")
    redirected = {f"{NAME}-part": submodule, NAME: repository}  # of several that fit, git takes the longest
    sections = [f'[url "file://{path}"]\n\tinsteadOf = https://{name}\n' for name, path in redirected.items()]
    (workshop.folder / "gitconfig").write_text('[protocol "file"]\n\tallow = always\n' + "".join(sections))
    (workshop.patches / "catalogue/pytorch/source.toml").write_text(SOURCE)
    synthetic.edit_file(
        workshop.patches / "catalogue/pytorch/tags.toml", lambda text: text.replace(workshop.tag.commit, tagged)
    )
    return Upstream(workshop, repository, tagged)

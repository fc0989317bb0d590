"""A registry with a framework beside PyTorch that is published as two packages, and a catalogue to add its tag to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import synthetic
import synthetic_tensorflow as tensorflow
from lmsbuild.catalogue import catalogue
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.tag import add_tag
from synthetic import Member
from workshop import Workshop, found_only_in

NAME = "v2.14.1"
CUDA_NAME = synthetic.wheel_name(tensorflow.VERSION, package="tensorflow")
CPU_NAME = synthetic.wheel_name(tensorflow.VERSION, package="tensorflow_cpu")
STUB_NAME = synthetic.wheel_name(tensorflow.VERSION, package="tensorflow", platform="manylinux_2_28_other")


@dataclass(frozen=True)
class Shop:
    """A workshop with a second framework, whose wheels pip finds in a folder."""

    workshop: Workshop
    folder: Path
    framework: bytes  # its library

    @property
    def patches(self) -> Path:
        return self.workshop.patches

    @property
    def tag(self) -> Tag:
        return catalogue.find_tag(self.patches, NAME, "tensorflow")

    def publish(self, name: str, files: dict[str, Member]) -> Path:
        return synthetic.write_wheel(self.folder / name, files)

    def members(self, package: str, cuda: str = "") -> dict[str, Member]:
        return tensorflow.members(self.framework, package, cuda)

    def add(self, **changes: object) -> Tag:
        options = add_tag.Options(
            framework="tensorflow",
            names=(NAME,),
            target=synthetic.TARGET,
            interpreter=None,
            patches=self.patches,
            cache=self.workshop.cache,
            base_wheel=None,
            update=False,
        )
        assert len(list(add_tag.add(replace(options, **changes)))) == 1  # type: ignore[arg-type]
        return self.tag

    def is_the_only_one(self, patch: pytest.MonkeyPatch) -> None:
        """Has pip find its wheels, and none anywhere else."""
        for name, value in found_only_in(self.folder).items():
            patch.setenv(name, value)

    def fill(self) -> None:
        """Publishes the wheels, and writes the sources of the patch."""
        self.folder.mkdir()
        tensorflow.write_sources(self.patches)
        self.publish(CPU_NAME, self.members("tensorflow-cpu"))
        self.publish(CUDA_NAME, self.members("tensorflow", "11.8"))
        self.publish(STUB_NAME, tensorflow.requires_another("tensorflow"))

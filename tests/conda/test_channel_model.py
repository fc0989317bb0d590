"""A channel against a model of it: whatever is published, copied in or interrupted, in any order."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from lmsbuild import paths
from lmsbuild.channel import audit, channel
from lmsbuild.errors import PackageConflict
from stand_ins import SUBDIR, make
from test_channel import add_exports

RECIPES = paths.recipes_folder()
EXAMPLES, STEPS = 12, 12


@dataclass(frozen=True)
class Package:
    """A package that a test may publish."""

    path: Path
    place: str  # in a channel
    sha256: str

    @property
    def identity(self) -> str:
        return self.place.removesuffix(".tar.bz2").removesuffix(".conda")


class Stopped(BaseException):
    """Ends a publishing where it is."""


class Channel(RuleBasedStateMachine):
    """`known` is what the index has to have, `found` what was copied in since: hashes by place."""

    def __init__(self, packages: list[Package]) -> None:
        super().__init__()
        self.packages = packages
        self.folder = Path(tempfile.mkdtemp()) / "channel"
        self.known: dict[str, str] = {}
        self.found: dict[str, str] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder.parent)

    def pick(self, data: st.DataObject, least: int = 0) -> list[Package]:
        """Some of the packages; at least one while there is no channel, since none is made of nothing."""
        least = max(least, not any(path.is_dir() for path in self.folder.glob("*")))
        return data.draw(st.lists(st.sampled_from(self.packages), min_size=least, max_size=4))

    def after(self, given: list[Package]) -> dict[str, str] | None:
        """What publishing these gives; None where one of them is there with other contents or in the other format."""
        table = {**self.known, **self.found}
        for package in given:
            others = {place: sha256 for place, sha256 in table.items() if identity(place) == package.identity}
            if others and others != {package.place: package.sha256}:
                return None
            table[package.place] = package.sha256
        return table

    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        given = self.pick(data)
        expected = self.after(given)
        if expected is None:
            with pytest.raises(PackageConflict):
                channel.publish(self.folder, [package.path for package in given])
            return
        done = channel.publish(self.folder, [package.path for package in given])
        assert set(done.added) == set(expected) - set(self.known) and done.known == len(self.known)
        self.known, self.found = expected, {}

    @rule(data=st.data(), renames=st.integers(0, 12))
    def is_stopped(self, data: st.DataObject, renames: int) -> None:
        given = self.pick(data, least=1)
        expected = self.after(given)
        replace, left = os.replace, renames

        def stop(source: Path, target: Path) -> None:
            nonlocal left
            if not left:
                raise Stopped
            left -= 1
            replace(source, target)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "replace", stop)
            with contextlib.suppress(PackageConflict, Stopped):
                channel.publish(self.folder, [package.path for package in given])
        before, self.known = self.known, self.indexed()
        there = self.files()
        assert before.items() <= self.known.items() <= there.items()
        assert there.items() <= ({**before, **self.found} if expected is None else expected).items()
        self.found = {place: sha256 for place, sha256 in there.items() if place not in self.known}

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def is_copied_in(self, data: st.DataObject) -> None:
        """Only what the channel takes: the other is refused until it is gone, which test_channel.py looks at."""
        (package,) = data.draw(st.lists(st.sampled_from(self.packages), min_size=1, max_size=1))
        folder = (self.folder / package.place).parent
        if folder.exists() and not any(identity(place) == package.identity for place in {**self.known, **self.found}):
            shutil.copyfile(package.path, self.folder / package.place)
            self.found[package.place] = package.sha256

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def gets_another_date(self, data: st.DataObject) -> None:
        os.utime(self.folder / data.draw(st.sampled_from(sorted(self.known))), ns=(1, 1))

    @invariant()
    def is_valid(self) -> None:
        assert self.indexed() == self.known
        assert self.files() == {**self.known, **self.found}
        begun = any(path.is_dir() and not (path / "repodata.json").exists() for path in self.folder.glob("*"))
        if self.known and not self.found and not begun:
            assert audit.check(self.folder, RECIPES) == len(self.known)

    def indexed(self) -> dict[str, str]:
        return {
            f"{index.parent.name}/{name}": record["sha256"]
            for index in self.folder.glob("*/repodata.json")
            for name, record in channel.read_index(index.parent).items()
        }

    def files(self) -> dict[str, str]:
        paths = [path for suffix in ("conda", "tar.bz2") for path in self.folder.glob(f"*/[!.]*.{suffix}")]
        return {
            path.relative_to(self.folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths
        }


def identity(place: str) -> str:
    return Package(Path(), place, "").identity


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Package]:
    """Two of a name with other contents, and one of them in both formats."""
    folder = tmp_path_factory.mktemp("packages")
    made = []
    for subdir in (SUBDIR, "noarch"):
        for number, text in enumerate((b"one\n", b"other\n")):
            for build in ("0", "1"):
                place = folder / subdir / str(number)
                place.mkdir(parents=True, exist_ok=True)
                made.append((subdir, make(place, build=build, subdir=subdir, files={"share/text": text})))
    (folder / "old").mkdir()
    copy = shutil.copy(made[0][1], folder / "old")
    made.append((SUBDIR, add_exports(Path(copy), {}, ".tar.bz2")))
    return [
        Package(path, f"{subdir}/{path.name}", hashlib.sha256(path.read_bytes()).hexdigest()) for subdir, path in made
    ]


def test_a_channel_is_like_its_model(packages: list[Package]) -> None:
    run_state_machine_as_test(
        lambda: Channel(packages), settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS)
    )

"""A git checkout that others made, in which git runs no program that its settings name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import command, git_command
from lmsbuild.errors import NotACheckout, PatchMismatch, UnsafeSource
from lmsbuild.source import foreign


@dataclass(frozen=True)
class Checkout:
    """One whose settings were looked at: `git` runs nothing in it but itself."""

    root: Path
    git_folder: Path
    settings: Mapping[str, str]

    def git(self, *words: str | Path) -> command.Finished:
        return git_command.run_as_user(self.root, *words, settings=self.settings)

    @property
    def head(self) -> str:
        """The commit that is checked out."""
        return self.git("rev-parse", "HEAD").text.strip()

    def changed(self) -> list[str]:
        """The files that are not as the commit has them, in the folder or in the index; submodules are left out."""
        words = ("status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=all", "--no-renames")
        return [entry[3:] for entry in self.git("--no-optional-locks", *words).text.split("\0") if entry]

    def blobs(self, names: Iterable[str]) -> dict[str, str]:
        """Git's hashes of those of these files that the commit has, by path."""
        listed = self.git("--literal-pathspecs", "ls-tree", "-z", "HEAD", "--", *names).text
        entries = (entry.partition("\t") for entry in listed.split("\0") if entry)
        return {path: described.split()[2] for described, _, path in entries}

    def written(self, names: Sequence[str]) -> dict[str, str]:
        """Git's hashes of those of these files that are in the folder, as git would commit them, by path.

        Raises PatchMismatch when it cannot read one.
        """
        there = [name for name in names if (self.root / name).is_file()]
        done = self.git("hash-object", "--", *there)
        if done.code:
            raise PatchMismatch(f"git cannot read the files in {self.root}: {done.error_text.strip()}")
        return dict(zip(there, done.text.split(), strict=True))

    def text(self, name: str) -> str | None:
        """What the commit has in a file, or None."""
        found = self.git("cat-file", "blob", f"HEAD:{name}")
        return None if found.code else found.text


def open_checkout(tree: Path) -> Checkout:
    """Raises NotACheckout, OtherOwner, UnsafeSource or MissingProgram."""
    repository = foreign.find(tree)
    if repository is None or repository.top != tree or repository.git.samefile(tree):
        raise NotACheckout(
            f"{tree} is no git checkout: `lmsbuild source` makes one, or clone the framework and check out the tag"
        )
    foreign.check_files(repository)
    foreign.check_owner(repository)
    listed = git_command.run_as_user(tree, "config", "--null", "--name-only", "--list")
    if listed.code:
        raise NotACheckout(f"git cannot read the settings of {tree}: {listed.error_text.strip()}")
    found = Checkout(tree, repository.git, foreign.disarmed(listed.output))
    top = found.git("rev-parse", "--show-toplevel").text.rstrip("\n")
    if found.git("rev-parse", "--verify", "--quiet", "HEAD^{commit}").code or not top:
        raise NotACheckout(f"{tree} has no commit checked out: check out the tag first")
    if not Path(top).samefile(tree):
        raise UnsafeSource(f"the settings of {tree} have git write to {top}: remove core.worktree from them")
    foreign.check_attributes(tree, found.git("ls-files", "-z").text.split("\0"))
    return found

"""Hostile inputs by class: each class makes a sound input once, and cases of it that are changed at random."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

import mutate
import raw_packages
import synthetic
from lmsbuild import cli
from lmsbuild.catalogue import catalogue
from lmsbuild.channel import channel
from lmsbuild.patch import generate
from lmsbuild.wheel.wheel import WheelFile, file_sha256
from running import Case
from stand_ins import SUBDIR


@dataclass(frozen=True)
class Seeds:
    """Sound inputs, made once, which no case writes to."""

    folder: Path
    members: Mapping[str, synthetic.Member]  # of the wheel

    @property
    def wheel(self) -> Path:
        return self.folder / synthetic.wheel_name()

    @property
    def patches(self) -> Path:
        return self.folder / "patches"

    @property
    def channel(self) -> Path:
        return self.folder / "channel"

    @property
    def package(self) -> Path:
        return self.folder / f"{raw_packages.NAME}.conda"

    @property
    def tree(self) -> Path:
        return self.folder / "tree"


def prepare(folder: Path) -> Seeds:
    seeds = Seeds(folder, synthetic.members(synthetic.libraries(folder)))
    synthetic.write_wheel(seeds.wheel, seeds.members)
    synthetic.write_sources(seeds.patches)
    tag = catalogue.find_tag(seeds.patches, "v2.13.0")
    with WheelFile(seeds.wheel) as wheel:
        originals = {name: wheel.read(name) for name in tag.blobs}
    generate.write(generate.series(seeds.patches, "pytorch") | generate.hook(seeds.patches, tag, originals))
    seeds.package.write_bytes(raw_packages.build([raw_packages.file("lib/one"), raw_packages.link("lib/two", "one")]))
    channel.publish(seeds.channel, [seeds.package])
    for name, data in {"torch/__init__.py": synthetic.INIT, "torch/cuda/__init__.py": synthetic.CUDA_INIT}.items():
        (seeds.tree / name).parent.mkdir(parents=True, exist_ok=True)
        (seeds.tree / name).write_bytes(data)
    git = ["git", "-C", seeds.tree, "-c", "user.name=Someone", "-c", "user.email=someone@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"], ["tag", "v2.13.0"]):
        subprocess.run([*git, *words], check=True)
    return seeds


def wheel(seeds: Seeds, random_: random.Random, folder: Path) -> Case:
    """Archives that are changed, and archives of changed members whose RECORD is right."""
    given = folder / seeds.wheel.name
    if random_.random() < 0.5:
        given.write_bytes(mutate.changed_zip(seeds.wheel.read_bytes(), random_))
    else:
        members = dict(seeds.members)
        name = random_.choice(list(members))
        way = random_.random()
        if way < 0.6:
            members[name] = replace(members[name], data=mutate.changed(members[name].data, random_))
        elif way < 0.8:
            members[random_.choice(mutate.NAMES)] = members[name]
        else:
            del members[name]
        try:
            synthetic.write_wheel(given, members)
        except (ValueError, OSError):  # of names that zipfile does not write
            given.write_bytes(mutate.changed(seeds.wheel.read_bytes(), random_))
    if random_.random() < 0.7:
        return Case([["index", "made", given.name]], accept=lambda: _read_wheels(Path("made")))
    words = ["pytorch", "v2.13.0", "--base", given.name, "--output", "made"]
    return Case([words], patches=seeds.patches, accept=lambda: _read_wheels(Path("made")))


def _read_wheels(folder: Path) -> None:
    """As an installer does: every member is whole, and below the folder that it is unpacked to."""
    (made,) = folder.rglob("*.whl")
    with zipfile.ZipFile(made) as archive:
        assert archive.testzip() is None
        archive.extractall("unpacked")
    for name in ("METADATA", "WHEEL", "RECORD"):
        (found,) = Path("unpacked").glob(f"*.dist-info/{name}")
        found.read_text()
    with WheelFile(made) as checked:
        checked.verify(lambda name: None, lambda done: None)


def package(seeds: Seeds, random_: random.Random, folder: Path) -> Case:
    """A conda package, into a channel: after it clients read that."""
    given = folder / seeds.package.name
    commands = [["channel", "publish", "made", given.name], ["channel", "check", "made"]]
    case = Case(commands, accept=lambda: _read_channel(Path("made"), ["raw"]))
    way = random_.random()
    if way < 0.3:
        given.write_bytes(mutate.changed_zip(seeds.package.read_bytes(), random_))
    else:
        rows = [raw_packages.file("lib/one"), raw_packages.link("lib/two", "one")]
        link = {"noarch": {"type": "python", "entry_points": ["one = one:main"]}, "package_metadata_version": 1}
        exports, about = {"weak": ["raw >=1"]}, {"license": "MIT"}
        described = raw_packages.tables(rows, run_exports=exports, about=about, link=link)
        if way < 0.6:
            tars = [raw_packages.tar(each) for each in (raw_packages.info(described), rows)]
            chosen = random_.randrange(2)
            tars[chosen] = mutate.changed_tar(tars[chosen], random_)
            given.write_bytes(raw_packages.conda(raw_packages.parts(*tars)))
            return case
        if way < 0.85:
            changed = mutate.changed_value(described, random_)
            described = changed if isinstance(changed, dict) else {}
        else:
            rows.append(random_.choice((raw_packages.file, _link))(random_.choice(mutate.NAMES)))
        try:
            given.write_bytes(raw_packages.build(rows, described))
        except (ValueError, TypeError, UnicodeError, OSError, AttributeError):  # of what tarfile and json do not write
            given.write_bytes(mutate.changed(seeds.package.read_bytes(), random_))
    return case


def _link(name: str) -> raw_packages.Row:
    return raw_packages.link("lib/three", name)


# What a client finds in a channel, as JSON. In an interpreter of its own, since the threads of py-rattler do not outlive a fork;
# which ends at once, since they may crash one that ends (0.28 was tried).
CLIENT = """import asyncio, json, os, sys
from rattler import Gateway, Platform

found = asyncio.run(Gateway().query([sys.argv[1]], [Platform(sys.argv[2])], ["raw"], recursive=False))
print(json.dumps([record.name.normalized for records in found for record in records]), flush=True)
os._exit(0)
"""


def _read_channel(folder: Path, names: Sequence[str] = ()) -> None:
    """As a client does; it finds `names`, or if none are given those that there are."""
    words = [sys.executable, "-c", CLIENT, f"file://{folder.absolute()}", SUBDIR]
    found = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
    assert found == list(names) if names else found in ([], ["raw"]), found


def published(seeds: Seeds, random_: random.Random, folder: Path) -> Case:
    """A channel one of whose files is changed: after a repair it is sound."""
    made = folder / "made"
    shutil.copytree(seeds.channel, made)
    chosen = random_.choice(sorted(path for path in made.rglob("*") if path.is_file()))

    def change(data: bytes, random_: random.Random) -> bytes:
        if chosen.suffix != ".json" or random_.random() < 0.3:
            return mutate.changed(data, random_)
        return json.dumps(mutate.changed_value(json.loads(data), random_)).encode()

    mutate.change_file(chosen, random_, change)
    if random_.random() < 0.5:
        return Case([["channel", "check", "made"], ["channel", "publish", "made"]])
    commands = [["channel", "repair", "made"], ["channel", "check", "made"], ["channel", "publish", "made"]]
    return Case(commands, accept=lambda: _read_channel(made))


def sources(seeds: Seeds, random_: random.Random, folder: Path) -> Case:
    """What the catalogue, the series or a patch says is changed, or is something else."""
    patches = folder / "patches"
    shutil.copytree(seeds.patches, patches)
    chosen = random_.choice(sorted(path for path in patches.rglob("*") if path.is_file() and not path.is_symlink()))

    def change(data: bytes, random_: random.Random) -> bytes:
        is_toml = chosen.suffix == ".toml"
        return mutate.changed_toml(data.decode(), random_) if is_toml else mutate.changed(data, random_)

    mutate.change_file(chosen, random_, change)
    words = random_.choice(
        (["list"], ["generate", "--check"], ["patches", "--output", "made"], ["matrix"], ["patch", "v2.13.0", "tree"])
    )
    if words[0] == "patch":
        shutil.copytree(seeds.tree, folder / "tree")
    return Case([words], patches=patches)


def checkout(seeds: Seeds, random_: random.Random, folder: Path) -> Case:
    """A checkout or clone whose repository is changed, or says what to run: nothing of it runs."""
    tree, mark = folder / "tree", folder / "code-ran"
    shutil.copytree(seeds.tree, tree)
    way = random_.random()
    if way < 0.3:
        text = random_.choice(mutate.CONFIG).format(mark=mark, folder=tree / "hooks")
        with (tree / ".git" / "config").open("a") as config:
            config.write(text)
        (tree / ".git" / "info" / "attributes").write_text("* filter=x diff=x merge=x\n")
        for hooks in (tree / ".git" / "hooks", tree / "hooks"):
            hooks.mkdir(exist_ok=True)
            for name in ("post-checkout", "pre-commit", "applypatch-msg", "post-applypatch", "reference-transaction"):
                (hooks / name).write_text(f"#!/bin/sh\ntouch {mark}\n")
                (hooks / name).chmod(0o755)
    elif way < 0.6:
        _commit_what_git_does_not_write(tree, mark, random_)
    else:
        mutate.change_file(
            random_.choice(sorted(path for path in (tree / ".git").rglob("*") if path.is_file())), random_
        )
    words = random_.choice((["patch", "v2.13.0", "tree"], ["source", "v2.13.0", "made", "--source", "tree"]))
    if words[0] == "source" and random_.random() < 0.5:
        words = [*words, "--whole"]
    return Case([words], patches=seeds.patches, forbidden=mark)


GITMODULES = '[submodule "{name}"]\n\tpath = {path}\n\turl = {url}\n\tupdate = !touch {mark}\n'
# Where a submodule is said to be, and from where.
PATHS = ("sub", ".git", "../sub", "/sub", "torch", "-u", "sub/../../x", ".git/hooks", "s" * 300)
ADDRESSES = (
    "ext::sh -c 'touch {mark}'",
    "fd::17",
    "-u./x",
    "--upload-pack=touch {mark}",
    "file:///dev/zero",
    "../tree",
    "x",
    "https://localhost:1/x.git",
    "ssh://-oProxyCommand=touch {mark}/x",
    "http://localhost:1",
    "a\u0001b",
    "/proc/self",
)
# Of a tree's entry; some may be in no tree, or are not checked out.
MODES = ("100644", "100755", "120000", "40000", "160000", "0", "777777")
ENTRIES = (
    "",
    "\udcff",
    "n" * 300,
    "sub",
    ".git",
    "..",
    ".",
    ".GIT",
    "git~1",
    "a/b",
    "../../code-ran",
    ".gitmodules",
    "torch",
)


def _commit_what_git_does_not_write(tree: Path, mark: Path, random_: random.Random) -> None:
    """A tag of a tree with submodules that lead elsewhere, or of objects that `git add` would refuse, or of one that is gone."""

    def git(*words: str, data: bytes = b"") -> str:
        made = ["git", "-C", tree, "-c", "user.name=Someone", "-c", "user.email=someone@localhost", *words]
        return subprocess.run(made, input=data, check=True, capture_output=True).stdout.decode().strip()

    def written(kind: str, data: bytes) -> str:
        return git("hash-object", "-t", kind, "-w", "--literally", "--stdin", data=data)

    base = git("rev-parse", "HEAD")
    url = random_.choice(ADDRESSES).format(mark=mark)
    text = GITMODULES.format(name=random_.choice(PATHS), path=random_.choice(PATHS), url=url, mark=mark)
    blob, mode, name = written("blob", text.encode()), random_.choice(MODES), random_.choice(ENTRIES)
    entries = {
        b".gitmodules": (b"100644", blob),
        b"sub": (b"160000", base),
        b"torch": (b"40000", git("rev-parse", "HEAD:torch")),
    }
    if random_.random() < 0.6:
        entries[name.encode(errors="surrogateescape")] = mode.encode(), random_.choice((blob, base, "0" * 40, "1" * 40))
    rows = [mode + b" " + name + b"\0" + bytes.fromhex(oid) for name, (mode, oid) in entries.items()]
    if random_.random() < 0.8:
        rows.sort(key=lambda row: row.partition(b" ")[2])
    made = f"tree {written('tree', b''.join(rows))}\nparent {base}\n"
    person = random_.choice(("A <a@localhost> 1 +0000", "A <a 99999999999999999999 +99999", "", "\0 <> -1 x"))
    commit = written("commit", f"{made}author {person}\ncommitter {person}\n\nmessage\n".encode())
    (tree / ".git/refs/tags").mkdir(parents=True, exist_ok=True)
    (tree / ".git/refs/tags/v2.13.0").write_text(f"{commit}\n")
    if random_.random() < 0.5:
        (tree / ".git/HEAD").write_text(f"{commit}\n")


def served(seeds: Seeds, random_: random.Random, folder: Path) -> Case:
    """What a registry answers: one of the files of an index is changed, from which pip and the tool fetch the base wheel."""
    shown, patches = folder / "shown", seeds.patches
    shutil.copytree(_index(seeds), shown)
    if random_.random() < 0.6:
        patches = folder / "patches"
        shutil.copytree(seeds.patches, patches)
        tags = patches / "catalogue/pytorch/tags.toml"
        tags.write_text(f'{tags.read_text()}"{seeds.wheel.name}" = "{file_sha256(seeds.wheel)}"\n')
    page = shown / "torch" / random_.choice(("index.json", "index.html"))
    if page.suffix == ".html":
        page.with_suffix(".json").unlink()
    if random_.random() < 0.7:
        data, is_text = page.read_bytes(), random_.random() < 0.3 or page.suffix == ".html"
        changed = mutate.changed_value({} if is_text else json.loads(data), random_)
        page.write_bytes(mutate.changed(data, random_) if is_text else json.dumps(changed).encode())
    else:
        mutate.change_file(shown / random_.choice((seeds.wheel.name, f"{seeds.wheel.name}.metadata")), random_)
    words = ["pytorch", "v2.13.0", "--output", "made"]
    return Case([words], patches=patches, served=shown, accept=lambda: _read_wheels(Path("made")))


def index(seeds: Seeds, random_: random.Random, folder: Path) -> Case:
    """An index of wheels one of whose files is changed, and is published anew."""
    made = folder / "made"
    shutil.copytree(_index(seeds), made)
    mutate.change_file(random_.choice(sorted(path for path in made.rglob("*") if path.is_file())), random_)
    return Case([["index", "made", str(seeds.wheel)]] if random_.random() < 0.5 else [["index", "made"]])


def _index(seeds: Seeds) -> Path:
    made = seeds.folder / "index"
    if not made.exists():
        words = [Path(sys.executable).with_name("lmsbuild"), "index", made, seeds.wheel]
        subprocess.run(words, check=True, capture_output=True)
    return made


SETTINGS = (
    *(
        "LMSBUILD_CACHE",
        "SOURCE_DATE_EPOCH",
        "CXX",
        "PATH",
        "HOME",
        "TMPDIR",
        "LANG",
        "LC_ALL",
        "COLUMNS",
        "TERM",
        "XDG_CACHE_HOME",
    ),
    *(
        "PIP_INDEX_URL",
        "PIP_CONFIG_FILE",
        "PYTHONIOENCODING",
        "NO_COLOR",
        "FORCE_COLOR",
        "GIT_DIR",
        "GIT_CONFIG_COUNT",
        "MPLBACKEND",
    ),
)
TEXTS = (
    *(
        "",
        "0",
        "-1",
        "abc",
        "1e9",
        "99999999999999999999",
        "/",
        "/dev/null",
        "/dev/full",
        "/proc/1/root",
        "~",
        "$HOME",
        "a:b",
        "a,b",
    ),
    *(
        "x" * 300,
        "x" * 5000,
        "\udcff",
        "größer",
        "１２",
        " ",
        "\x1b[31m",
        "'",
        '"',
        "g++ -O2",
        "false",
        "/bin/sh -c 'exit 3'",
        ":x:",
    ),
)


def settings(seeds: Seeds, random_: random.Random, folder: Path) -> Case:
    """Variables of the environment."""
    environment = {name: random_.choice(TEXTS) for name in random_.sample(SETTINGS, random_.choice((1, 1, 2, 3)))}
    if environment.get("LMSBUILD_CACHE") in (":x:", "abc"):
        (folder / environment["LMSBUILD_CACHE"]).symlink_to(environment["LMSBUILD_CACHE"])
    if random_.random() < 0.3:
        # By an interpreter that starts with them, and ends by itself when it knows no such encoding.
        environment.pop("PYTHONIOENCODING", None)
        words = random_.choice((["list"], ["doctor"], ["index", "made", str(seeds.wheel)], ["matrix"]))
        return Case([words], environment=environment, fresh=True)
    words = random_.choice(
        (
            *(["list"], ["doctor"], ["matrix"], ["patch", "v2.13.0", "tree"], ["index", "made", str(seeds.wheel)]),
            *(
                ["pytorch", "v2.13.0", "--base", str(seeds.wheel)],
                ["pytorch", "v2.13.0", "--mode", "full", "--dry-run"],
            ),
        )
    )
    return Case([words], environment=environment, patches=seeds.patches)


def arguments(seeds: Seeds, random_: random.Random, folder: Path) -> Case:
    """Words of the command line: commands and options that there are, with values that make no sense. Nothing asks the network."""
    names = [
        name
        for name, each in cli.cli.commands.items()
        if name not in ("tensorflow", "tag", "try", "build-all", "conda")
    ]
    command = random_.choice(names)
    context = click.Context(cli.cli.commands[command])
    options = [name for each in cli.cli.commands[command].get_params(context) for name in each.opts]
    words = [command]
    for _ in range(random_.randrange(5)):
        words.append(
            random_.choice((*options, *TEXTS, "v2.13.0", "tree", str(seeds.wheel), "publish", "check", "3.11"))
        )
    return Case(
        [[word for word in words if "\0" not in word]],
        patches=seeds.patches,
        environment={"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull},
    )


CLASSES: Mapping[str, Callable[[Seeds, random.Random, Path], Case]] = {
    each.__name__: each for each in (wheel, package, published, sources, checkout, index, served, settings, arguments)
}

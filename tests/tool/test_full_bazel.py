"""`--mode full` of a framework that bazel builds: a stand-in for bazel leaves the wheel, which the graft then completes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import sboms
import synthetic
import synthetic_tensorflow as tensorflow
import upstream
from lmsbuild import paths
from lmsbuild.catalogue import catalogue, rows
from lmsbuild.errors import BuildFailed, BuildNotReady
from lmsbuild.full import plan
from shop import NAME, Shop
from synthetic import Member

pytestmark = pytest.mark.build  # builds in processes of their own

PATCHED = b"message Experimental {\n    bool use_unified_memory = 2;\n    bool lms_enabled = 10001;\n}\n"
PROTO = "tensorflow/core/protobuf/config.proto"
REPOSITORY = "example.org/tensorflow"
CONFIGURE = b"""import json, os
answers = {name: value for name, value in os.environ.items() if name.startswith(("TF_", "PYTHON_", "CC_OPT"))}
open(os.environ["TF_CUDA_MARKS"] + "/answers", "w").write(json.dumps(answers))
"""
# The second command of the build is a program that the first one makes.
BAZEL = """#!/bin/sh
if [ "$1" = --version ]; then echo "bazel $(cat "$TF_CUDA_MARKS/version")"; exit; fi
echo "$*" > "$TF_CUDA_MARKS/words"
grep -q lms_enabled tensorflow/core/protobuf/config.proto || exit 3
mkdir -p bazel-bin/tensorflow/tools/pip_package
printf '#!/bin/sh\\nmkdir -p "$1"; cp "$TF_CUDA_MARKS"/*.whl "$1"\\n' > bazel-bin/tensorflow/tools/pip_package/build_pip_package
chmod +x bazel-bin/tensorflow/tools/pip_package/build_pip_package
"""


@dataclass(frozen=True)
class Yard:
    """A shop with an upstream repository, and a stand-in for bazel that leaves its marks, and takes a wheel from, a folder."""

    shop: Shop
    repository: Path
    marks: Path
    programs: Path

    def build(self, *words: str | Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
        arguments = ("tensorflow", NAME, "--mode", "full", "--source", self.repository, "--jobs", "2")
        output = ("--output", self.shop.workshop.output)
        environment = {
            "TF_CUDA_MARKS": str(self.marks),
            "PATH": path or f"{self.programs}{os.pathsep}{os.environ['PATH']}",
        }
        return self.shop.workshop.run(*arguments, *output, *words, environment=environment)


@pytest.fixture
def yard(known_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Yard:
    shop, folder = known_shop, known_shop.workshop.folder
    for name in [name for name in os.environ if name.startswith(("TF_", "PYTHON_BIN_PATH", "CC_OPT", "MAX_JOBS"))]:
        monkeypatch.delenv(name)
    made = Yard(shop, folder / "upstream", folder / "marks", folder / "programs")
    files = {PROTO: PATCHED.replace(b"    bool lms_enabled = 10001;\n", b""), ".bazelversion": b"6.1.0\n"}
    commit = upstream.commit(made.repository, "release", {**files, "configure.py": CONFIGURE})
    upstream.git(made.repository, "tag", "-a", NAME, "-m", NAME)
    rows.write(shop.patches, replace(shop.tag, commit=commit[:11]))
    recipe = (paths.patches_folder() / "catalogue/tensorflow/full.toml").read_text()
    recipe = recipe.replace("disk = 60", "disk = 0").replace('"numpy", "packaging", ', "")
    (shop.patches / "catalogue/tensorflow/full.toml").write_text(recipe)
    (shop.patches / "catalogue/tensorflow/source.toml").write_text(f'repository = "{REPOSITORY}"\nfolders = []\n')
    made.programs.mkdir()
    (made.programs / "bazel").write_text(BAZEL)
    (made.programs / "bazel").chmod(0o755)
    made.marks.mkdir()
    (made.marks / "version").write_text("6.1.0")
    built = {**shop.members("tensorflow"), tensorflow.PROTO: Member(PATCHED)}
    name = synthetic.wheel_name(tensorflow.VERSION, package="tensorflow", platform=f"linux_{synthetic.TARGET.machine}")
    synthetic.write_wheel(made.marks / name, built)
    return made


def test_the_wheel_that_bazel_leaves_gets_what_a_graft_adds(yard: Yard) -> None:
    done = yard.build()
    assert done.returncode == 0, done.stderr
    wheel = Path(done.stdout.strip())
    assert wheel.name.startswith(f"tensorflow-{tensorflow.VERSION}+lms1-")
    assert [path.name for path in wheel.parent.glob("*.whl")] == [wheel.name]
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert {"tensorflow/libtensorflow_lms.so", "tensorflow/python/lms/__init__.py"} <= names
        assert archive.read(tensorflow.PROTO) == PATCHED
        assert b"import set_lms_enabled\n" in archive.read(tensorflow.EXPERIMENTAL)
    found = sboms.of_wheel(wheel)
    ((source, row),) = found.parts(found.parts()["tensorflow"]).items()  # of the base, which was built here
    commit = upstream.git(yard.repository, "rev-parse", f"{NAME}^{{commit}}").strip()
    assert (source, sboms.properties(row)) == ("tensorflow", {"commit": commit})
    assert row["purl"].endswith(f"vcs_url=git%2Bhttps://{REPOSITORY}%40{commit}")
    answers = json.loads((yard.marks / "answers").read_text())
    assert Path(answers["PYTHON_BIN_PATH"]).is_file()
    assert (answers["TF_NEED_CUDA"], answers["TF_PYTHON_VERSION"]) == ("0", synthetic.TARGET.python)
    words = shlex.split((yard.marks / "words").read_text())
    assert {"--batch", "build", "--jobs=2", "--local_ram_resources=6144"} <= set(words)
    assert words[-1] == "//tensorflow/tools/pip_package:build_pip_package"
    again = yard.build("--resume")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("done before") == 3


def test_another_version_of_bazel_than_the_tree_asks_for(yard: Yard) -> None:
    (yard.marks / "version").write_text("7.0.0")
    done = yard.build()
    assert done.returncode == BuildNotReady.exit_code, done.stderr
    said = " ".join(done.stderr.split())
    assert f"{NAME} is built with bazel 6.1.0, by .bazelversion, not with bazel 7.0.0: install that version" in said
    assert not (yard.marks / "answers").exists()
    assert not list(yard.shop.workshop.output.glob("*.whl"))
    (yard.marks / "version").write_text("6.1.0")
    assert yard.build("--resume").returncode == 0


def test_a_command_that_fails_is_named(yard: Yard) -> None:
    with (yard.programs / "bazel").open("a") as file:
        file.write("echo 'ERROR: no such target'; exit 1\n")
    done = yard.build()
    assert done.returncode == BuildFailed.exit_code, done.stderr
    assert "build_pip_package ended with 1: " in " ".join(done.stderr.split())
    assert "bazel --batch" in done.stderr and "--resume" in done.stderr


def test_bazel_is_missing(yard: Yard) -> None:
    needed = ("git", "g++", "c++")
    for program in needed:
        found = shutil.which(program)
        assert found
        (yard.marks / program).symlink_to(found)
    done = yard.build(path=str(yard.marks))
    assert done.returncode == BuildNotReady.exit_code, done.stderr
    assert (
        "bazel: not installed; .bazelversion in the tree says which version, and bazelisk under that name"
        in done.stderr
    )
    plain = yard.build("--dry-run", path=str(yard.marks))
    assert plain.returncode == 0, plain.stderr
    lines = plain.stdout.splitlines()
    assert lines[-1].startswith(f"lmsbuild tensorflow {NAME} --python {synthetic.TARGET.python} --output ")
    assert lines[-1].endswith(" --base dist/*.whl")
    assert [line.split()[-1] for line in lines[-4:-2]] == [
        "configure.py",
        "//tensorflow/tools/pip_package:build_pip_package",
    ]


@pytest.mark.parametrize(
    ("name", "target", "leaves"),
    [
        ("v2.1.0", "build_pip_package", "dist"),
        ("v2.16.2", "build_pip_package", "dist"),
        ("v2.17.0", "wheel", "bazel-bin/tensorflow/tools/pip_package/wheel_house"),
        ("v2.21.0", "wheel", "bazel-bin/tensorflow/tools/pip_package/wheel_house"),
    ],
)
def test_the_plan_of_a_real_tag(name: str, target: str, leaves: str, tmp_path: Path) -> None:
    patches = paths.patches_folder()
    tag = catalogue.find_tag(patches, name, "tensorflow")
    made = plan.make(plan.Options(tag, patches, tmp_path, tmp_path / "dist", jobs=3))
    (bazel,) = [words for words in made.commands if "bazel" in words]
    assert bazel[-1] == f"//tensorflow/tools/pip_package:{target}"
    # Without the second the version of what later releases build is another than the tag's, and the wheel is refused.
    settings = ["--repo_env=WHEEL_NAME=tensorflow", "--repo_env=ML_WHEEL_TYPE=release"]
    assert [word for word in bazel if word.startswith("--repo_env=")] == (settings if target == "wheel" else [])
    assert made.wheels == made.tree / leaves
    assert ("HERMETIC_PYTHON_VERSION" in made.environment) is (tag.number >= (2, 18))
    assert ("TF_NEED_OPENCL_SYCL" in made.environment) is (tag.number <= (2, 2, 0))
    assert f"lmsbuild source tensorflow:{name} {made.tree} --whole" in plan.lines(made)

"""What is asked of one of a framework's packages, or of one framework, is not done with another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import synthetic_tensorflow as tensorflow
from lmsbuild.catalogue import catalogue, rows
from lmsbuild.errors import UnknownPackage, UnknownTag, WrongHash, WrongVersion
from lmsbuild.wheel.wheel import file_sha256
from shop import CPU_NAME, CUDA_NAME, NAME, Shop
from synthetic import Member


@pytest.fixture
def shop(tensorflow_shop: Shop) -> Shop:
    """A shop whose catalogue has the tag, with the wheels of both packages, but no patch: nothing comes to need it."""
    wheels = {name: file_sha256(tensorflow_shop.folder / name) for name in (CPU_NAME, CUDA_NAME)}
    tag = replace(tensorflow_shop.workshop.tag, framework="tensorflow", name=NAME, version=tensorflow.VERSION)
    rows.write(tensorflow_shop.patches, replace(tag, generation="2.12", wheels=wheels))
    return tensorflow_shop


def _replaced(shop: Shop, name: str, package: str) -> Path:
    """An official wheel with another file in it, whose RECORD is right."""
    return shop.publish(name, {**shop.members(package), "tensorflow/evil.py": Member(b"evil = True\n")})


@pytest.mark.parametrize(
    "words",
    [
        ("tensorflow", NAME, "--package", "tensorflow-cpu", "--base-wheel"),
        ("conda", "tensorflow", NAME, "--no-test", "--package", "tensorflow-cpu", "--base"),
        ("conda", "tensorflow", NAME, "--package", "tensorflow-cpu", "--wheel"),
    ],
)
def test_a_wheel_of_another_package_than_the_one_asked_for(shop: Shop, words: tuple[str, ...]) -> None:
    done = shop.workshop.run(*words, _replaced(shop, CUDA_NAME, "tensorflow"))
    assert (done.returncode, done.stdout) == (WrongVersion.exit_code, ""), done.stderr
    assert f"{CUDA_NAME} is tensorflow 2.14.1, but {NAME} needs" in " ".join(done.stderr.split())
    assert "tensorflow-cpu" in done.stderr


def test_a_replaced_wheel_of_the_package_asked_for(shop: Shop) -> None:
    wheel = _replaced(shop, CPU_NAME, "tensorflow-cpu")
    done = shop.workshop.run("tensorflow", NAME, "--package", "tensorflow-cpu", "--base-wheel", wheel)
    assert done.returncode == WrongHash.exit_code, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("tag", "check", "--all", "--package", "tensorflow-cpi"),
            "tensorflow-cpi is the package of no framework: there are tensorflow, tensorflow-cpu, torch",
        ),
        (
            ("tag", "add", "tensorflow", "v2.15.0", "--package", "tensorflow-cpi"),
            "tensorflow is not published as 'tensorflow-cpi', but as tensorflow or tensorflow-cpu",
        ),
        (
            ("tag", "add", "pytorch", "v2.15.0", "--package", "tensorflow"),
            "not published as 'tensorflow', but as torch",
        ),
    ],
)
def test_a_package_that_there_is_not_is_said_before_anything_else(
    shop: Shop, words: tuple[str, ...], said: str
) -> None:
    done = shop.workshop.run(*words)
    assert (done.returncode, done.stdout) == (UnknownPackage.exit_code, ""), done.stderr
    assert done.stderr.count("\n") == 1 and said in done.stderr


@pytest.mark.parametrize("command", [(), ("conda",)])
def test_a_tag_of_another_framework_than_the_command_is_for(shop: Shop, command: tuple[str, ...]) -> None:
    done = shop.workshop.run(*command, "pytorch", f"tensorflow:{NAME}")
    assert (done.returncode, done.stdout) == (UnknownTag.exit_code, ""), done.stderr
    assert f"tensorflow:{NAME} is a tag of tensorflow, not of pytorch: use the command for tensorflow" in done.stderr


def test_a_tag_may_name_the_framework_that_the_command_is_for(shop: Shop) -> None:
    assert catalogue.find_tag(shop.patches, f"tensorflow:{NAME}", "tensorflow") == shop.tag


def test_a_full_build_is_of_one_package(shop: Shop) -> None:
    done = shop.workshop.run("tensorflow", NAME, "--mode", "full", "--package", "tensorflow-cpu", "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    said = " ".join(done.stderr.split())
    assert "--mode full builds tensorflow from source: it takes none of --base, --package and --platform" in said

"""LMS as the environment asks for it, without a change of the program.

    TORCH_LMS="cpu:limit=8GiB,store=/scratch;cuda:limit=0.9"
    TORCH_LMS="cpu:limit=auto"

Devices are separated by ";", and options, which are those of :func:`torch.lms.enable`, by ","; a backslash before one of these
makes it part of a value. Several directories as ``store`` are separated by ":". ``strict`` needs no value, nor does
``no_checksum``, nor ``per_node``: the limit is the node's, and every process gets an equal part of it. ``share`` makes the
limit a budget that processes share as they need it; with a value it is the name of that budget, and ``weight``, ``minimum``, ``priority`` and ``group`` are those of :class:`torch.lms.Share`. A CUDA device is switched on when the process starts to use CUDA, so that importing torch does not;
``cuda`` is every CUDA device that the process uses.

torch calls :func:`switch_on` at the end of its import, if the variable is set. Children inherit the variable, and so LMS.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from . import _arguments, _devices, _share, _sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VARIABLE = "TORCH_LMS"

_OF_SHARE = ("weight", "minimum", "priority", "group")
_WITH_VALUE = ("limit", "min_size", "store", "policy", *_OF_SHARE)
_WITHOUT = ("strict", "per_node", "no_checksum")
_EITHER = ("share",)
_OPTIONS = _WITH_VALUE + _WITHOUT + _EITHER
_ENTRY = re.compile(r"\s*([a-z]+(?::\d+)?)\s*(?::(.*))?", re.DOTALL)

# What launchers call the number of processes that they start on this node; the first that is set counts.
_LOCAL_PROCESSES = (
    "LOCAL_WORLD_SIZE",  # torchrun, accelerate
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_TASKS_PER_NODE",  # srun, as "4(x2),3"
    "SLURM_NTASKS_PER_NODE",
)


class Request(NamedTuple):
    """What is asked of one device."""

    device: str
    options: dict[str, str]  # as they were written; those without a value have ""


def read(text: str) -> list[Request]:
    """The requests that a value of the variable holds.

    :raises ValueError: it is not written as such a value is; the sentence says where.
    """
    return [_read_entry(entry) for entry in _split(text, ";") if entry.strip()]


def write(requests: Iterable[Request]) -> str:
    """A value of the variable that holds these requests."""
    return ";".join(
        f"{device}:" + ",".join(f"{name}={_escaped(value)}" if value else name for name, value in options.items())
        for device, options in requests
    )


def _escaped(value: str) -> str:
    return re.sub(r"([\\;,])", r"\\\1", value)


def _split(text: str, separator: str) -> list[str]:
    return re.findall(rf"(?:[^\\{separator}]|\\.|\\$)+", text, re.DOTALL)


def _read_entry(entry: str) -> Request:
    found = _ENTRY.fullmatch(entry)
    if found is None or found[1] in _OPTIONS:
        raise ValueError(f"{entry!r} does not begin with a device: write it as 'cpu:limit=8GiB,store=/scratch'")
    options: dict[str, str] = {}
    for option in _split(found[2] or "", ","):
        name, equals, value = option.strip().partition("=")
        if name not in _OPTIONS:
            meant = _arguments.did_you_mean(name, _OPTIONS)
            raise ValueError(f"{option!r} is no option; there are {', '.join(_OPTIONS)}{meant}")
        if (name not in _EITHER or equals) and bool(equals and value) != (name in _WITH_VALUE + _EITHER):
            takes = "no value" if name in _WITHOUT else "a value" if name in _WITH_VALUE else "a value after the '='"
            raise ValueError(f"{option!r}: {name} takes {takes}")
        if name in options:
            raise ValueError(f"{name} is there twice")
        options[name] = re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
    return Request(found[1], options)


def _processes_here() -> int:
    """How many processes the launcher of this one has started on this node."""
    value = next(filter(None, map(os.environ.get, _LOCAL_PROCESSES)), "1")
    return max([1, *map(int, re.findall(r"(?:^|,)(\d+)", value))])


def _share_of(options: dict[str, str]) -> _share.Share | None:
    """The argument ``share`` of :func:`torch.lms.enable`."""
    of_share = {name: options[name] for name in _OF_SHARE if name in options}
    if "share" in options:
        return _share.from_text(options["share"] or "1", of_share)
    if of_share:
        raise ValueError(f"{next(iter(of_share))} is a part of share, which is not there")
    return None


def check(request: Request) -> None:
    """Raises what is wrong with a request, as far as that can be told without starting CUDA."""
    device, options = _devices.find(request.device), request.options
    if "share" in options and "per_node" in options:
        raise ValueError("per_node divides the limit in equal parts, and share as processes need it: leave one out")
    given = options.get("limit")
    if "per_node" in options and (given is None or _arguments.is_auto(given)):
        raise ValueError("per_node needs a limit, that of the node, which it divides: auto is what a process finds")
    limit = _arguments.limit_of(device, given, lambda: _arguments.UINT64_MAX)
    _arguments.check_min_size(options.get("min_size"), device, limit)
    _arguments.check_store(_arguments.split_store(options["store"]) if "store" in options else None)
    _arguments.check_policy(options.get("policy", "iteration"))
    share = _share_of(options)
    if share is not None:
        if device.kind.name == "cpu" and _arguments.is_auto(given):
            raise ValueError("share: a budget is what all say alike, and limit 'auto' is what a process finds")
        _share.terms(share, lambda: _arguments.UINT64_MAX)
        _share.check_group(share)
        if limit and _sizes.parse("minimum", share.minimum, lambda: limit) > limit:
            raise ValueError(f"share: a minimum of {share.minimum} is more than the budget, the limit of {given}")


def _enable(request: Request) -> None:
    arguments: dict[str, Any] = {name: value for name, value in request.options.items() if name not in _OF_SHARE}
    arguments["strict"] = "strict" in arguments
    arguments["checksum"] = arguments.pop("no_checksum", None) is None
    if "store" in arguments:
        arguments["store"] = _arguments.split_store(arguments["store"])
    arguments["share"] = _share_of(request.options) or False
    if arguments.pop("per_node", None) is not None:
        limit = _arguments.check_limit("limit", arguments["limit"], _devices.find(request.device).memory)
        arguments["limit"] = limit // _processes_here()
    if request.device == "cuda":
        torch.lms._enable_at_first_use(**arguments)
    else:
        torch.lms.enable(request.device, **arguments)


@contextlib.contextmanager
def _naming_the_variable() -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(f"{VARIABLE}: {error}") from None
    except (OSError, RuntimeError) as error:
        raise RuntimeError(f"{VARIABLE}: {error}") from error


def _enable_when_cuda_starts(request: Request) -> None:
    def enable() -> None:
        with _naming_the_variable():
            _enable(request)

    torch.cuda._lazy_call(enable)
    calls = torch.cuda._queued_calls
    if calls and calls[-1][0] is enable:
        # Where the call comes from, which PyTorch tells when it fails; it would show the frames of the import.
        calls[-1] = (enable, [f"  {VARIABLE}={os.environ[VARIABLE]}\n"])


def switch_on() -> None:
    """Enables what the variable asks for.

    :raises ValueError, RuntimeError: something is wrong with it; the sentence begins with the variable's name.
    """
    with _naming_the_variable():
        for request in read(os.environ[VARIABLE]):
            check(request)
            if request.device.startswith("cuda"):
                _enable_when_cuda_starts(request)
            else:
                _enable(request)

"""The stand-ins for CUDA's kernels (operators/stand_in.h), by upstream's own samples of every operator: equal to the CPU to
the bit when everything they use has been paged out before, and so are they without LMS.

That is tried with every twelfth of them, and without LMS with every 48th; before a release with all, and more samples.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from operators import build

HERE = Path(__file__).parent
SAMPLES = HERE / "operator_programs" / "operator_samples.py"
LOST = 3  # its exit status when the device is lost
AT_ONCE = 2


@pytest.mark.parametrize(
    ("mode", "every", "samples"),
    [
        ("stock", 48, 4),
        ("lms", 12, 4),
        *(pytest.param(mode, 1, 12, marks=pytest.mark.release) for mode in ("stock", "lms")),
    ],
)
def test_every_operator_of_upstream(
    mode: str, every: int, samples: int, cuda_python: Path, on_simulated_gpu: dict[str, str]
) -> None:
    words = [str(cuda_python), "-W", "ignore", str(SAMPLES), mode]
    environment = {**on_simulated_gpu, "LMS_TEST_SAMPLES": str(samples)}

    # A process lists all operators before it tries one, which takes as long as trying 40.
    at_once = AT_ONCE if every == 1 else 1

    def run(share: int) -> list[dict[str, Any]]:
        outcomes, first, step = [], share * every, at_once * every
        while True:
            given = [*words, str(first), str(step)]
            done = subprocess.run(given, capture_output=True, text=True, env=environment, timeout=600, check=False)
            lines = done.stdout.splitlines()
            outcomes += [json.loads(line) for line in lines if line.startswith("{")]
            begun = [int(line.split()[1]) for line in lines if line.startswith("begin")]
            if done.returncode == 0:
                assert begun == list(range(first, int(lines[-1].removeprefix("end ")), step))
                return outcomes
            # Those behind the one that lost the device have not been tried.
            assert done.returncode == LOST and begun, done.stderr[-3000:]
            outcomes[-1]["wrong"] += done.stderr[-1000:]
            first = begun[-1] + step

    with ThreadPoolExecutor(at_once) as pool:
        outcomes = [outcome for share in pool.map(run, range(at_once)) for outcome in share]
    wrong = {outcome["name"]: outcome["wrong"] for outcome in outcomes if outcome["wrong"]}
    assert not wrong, f"{len(wrong)} operators: {json.dumps(wrong, indent=1)[:6000]}"
    assert sum(outcome["equal"] > 0 for outcome in outcomes) > 0.85 * len(outcomes)


def run(python: Path, environment: dict[str, str], program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", program], capture_output=True, text=True, env=environment, timeout=120, check=False
    )


def refused(python: Path, environment: dict[str, str], program: str) -> str:
    """What a program says that ends with an error."""
    done = run(python, environment, f"import torch\n{program}")
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    return done.stderr


def test_what_has_no_stand_in_is_named(cuda_python: Path, on_simulated_gpu: dict[str, str]) -> None:
    program = "x = torch.eye(3, device='cuda')\ntorch.ops.aten._cslt_compress(x)"
    said = refused(cuda_python, on_simulated_gpu, program)
    assert "the operator aten::_cslt_compress has no stand-in" in said
    assert 'File "<string>", line 3' in said


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (
            "with torch.cuda.graph(torch.cuda.CUDAGraph()):\n  torch.nn.functional.dropout(torch.ones(4, device='cuda'))",
            "aten::native_dropout has no stand-in in a graph",
        ),
        *(
            pytest.param(*each, marks=pytest.mark.release)
            for each in (
                (
                    "torch.quantize_per_tensor(torch.ones(3, device='cuda'), 0.1, 0, torch.quint8)",
                    "quantize_per_tensor",
                ),
                ("torch.nn.LSTM(4, 6).half().cuda()(torch.ones(2, 1, 4).half().cuda())", "an LSTM has no stand-in"),
                ("torch.nn.AvgPool3d(2)(torch.ones(1, 1, 2, 2, 2).half().cuda())", "no stand-in for these types"),
                (
                    "torch._nested_tensor_from_mask(torch.ones(1, 2, 3).cuda(), torch.ones(1, 2, dtype=torch.bool).cuda())",
                    "has no stand-in where its result is not strided",
                ),
            )
        ),
    ],
)
def test_what_is_refused(program: str, what: str, cuda_python: Path, on_simulated_gpu: dict[str, str]) -> None:
    said = refused(cuda_python, on_simulated_gpu, program)
    assert "NotImplementedError: simulated CUDA" in said and what in said


def test_a_state_of_the_generator_draws_the_same_again(cuda_python: Path, on_simulated_gpu: dict[str, str]) -> None:
    program = """
import torch
for first in range(2):
    torch.manual_seed(0)
    for _ in range(first):
        torch.rand(3, device="cuda")
    state = torch.cuda.get_rng_state()
    one = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(one, torch.rand(3, device="cuda")), first
    torch.manual_seed(0)
    other = torch.rand(3 * first + 3)[3 * first :]
    assert torch.equal(one.cpu(), other), (first, one, other)
torch.manual_seed(0)
one = torch.rand(3, device="cuda")
torch.cuda.manual_seed(0)
assert torch.equal(one, torch.rand(3, device="cuda"))
"""
    done = run(cuda_python, on_simulated_gpu, program)
    assert done.returncode == 0, done.stderr


def test_a_kernel_that_touches_freed_memory(cuda_python: Path, on_simulated_gpu: dict[str, str]) -> None:
    program = """
x = torch.ones(1 << 20, device="cuda")
view = torch.tensor([], device="cuda").set_(x.untyped_storage())
import ctypes; assert ctypes.CDLL("libcudart.so.12").cudaFree(ctypes.c_void_p(x.data_ptr())) == 0
view.mul(2)
torch.cuda.synchronize()
"""
    said = refused(cuda_python, on_simulated_gpu, program)
    assert "illegal memory access" in said
    assert "aten::mul.Tensor touches memory that device 0 may not" in said


def test_a_kernel_that_gives_up(cuda_python: Path, on_simulated_gpu: dict[str, str]) -> None:
    said = refused(
        cuda_python, on_simulated_gpu, "torch.ones(3, device='cuda')[torch.tensor([5], device='cuda')].cpu()"
    )
    assert "device-side assert" in said
    assert "the kernel of aten::index.Tensor gave up: index 5 is out of bounds for dimension 0 with size 3" in said


def test_a_schedule_that_is_stuck(cuda_python: Path, on_simulated_gpu: dict[str, str]) -> None:
    """The stream waits for the program, which waits for the stream."""
    program = """
import ctypes, os, threading, torch
stream, other = torch.cuda.Stream(), torch.cuda.Stream()
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: threading.Event().wait(4) or os._exit(1))
assert ctypes.CDLL("libcudart.so.12").cudaLaunchHostFunc(ctypes.c_void_p(stream.cuda_stream), function, None) == 0
other.wait_stream(stream)
with torch.cuda.stream(other):
    torch.ones(3, device="cuda")
torch.cuda.synchronize()
"""
    said = refused(cuda_python, {**on_simulated_gpu, "SIM_CUDA_PATIENCE": "2", "SIM_CUDA_LAZY": "1"}, program)
    assert "an operation has run for 2 s" in said and "of device 0: 1 queued, one runs" in said
    assert "the next waits for an event of stream" in said


@pytest.mark.release
def test_more_memory_than_the_card_has(cuda_python: Path, on_simulated_gpu: dict[str, str]) -> None:
    said = refused(cuda_python, on_simulated_gpu, "torch.zeros(1 << 40, device='cuda')")
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 4096.00 GiB" in said


@pytest.mark.release
def test_wrong_arguments_are_refused_at_their_line(cuda_python: Path, on_simulated_gpu: dict[str, str]) -> None:
    said = refused(cuda_python, on_simulated_gpu, "torch.ones(3, device='cuda').add_(torch.ones(4, device='cuda'))")
    assert 'File "<string>", line 2' in said and "RuntimeError" in said
    said = refused(cuda_python, on_simulated_gpu, "torch.ones(3, device='cuda') + torch.ones(3)")
    assert "Expected all tensors to be on the same device" in said


def test_the_script_for_a_program(cuda_python: Path, simulated_cuda: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch\n"
        "x = torch.arange(4.0, device='cuda:1', requires_grad=True)\n"
        "(x @ x).backward()\n"
        "print(sys.argv[1], x.grad.tolist(), torch.cuda.device_count())\n"
    )
    words = [sys.executable, str(build.HERE / "run.py"), "--python", str(cuda_python), "-o", "devices=2"]
    done = subprocess.run([*words, str(program), "one"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "one [0.0, 2.0, 4.0, 6.0] 2"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--python", sys.executable], "which program?"),
        (["--python", "/no/such/python", "program.py"], "there is no interpreter /no/such/python"),
        (["--python", "/bin/true", "program.py"], "/bin/true is no interpreter of Python"),
        (["--python", "/bin/false", "program.py"], "/bin/false cannot import torch: it ended with exit code 1"),
        (["--python", sys.executable, "-o", "lazy", "program.py"], "-o lazy: an option has a value"),
        (["--python", "{without_torch}", "program.py"], "cannot import torch: ModuleNotFoundError: No module named"),
    ],
)
def test_what_the_script_cannot_run_is_said(words: list[str], says: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    script = [sys.executable, str(build.HERE / "run.py")]
    given = [word.format(without_torch=tmp_path / "venv/bin/python") for word in words]
    done = subprocess.run([*script, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr, done.stderr

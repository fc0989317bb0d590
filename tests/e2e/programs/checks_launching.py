"""LMS without a change of the program: ``python -m torch.lms run``, and TORCH_LMS in the environment."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from common import MIB, directory, raises
from support import needs_distributed
from torch.lms import _environment

# What a program can see of how it was started.
REPORT = """
import json, os, sys
early = "torch" in sys.modules, sorted(os.sched_getaffinity(0))
import torch, __main__
spec = __main__.__spec__ and __main__.__spec__.name
seen = [__name__, __file__, sys.argv, sys.path, sys.flags.optimize, sys.flags.dev_mode, sys.stdout.write_through]
limit = torch.lms.limit("cpu") if torch.lms.is_enabled("cpu") else None
print(json.dumps([early, seen, vars(__main__)["__file__"], spec, __package__, __doc__, limit]))
"""


def run(
    words: list[str | Path],
    folder: str | Path,
    lms: list[str] | None = None,
    flags: tuple[str, ...] = (),
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Runs python with these words, or has torch.lms, with these options, do so."""
    launcher = [] if lms is None else ["-m", "torch.lms", "run", *lms]
    return subprocess.run(
        [sys.executable, *flags, *launcher, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
        env={**os.environ, **environment},
    )


def report(result: subprocess.CompletedProcess[str]) -> list[Any]:
    assert (result.returncode, result.stderr) == (0, ""), result
    return json.loads(result.stdout)


def check_a_program_sees_what_python_shows_it() -> None:
    with directory() as folder:
        package = Path(folder, "package")
        package.mkdir()
        for name in ("report.py", "package/__init__.py", "package/__main__.py", "package/report.py"):
            Path(folder, name).write_text("" if name.endswith("__init__.py") else REPORT)
        for words, flags in (
            (["report.py", "--limit", "3", "-m", "x"], ("-u", "-O", "-X", "dev")),
            (["-m", "package.report", "--help"], ()),
            ([package], ()),
        ):
            *plain, without = report(run(words, folder, flags=flags))
            *launched, limit = report(run(words, folder, ["--limit", "8MiB", "--device", "cpu"], flags))
            assert (without, limit) == (None, 8 * MIB) and launched == plain, (plain, launched)


def check_code_on_the_command_line_and_from_standard_input() -> None:
    code = "import sys, torch; print(__name__, sys.argv, torch.lms.limit('cpu'))"
    launcher = [sys.executable, "-m", "torch.lms", "run", "--device=cpu", "--limit=8MiB", "--min_size=1KiB"]
    for words, given in ((["-c", code, "-c", "--x"], None), (["-", "-m"], code)):
        done = subprocess.run(
            [*launcher, *words], input=given, capture_output=True, text=True, timeout=120, check=False
        )
        expected = ["-c", "-c", "--x"] if given is None else words
        assert done.stdout == f"__main__ {expected} {8 * MIB}\n", done


def check_a_program_ends_as_python_ends_it() -> None:
    with directory() as folder:
        program = Path(folder, "program.py")
        program.write_text(
            "import os, sys, threading, atexit\n"
            "def fail():\n    raise RuntimeError('no luck')\n"
            "atexit.register(print, 'at exit')\n"
            "threading.Timer(0.2, lambda: print('thread', sys.modules['__main__'].fail.__name__)).start()\n"
            "{'7': lambda: sys.exit(7), 'fail': fail, 'kill': lambda: os.kill(os.getpid(), 9)}"
            "[sys.argv[1]]()\n"
        )
        for how, code in (("7", 7), ("fail", 1), ("kill", -9)):
            plain = run([program, how], folder)
            launched = run([program, how], folder, ["--limit=1G", "--device=cpu"])
            assert plain.returncode == code, plain
            for stream in ("returncode", "stdout", "stderr"):
                assert getattr(launched, stream) == getattr(plain, stream), (plain, launched)


def check_what_a_program_sets_for_torch_has_effect() -> None:
    with directory() as folder:
        program = Path(folder, "program.py")
        program.write_text(
            "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nprint(torch.get_num_threads())\n"
        )
        result = run([program], folder, ["--limit", "1G", "--device", "cpu"], OMP_NUM_THREADS="2")
        assert (result.stdout, result.stderr) == ("1\n", ""), result
        program.write_text(REPORT)
        plain, launched = (
            report(run([program], folder, lms, OMP_PROC_BIND="true")) for lms in (None, ["--limit=1G", "--device=cpu"])
        )
        assert launched[0] == plain[0] and launched[0][1] == sorted(os.sched_getaffinity(0)), (plain, launched)


def check_a_run_pages() -> None:
    with directory() as folder:
        program = Path(folder, "program.py")
        program.write_text(
            "import json, torch\n"
            "torch.manual_seed(0)\n"
            "tensors = [torch.randn(1 << 18) for _ in range(32)]\n"
            "sums = [float((a * b).sum()) for a, b in zip(tensors, reversed(tensors))]\n"
            "stats = torch.lms.stats('cpu')\n"
            "print(json.dumps([sums, stats['out.bytes'], stats['resident_bytes.peak']]))\n"
        )
        expected, none, _ = report(run([program], folder))
        options = ["--limit", "8MiB", "--store", ".", "--policy", "lru", "--min-size", "1M", "--strict"]
        sums, out, resident = report(run([program], folder, [*options, "--device", "cpu"]))
        assert sums == expected and none == 0 and out >= 24 * MIB and resident <= 8 * MIB, (out, resident)


def _fails(words: list[str]) -> str:
    """What `python -m torch.lms` says before it exits with 2."""
    sys.argv = ["torch.lms", *words]
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        try:
            runpy.run_module("torch.lms", run_name="__main__", alter_sys=False)
        except SystemExit as error:
            assert error.code == 2, (words, error.code)
            return text.getvalue().splitlines()[-1]
    raise AssertionError(f"{words} are right")


def check_wrong_options_are_one_line_of_error() -> None:
    with directory() as folder:
        os.chdir(folder)
        Path("program.py").write_text("raise AssertionError('it ran')\n")
        for words, sentence in (
            (["--share"], "limit: 'cpu' needs one"),
            (["--limit", "8"], "did you mean '8GiB'?"),
            (["--limit", "8 gigs"], "'8 gigs' is no size"),
            (["--limit", "8G", "--store", "nowhere"], "store: 'nowhere' is not a directory"),
            (["--limit", "8G", "--policy", "Lru"], "did you mean 'lru'?"),
            (["--limit", "1M", "--min-size", "8M"], "min_size: '8M' is more than the limit"),
            (["--limit", "8G", "--device", "gpu"], "did you mean 'cuda'?"),
            (["--limit", "8G", "--device", "cpu:strict"], "device"),
            (["--per-node"], "per_node needs a limit"),
        ):
            said = _fails(["run", *([] if "--device" in words else ["--device", "cpu"]), *words, "program.py"])
            assert "error: " in said and sentence in said, (words, said)
        assert "'nowhere.py' does not exist" in _fails(["run", "--device", "cpu", "--limit", "8G", "nowhere.py"])
        assert "PROGRAM.py" in _fails(["run", "--limit", "8G"])


def check_the_environment_switches_it_on() -> None:
    with directory() as folder:
        odd = Path(folder, "a,b;c\\d")
        odd.mkdir()
        escaped = re.sub(r"([,;\\])", r"\\\1", str(odd))
        for value, limit in (
            ("cpu:limit=8MiB", 8 * MIB),
            (f" cpu : limit=16M , min_size=4K,store={escaped},policy=lru,strict ; ", 16 * MIB),
            ("cpu:limit=8MiB;cpu:limit=9MiB", 9 * MIB),
        ):
            os.environ["TORCH_LMS"] = value
            _environment.switch_on()
            assert torch.lms.limit("cpu") == limit
            torch.lms.disable("cpu")
        os.environ["TORCH_LMS"] = ""
        _environment.switch_on()
        assert not torch.lms.is_enabled("cpu")
        requests = [_environment.Request("cpu", {"limit": "8GiB", "store": str(odd), "strict": ""})]
        assert _environment.read(_environment.write(requests)) == requests
        result = run(["-c", "import torch; print(torch.lms.limit('cpu'))"], folder, TORCH_LMS="cpu:limit=7MiB")
        assert (result.stdout, result.stderr) == (f"{7 * MIB}\n", ""), result


def check_a_wrong_variable_is_one_clear_error() -> None:
    for value, words in (
        ("limit=8GiB", "does not begin with a device"),
        ("cpu", "'cpu' needs one"),
        ("cpu:limt=8GiB", "did you mean 'limit'?"),
        ("cpu:limit", "limit takes a value"),
        ("cpu:limit=8GiB,limit=9GiB", "twice"),
        ("cpu:limit=8GiB,strict=yes", "strict takes no value"),
        ("cpu:per_node", "per_node needs a limit"),
        ("gpu:limit=8GiB", "did you mean 'cuda'?"),
        ("cpu:limit=8GiB,store=/nowhere", "'/nowhere' is not a directory"),
        ("tpu;cpu:limit=8GiB", "device: "),
    ):
        os.environ["TORCH_LMS"] = value
        with raises(ValueError, "TORCH_LMS: ", words):
            _environment.switch_on()
        assert not torch.lms.is_enabled("cpu")
    result = run(["-c", "import torch"], ".", TORCH_LMS="cpu:limit=8")
    last = result.stderr.splitlines()[-1]
    assert result.returncode == 1 and last.startswith("ValueError: TORCH_LMS: limit: '8' is 8 bytes"), result


def check_without_the_variable_nothing_is_imported() -> None:
    program = "import sys, torch; print([name for name in sys.modules if name.startswith('torch.lms')])"
    result = run(["-c", program], ".")
    assert (result.stdout, result.stderr) == ("[]\n", ""), result


def check_children_inherit() -> None:
    with directory() as folder:
        program = Path(folder, "program.py")
        program.write_text(
            "import multiprocessing, torch\n"
            "def work(number):\n    return number, torch.lms.limit('cpu')\n"
            "class Numbers(torch.utils.data.Dataset):\n"
            "    def __len__(self):\n        return 2\n"
            "    def __getitem__(self, index):\n        return torch.lms.limit('cpu')\n"
            "if __name__ == '__main__':\n"
            "    for method in ('spawn', 'forkserver', 'fork'):\n"
            "        with multiprocessing.get_context(method).Pool(1) as pool:\n"
            "            print(pool.map(work, [1]))\n"
            "    for method in ('spawn', 'fork'):\n"
            "        loader = torch.utils.data.DataLoader(Numbers(), 2, num_workers=1, multiprocessing_context=method)\n"
            "        print(next(iter(loader)).tolist())\n"
        )
        result = run([program], folder, ["--limit", "8MiB", "--device", "cpu"])
        expected = f"[(1, {8 * MIB})]\n" * 3 + f"[{8 * MIB}, {8 * MIB}]\n" * 2
        assert (result.stdout, result.stderr) == (expected, ""), result


def check_a_share_of_the_node() -> None:
    for environment, share in (
        ({}, 64 * MIB),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_STEP_TASKS_PER_NODE": "8"}, 16 * MIB),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x12),8"}, 8 * MIB),
        ({"SLURM_NTASKS_PER_NODE": "2"}, 32 * MIB),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "16"}, 4 * MIB),
    ):
        os.environ.update(environment, TORCH_LMS="cpu:limit=64MiB,per_node")
        _environment.switch_on()
        assert torch.lms.limit("cpu") == share, (environment, torch.lms.limit("cpu"))
        for name in environment:
            del os.environ[name]


def check_torchrun() -> None:
    needs_distributed()
    with directory() as folder:
        program = Path(folder, "program.py")
        program.write_text(
            "import os, sys, torch, torch.distributed as dist\n"
            "dist.init_process_group('gloo')\n"
            "tensors = [torch.full((1 << 18,), float(dist.get_rank() + 1)) for _ in range(16)]\n"
            "for tensor in tensors:\n    dist.all_reduce(tensor)\n"
            "stats = torch.lms.stats('cpu')\n"
            "right = all(bool((tensor == 3).all()) for tensor in tensors) and stats['out.bytes'] > 0\n"
            "line = f\"{os.environ['RANK']} {sys.argv[1:]} {stats['limit_bytes']} {right}\"\n"
            "open(os.path.join(sys.argv[1], os.environ['RANK']), 'w').write(line)\n"
            "dist.destroy_process_group()\n"
        )
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--standalone"]
        options = ["--limit", "16MiB", "--per-node", "--device", "cpu", "--store", folder]
        for name, words, lms in (
            ("inside", [*launcher, "-m", "torch.lms", "run", *options, program], None),
            ("around", [*launcher, program], options),
        ):
            Path(folder, name).mkdir()
            result = run([*words, name, "--x"], folder, lms)
            assert result.returncode == 0, result
            for rank in ("0", "1"):
                line = Path(folder, name, rank).read_text()
                assert line == f"{rank} ['{name}', '--x'] {8 * MIB} True", (line, result)

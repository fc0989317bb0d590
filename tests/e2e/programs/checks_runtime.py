"""Threads, processes, data loaders, profiler, switching on and off, faults that are not ours, the interpreter's end."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from common import MIB, directory, in_fork, raises
from support import away, data, enable, models, no_faults, page_out, pressure, python, same, stat
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def train(steps: int = 3) -> list[object]:
    trainer = models().make("transformer", scale=0.5)
    return [trainer.step() for _ in range(steps)] + [tensor.clone() for tensor in trainer.tensors()]


def check_autograd_threads() -> None:
    # Backward passes that several threads start at once, over shared parameters, each into its own gradients.
    torch.manual_seed(0)
    weights = [data(1, i).view(512, 512) / 1000 for i in range(8)]

    def gradients(seed: int) -> list[torch.Tensor]:
        x = data(0.25, seed).view(128, 512) / 1000
        leaves = [weight.detach().requires_grad_() for weight in weights]
        for leaf in leaves:
            x = torch.tanh(x @ leaf)
        return list(torch.autograd.grad(x.sum(), leaves))

    expected = [gradients(seed) for seed in range(4)]
    enable(10 * MIB)
    weights = [weight.clone() for weight in weights]
    actual: dict[int, list[torch.Tensor]] = {}

    def work(seed: int) -> None:
        for _ in range(3):
            actual[seed] = gradients(seed)

    run_threads([lambda seed=seed: work(seed) for seed in range(4)])  # type: ignore[misc]
    same([actual[seed] for seed in range(4)], expected)
    assert stat("out.bytes") > 0


def run_threads(work: list[Callable[[], object]]) -> None:
    with ThreadPoolExecutor(len(work)) as threads:
        for result in [threads.submit(function) for function in work]:
            result.result()


def check_python_threads_share_tensors() -> None:
    tensors = [data(1, i) for i in range(12)]
    expected = [torch.sin(tensor) for tensor in tensors]
    enable(6 * MIB)
    tensors = [tensor.clone() for tensor in tensors]

    def work(index: int) -> None:
        for round_ in range(20):
            which = (index * 5 + round_) % len(tensors)
            same(torch.sin(tensors[which]), expected[which])
            if round_ % 5 == 0:
                torch.lms.reclaim("cpu")
            assert tensors[which].numpy()[3] == float(tensors[which][3])

    run_threads([lambda index=index: work(index) for index in range(4)])  # type: ignore[misc]


def check_threads_and_switching() -> None:
    # One thread changes every setting while others compute.
    expected = [torch.cos(data(1, i)) for i in range(4)]
    enable(6 * MIB)
    stop = threading.Event()

    def work(index: int) -> None:
        while not stop.is_set():
            same(torch.cos(data(1, index)), expected[index])

    def switch() -> None:
        try:
            for round_ in range(12):
                enable((2 + round_) * MIB, policy="lru" if round_ % 2 else "iteration")
                torch.lms.set_limit("cpu", 5 * MIB)
                torch.lms.reclaim("cpu", MIB)
                torch.lms.stats("cpu")
                torch.lms.disable("cpu")
                torch.lms.reset_peak_stats("cpu")
        finally:
            stop.set()

    run_threads([lambda index=index: work(index) for index in range(3)] + [switch])  # type: ignore[misc]


def check_openmp_threads() -> None:
    torch.set_num_threads(2)
    expected = train(2)
    enable(12 * MIB)
    same(train(2), expected)
    assert stat("out.bytes") > 0


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tensors[index] * 2  # paged in, in the worker


def load(workers: int, store: str | None) -> None:
    tensors = [data(1, i) for i in range(12)]
    expected = [tensor * 2 for tensor in tensors]
    enable(6 * MIB, store=store)
    dataset = Samples([tensor.clone() for tensor in tensors])
    page_out()
    for persistent in (False, True) if workers else (False,):
        loader = torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=workers, persistent_workers=persistent)
        for _ in range(2):
            batches = []
            for batch in loader:
                batches.append(batch)
                pressure()
            same(torch.cat(batches).view(12, -1), torch.stack(expected))
    assert stat("out.bytes") > 0


def check_data_loader_workers() -> None:
    load(2, None)


def check_data_loader_workers_with_store_file() -> None:
    with directory() as folder:
        load(2, folder)


def check_data_loader_in_process() -> None:
    load(0, None)


def fork(store: str | None) -> None:
    count = 8
    tensors = [data(1, i) for i in range(count)]
    enable(4 * MIB, store=store)
    shared = [tensor.clone() for tensor in tensors]
    page_out()
    to_child, from_parent = os.pipe()
    to_parent, from_child = os.pipe()

    def child() -> None:
        same(shared, tensors)
        for tensor in shared:
            tensor.add_(100)
        page_out()  # the child writes its store while the parent writes its own
        os.write(from_child, b"x")
        os.read(to_child, 1)
        page_out()
        same(shared, [tensor + 100 for tensor in tensors])
        grandchildren_see_it()

    def grandchildren_see_it() -> None:
        in_fork(lambda: same(shared, [tensor + 100 for tensor in tensors]))

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child()
            status = 0
        finally:
            os._exit(status)
    for tensor in shared[: count // 2]:
        tensor.mul_(3)
    page_out()
    os.read(to_parent, 1)
    same(shared, [tensor * 3 for tensor in tensors[: count // 2]] + tensors[count // 2 :])
    page_out()
    os.write(from_parent, b"x")
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
    same(shared, [tensor * 3 for tensor in tensors[: count // 2]] + tensors[count // 2 :])


def check_fork_with_blocks_away() -> None:
    fork(None)


def check_fork_with_blocks_away_in_store_file() -> None:
    with directory() as folder:
        fork(folder)


def check_fork_while_threads_run() -> None:
    # The locks must be usable in the child whatever other threads were doing at the fork.
    enable(6 * MIB)
    tensors = [data(1, i) for i in range(8)]
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            for tensor in tensors:
                torch.sin(tensor)

    def child() -> None:
        same([tensor + 0 for tensor in tensors], [data(1, i) for i in range(8)])

    child()  # PyTorch sets functions up on their first call, under a lock of the C library that a fork may leave locked
    torch.sin(tensors[0])
    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(8):
            in_fork(child)
    finally:
        stop.set()
        thread.join()


def check_fork_then_train_in_both() -> None:
    expected = train()
    enable(12 * MIB)
    kept = away(data(2))

    def child() -> None:
        same(train(), expected)
        same(kept, data(2))

    in_fork(child)
    same(train(), expected)
    same(kept, data(2))


def check_multiprocessing_queue() -> None:
    expected = data(2)
    enable()
    context = torch.multiprocessing.get_context("fork")
    queue = context.Queue()
    tensor = away(expected)

    def child() -> None:
        queue.put(tensor + 1)
        done.get()

    done = context.Queue()
    process = context.Process(target=child)
    process.start()
    received = queue.get(timeout=60)
    same(received, expected + 1)
    done.put(None)
    process.join()
    assert process.exitcode == 0


def check_checkpointing() -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Dropout(0.1), torch.nn.GELU()) for _ in range(6))
        )
        x = (data(1, 1).view(1024, 256) / 1000).requires_grad_()
        y = x
        for layer in layers:
            y = checkpoint(layer, y, use_reentrant=False)
        y = checkpoint_sequential(layers, 3, y, use_reentrant=False)
        y.sum().backward()
        return [x.grad, *(parameter.grad for parameter in layers.parameters())]  # type: ignore[list-item]

    expected = run()
    enable(4 * MIB)
    same(run(), expected)
    assert stat("out.bytes") > 0


def check_saved_tensor_hooks_and_double_backward() -> None:
    def run() -> list[torch.Tensor]:
        x = (data(1, 1).view(512, 512) / 1000).requires_grad_()
        with torch.autograd.graph.save_on_cpu():
            y = torch.tanh(x @ x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        assert x.grad is not None
        return [first.detach(), x.grad]

    expected = run()
    enable(3 * MIB)
    same(run(), expected)


def check_foreach_and_fused_optimizers() -> None:
    def run(**options: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        for _ in range(3):
            optimizer.zero_grad()
            model(data(0.25, 3).view(256, 256) / 1000).pow(2).mean().backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    for options in ({"foreach": True}, {"fused": True}, {"amsgrad": True}):
        expected = run(**options)
        enable(2 * MIB)
        same(run(**options), expected)
        torch.lms.disable("cpu")


def check_profiler_at_the_same_time() -> None:
    expected = train()
    enable(12 * MIB)
    with torch.profiler.profile(record_shapes=True, profile_memory=True) as profile:
        actual = train()
    same(actual, expected)
    events = {event.key for event in profile.key_averages()}
    assert "aten::addmm" in events and not [name for name in events if name.startswith("lms")]
    with torch.autograd.profiler.emit_itt(False), torch.autograd.profiler.record_function("user"):
        same(train(), expected)


def check_trace() -> None:
    enable(12 * MIB)
    kept = data(1)
    with directory() as folder:
        path = os.path.join(folder, "trace")
        torch.lms.trace_start("cpu", path)
        train(1)
        written = os.path.getsize(path)
        assert written > 0
        with raises(RuntimeError, "a trace is being recorded"):
            torch.lms.trace_start("cpu", path)
        assert os.path.getsize(path) >= written  # it goes on
        torch.lms.trace_stop("cpu")
        with open(path) as file:
            lines = [line.split() for line in file]
    kinds = {line[0] for line in lines}
    assert kinds == {"b", "e", "a", "r", "w", "f"}, kinds
    allocated = {line[3]: int(line[4]) for line in lines if line[0] == "a"}
    assert MIB in allocated.values() and kept is not None
    assert all(line[3] in allocated for line in lines if line[0] in "rwf")
    times = [int(line[1]) for line in lines]
    assert times == sorted(times)


def check_enable_with_live_tensors() -> None:
    before = data(1, 1)
    expected = before * 3
    enable(2 * MIB)
    other = data(1, 2)
    page_out()
    same(before * 3, expected)
    torch.lms.disable("cpu")
    assert not torch.lms.is_enabled("cpu") and stat("away_bytes.current") == 0
    same(other, data(1, 2))
    enable(2 * MIB)
    page_out()
    same([before * 3, other], [expected, data(1, 2)])


def check_switching_during_training() -> None:
    make = models().make

    def run(switch: Callable[[int], None]) -> list[object]:
        trainer = make("transformer", scale=0.5)
        result: list[object] = []
        for step in range(8):
            switch(step)
            result.append(trainer.step())
        return result + [tensor.clone() for tensor in trainer.tensors()]

    expected = run(lambda step: None)
    with directory() as folder:
        actions: dict[int, Callable[[], None]] = {
            1: lambda: enable(12 * MIB, policy="iteration"),
            2: lambda: torch.lms.disable("cpu"),
            3: lambda: enable(8 * MIB, policy="lru", min_size=1 << 14),
            4: lambda: torch.lms.set_limit("cpu", 6 * MIB),
            5: lambda: enable(6 * MIB, store=folder, policy="iteration"),
            6: lambda: enable(6 * MIB, min_size=1 << 20, strict=False),
            7: lambda: torch.lms.disable("cpu"),
        }
        same(run(lambda step: actions.get(step, lambda: None)()), expected)
    assert stat("out.bytes") > 0


def check_off_is_stock() -> None:
    # The address of a tensor is where the allocator put it: with LMS off, and after it was on, not in LMS's range.
    def outside(tensor: torch.Tensor) -> bool:
        before = stat("allocated_bytes.current")
        copy = tensor.clone()
        return stat("allocated_bytes.current") == before and copy is not None

    names = observed_operators()
    assert outside(data(1))
    enable()
    managed = data(1)
    assert not outside(data(1))
    torch.lms.disable("cpu")
    assert outside(data(1))
    uses = stat("pinned_bytes.current"), stat("allocations.cached") + stat("allocations.mapped")
    for _ in range(10):
        managed.add_(data(1))
    assert (stat("pinned_bytes.current"), stat("allocations.cached") + stat("allocations.mapped")) == uses
    assert observed_operators() == names == 0
    del managed
    assert stat("allocated_bytes.current") == 0


def observed_operators() -> int:
    """How many operations an observer of LMS saw: a trace notes each; 0 where none can be recorded."""
    from torch.lms import _library

    library, pager = _library.load(), _library.load().lms_torch_cpu_pager()
    if pager is None:
        return 0
    with directory() as folder:
        path = os.path.join(folder, "trace")
        _library.check(library.lms_trace_start(pager, path.encode()))
        torch.ones(8) + torch.ones(8)
        data(1)
        _library.check(library.lms_trace_stop(pager))
        with open(path) as file:
            return sum(line[0] == "b" for line in file)


def check_observer_counts_when_on() -> None:
    # The counterpart of check_off_is_stock: the same probe sees operations while LMS is on.
    enable()
    assert observed_operators() > 2


def check_import_is_cheap() -> None:
    result = python(
        "import sys, torch\n"
        "assert 'torch.lms' not in sys.modules\n"
        "import torch._inductor.output_code\n"
        "torch.lms.is_enabled('cpu')\n"
        "with torch.lms.pin(torch.ones(2)): pass\n"
        "assert 'libtorch_lms' not in open('/proc/self/maps').read()\n"
        "assert 'torch.lms._handout' not in sys.modules\n"
    )
    assert result.returncode == 0, result.stderr


SHUTDOWN = """
import sys, torch
torch.lms.enable("cpu", limit=1 << 20, store=sys.argv[1] or None)
kept = [torch.full((1 << 18,), float(i)) for i in range(8)]
torch.lms.reclaim("cpu")
assert torch.lms.stats("cpu")["away_bytes.current"] >= 6 << 20
class Late:
    def __del__(self):  # runs when the interpreter has taken most of itself apart
        assert float(self.tensor[5]) == 3.0
late = Late()
late.tensor = kept[3]
view = kept[4].numpy()
if sys.argv[2] == "exit":
    sys.exit(0)
if sys.argv[2] == "atexit":
    import atexit
    atexit.register(lambda: print(float((kept[2] + 1)[0])))
if sys.argv[2] == "error":
    raise KeyError("the program's own")
print("done")
"""


def check_interpreter_shutdown_with_blocks_away() -> None:
    with directory() as folder:
        for store in ("", folder):
            for how in ("", "exit", "atexit"):
                result = python(SHUTDOWN, store, how)
                assert (result.returncode, result.stderr) == (0, ""), (store, how, result)
        result = python(SHUTDOWN, folder, "error")
        assert result.returncode == 1 and "the program's own" in result.stderr
        assert os.listdir(folder) == []


FAULTS = """
import ctypes, faulthandler, sys, torch
if sys.argv[1] == "before": faulthandler.enable()
torch.lms.enable("cpu", limit=1 << 22)
if sys.argv[1] == "after": faulthandler.enable()
t = torch.ones(1 << 20)
torch.lms.reclaim("cpu")
assert ctypes.c_float.from_address(t.data_ptr() + 4096).value == 1.0
print("served", flush=True)
{crash}
"""


def check_genuine_segfault_reaches_the_previous_handler() -> None:
    for when in ("none", "before"):
        for crash in ("ctypes.string_at(8)", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"):
            result = python(FAULTS.format(crash=crash), when)
            assert result.stdout == "served\n" and result.returncode == -signal.SIGSEGV, (when, crash, result)
            assert ("Fatal Python error" in result.stderr) == (when == "before"), (when, crash, result)


def check_faulthandler_enabled_afterwards() -> None:
    # Python's handler is installed above LMS's, which then gets no fault: enabling LMS again puts it back on top.
    text = FAULTS.replace(
        'if sys.argv[1] == "after": faulthandler.enable()',
        'faulthandler.enable(); torch.lms.enable("cpu", limit=1 << 22)',
    )
    result = python(text.format(crash="ctypes.string_at(8)"), "none")
    assert result.stdout == "served\n" and result.returncode == -signal.SIGSEGV, result
    assert "Fatal Python error" in result.stderr
    result = python(FAULTS.format(crash=""), "after")
    assert result.returncode == 0 and result.stdout == "served\n", result


def check_fault_in_freed_memory_is_not_served() -> None:
    result = python(
        "import ctypes, torch\n"
        "torch.lms.enable('cpu', limit=0)\n"
        "t = torch.ones(1 << 20); address = t.data_ptr(); torch.lms.reclaim('cpu'); del t\n"
        "print('ready', flush=True)\n"
        "ctypes.string_at(address, 8)\n"
    )
    assert result.stdout == "ready\n" and result.returncode in (0, -signal.SIGSEGV), result


def check_faulthandler_dump_still_works() -> None:
    enable()
    tensor = away(data(1))
    with directory() as folder, open(os.path.join(folder, "dump"), "w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        assert "checks_runtime" in file.read()
    ctypes.string_at(tensor.data_ptr(), 16)
    assert stat("faults") == 1


def check_signals_interrupt_nothing() -> None:
    # Signals arrive while pages move: copies that they interrupt go on.
    ticks: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        with directory() as folder:
            enable(4 * MIB, store=folder)
            tensors = [data(1, i) for i in range(8)]
            for _ in range(5):
                for index, tensor in enumerate(tensors):
                    same(tensor + 0, data(1, index))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert ticks and stat("in.bytes") > 0


def check_garbage_of_cycles_is_freed() -> None:
    enable()
    for _ in range(3):
        holder: list[object] = [data(1)]
        holder.append(holder)
    del holder
    import gc

    gc.collect()
    assert stat("allocated_bytes.current") == 0


def check_no_faults_in_ordinary_training() -> None:
    enable(12 * MIB)
    train(1)
    with no_faults():
        train(1)

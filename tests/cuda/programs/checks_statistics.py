"""torch.cuda.memory_stats and memory_summary: the keys of the older implementations."""

from __future__ import annotations

import torch
from cuda_support import MIB, data, enable, equal, page_out, stat, to_cuda

SOURCES = ("freelist", "cudamalloc", "reclaim_one", "reclaim_fragments", "reclaim_all", "cudamalloc_retry")


POOLS = ("all", "large_pool", "small_pool")
KEYS = {
    "reclaimed",
    "reclaimed_bytes",
    *(f"alloc_distribution.{source}" for source in SOURCES),
    *(
        f"{key}.{pool}.{value}"
        for key in ("pinned", "pinned_bytes")
        for pool in POOLS
        for value in ("current", "peak", "allocated", "freed")
    ),
}


def check_keys_of_the_older_implementations() -> None:
    torch.cuda.init()
    small, large = torch.empty(1000, device="cuda"), torch.empty(4 * MIB, device="cuda")
    del large
    off = torch.cuda.memory_stats()
    assert set(off) >= KEYS, KEYS - set(off)
    assert off["reclaimed"] == off["reclaimed_bytes"] == 0
    for pinned, of in (("pinned", "allocation"), ("pinned_bytes", "allocated_bytes")):  # nothing can leave
        for pool in POOLS:
            for value in ("current", "peak", "allocated", "freed"):
                assert off[f"{pinned}.{pool}.{value}"] == off[f"{of}.{pool}.{value}"]
    assert {source: off[f"alloc_distribution.{source}"] for source in SOURCES} == {
        **dict.fromkeys(SOURCES, 0),
        "cudamalloc": off["segment.all.allocated"],
        "freelist": off["allocation.all.allocated"] - off["segment.all.allocated"],
    }
    assert not torch.lms._library.is_loaded() or torch.lms._library.pager(torch.lms._devices.find("cuda")) is None
    enable(64 * MIB)
    assert set(torch.cuda.memory_stats()) == set(off)
    tensors = to_cuda([data(4, seed) for seed in range(3)])
    page_out()
    on = torch.cuda.memory_stats()
    for key in ("pinned", "pinned_bytes"):
        for pool in POOLS:
            allocated, freed = on[f"{key}.{pool}.allocated"], on[f"{key}.{pool}.freed"]
            assert allocated - freed == on[f"{key}.{pool}.current"] <= on[f"{key}.{pool}.peak"], (key, pool, on)
    torch.lms.disable("cuda")
    off = torch.cuda.memory_stats()
    assert off["reclaimed"] == 3  # what was counted stays
    assert off["pinned_bytes.all.current"] == off["allocated_bytes.all.current"]
    assert off["alloc_distribution.freelist"] >= 0
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["reclaimed"] == 0
    del small, tensors


def check_functions_of_1_1_to_1_3() -> None:
    torch.cuda.init()
    small = torch.empty(1000, device="cuda")
    assert torch.cuda.memory_active() == torch.cuda.memory_allocated() > 0
    assert torch.cuda.memory_reclaimed() == 0
    before = torch.cuda.alloc_distribution()
    assert set(before) == {*SOURCES, "cudamalloc_over_limit", "cudamalloc_purge"} - {"cudamalloc_retry"}
    torch.cuda.set_enabled_lms(True)
    tensors = to_cuda([data(4, seed) for seed in range(3)])
    active = torch.cuda.memory_active("cuda:0")
    assert active == torch.cuda.memory_allocated() - 12 * MIB
    assert torch.cuda.alloc_distribution(0)["cudamalloc"] >= before["cudamalloc"] + 3
    torch.cuda.reclaim_inactive()
    assert torch.cuda.memory_reclaimed(torch.device("cuda")) == 12 * MIB
    assert torch.cuda.memory_active() == torch.cuda.memory_allocated() == active
    torch.cuda.reset_memory_reclaimed()
    torch.cuda.reset_alloc_distribution()
    assert torch.cuda.memory_reclaimed() == 0 and set(torch.cuda.alloc_distribution().values()) == {0}
    assert torch.cuda.memory_stats()["reclaimed_bytes"] == 12 * MIB  # each has a beginning of its own
    equal(tensors[0], data(4, 0))
    assert torch.cuda.alloc_distribution()["cudamalloc"] == 1
    torch.cuda.reclaim_inactive()
    assert torch.cuda.memory_reclaimed() == 4 * MIB
    assert torch.cuda.max_memory_active() >= active + 12 * MIB
    torch.cuda.reset_max_memory_active()
    assert torch.cuda.max_memory_active() == torch.cuda.memory_active()
    for name in torch.cuda._lms.__all__:
        assert getattr(torch.cuda, name) is getattr(torch.cuda.memory, name) is getattr(torch.cuda._lms, name), name
    del small


def check_reclaimed() -> None:
    enable(64 * MIB)
    tensors = to_cuda([data(4, seed) for seed in range(3)])
    small = torch.empty(1024, device="cuda")
    before = torch.cuda.memory_stats()
    assert before["reclaimed"] == before["reclaimed_bytes"] == 0
    # Everything large may leave, and what the stock allocator gave cannot.
    assert before["pinned_bytes.all.current"] == before["pinned_bytes.small_pool.current"] >= 4096
    assert before["pinned.all.current"] == before["pinned.small_pool.current"] >= 1
    assert before["pinned.large_pool.current"] == 0 and before["allocation.large_pool.current"] == 3
    torch.cuda.reclaim_inactive()
    after = torch.cuda.memory_stats()
    assert (after["reclaimed"], after["reclaimed_bytes"]) == (3, 12 * MIB)
    assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"] - 12 * MIB
    assert after["pinned_bytes.all.current"] == before["pinned_bytes.all.current"]
    assert after["pinned.all.current"] == before["pinned.all.current"] == after["allocation.all.current"]
    for seed, tensor in enumerate(tensors):
        equal(tensor, data(4, seed))
    page_out()  # read, not written, and copied all the same: no block of a device is clean
    assert torch.cuda.memory_stats()["reclaimed"] == stat("out.blocks") == 6 and stat("clean_drop.blocks") == 0
    with torch.lms.pin(tensors[0]):
        assert torch.cuda.memory_stats()["pinned_bytes.large_pool.current"] == 4 * MIB
        assert torch.cuda.memory_stats()["pinned.large_pool.current"] == 1
    del small


def distribution() -> dict[str, int]:
    stats = torch.cuda.memory_stats()
    return {source: stats[f"alloc_distribution.{source}"] for source in SOURCES}


def check_where_memory_came_from() -> None:
    torch.cuda.init()
    enable(16 * MIB, policy="lru")
    torch.cuda.reset_accumulated_memory_stats()
    known = distribution()
    assert set(known.values()) == {0}

    def expect(**expected: int) -> None:
        nonlocal known
        now = distribution()
        changes = {source: now[source] - known[source] for source in SOURCES}
        assert changes == {**dict.fromkeys(SOURCES, 0), **expected}, changes
        known = now

    tensors = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    expect(cudamalloc=4)
    del tensors[0]
    tensors.append(torch.empty(4 * MIB, dtype=torch.uint8, device="cuda"))
    expect(freelist=1)
    other = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    expect(reclaim_one=1)
    larger = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    expect(reclaim_fragments=1)
    torch.cuda.reclaim_inactive()
    with torch.lms.pin(tensors[0]):
        expect(cudamalloc=1)  # its memory had been given back
        largest = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
        expect(reclaim_all=1)
    del other, larger, largest
    small = [torch.empty(1000, device="cuda") for _ in range(3)]  # from one segment of the stock allocator
    expect(cudamalloc=1, freelist=2)
    torch.cuda.reset_accumulated_memory_stats()
    assert set(distribution().values()) == {0}
    del small


def check_reset_of_accumulated_stats() -> None:
    enable(64 * MIB)
    tensors = to_cuda([data(4, seed) for seed in range(3)])
    page_out()
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["reclaimed"] == 0
    equal(tensors[0], data(4, 0))
    page_out()
    assert torch.cuda.memory_stats()["reclaimed"] == 1


def check_allocated_and_reserved_include_managed_memory() -> None:
    torch.cuda.init()
    before = torch.cuda.memory_allocated()
    enable(8 * MIB)
    tensors = to_cuda([data(4, seed) for seed in range(4)])
    assert torch.cuda.memory_allocated() == before + stat("resident_bytes.current") == before + 8 * MIB
    assert torch.cuda.memory_reserved() >= stat("device_bytes.current")
    assert torch.cuda.max_memory_allocated() >= before + 8 * MIB
    del tensors
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()


def check_summary() -> None:
    torch.cuda.init()
    stock = torch.cuda.memory_summary()
    enable(8 * MIB)
    tensors = to_cuda([data(4, seed) for seed in range(4)])
    for text in (torch.cuda.memory_summary(), torch.cuda.memory.memory_summary("cuda:0", abbreviated=True)):
        lines = text.splitlines()
        assert {len(line) for line in lines} == {77}, lines
        assert any("Large Model Support" in line for line in lines)
        assert any("of it paged out" in line and "8.0 MiB" in line for line in lines), text
        assert any("Limit" in line and "8.0 MiB" in line for line in lines)
    torch.lms.disable("cuda")
    assert "Large Model Support" not in torch.cuda.memory_summary()
    assert len(torch.cuda.memory_summary().splitlines()) == len(stock.splitlines())
    del tensors

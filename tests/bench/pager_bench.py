"""Builds pager_bench.cc and disk_bench.cc as the patched framework builds the pager, runs them, and prints their figures.

python tests/bench/pager_bench.py [--store FOLDER] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGER = HERE.parents[1] / "patches" / "src" / "pager"


def run(folder: Path, store: Path) -> dict[str, Any]:
    """Builds in `folder` and returns what the programs printed; `store` is where the second writes."""
    subprocess.run(["cmake", "-S", PAGER, "-B", folder, "--preset", "bench"], check=True, stdout=subprocess.DEVNULL)
    result: dict[str, Any] = {}
    for words in (["pager_bench"], ["disk_bench", str(store)]):
        build = ["cmake", "--build", folder, "--target", words[0]]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        command = [folder / "bin" / words[0], *words[1:]]
        result.update(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    return result


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def size(value: int) -> str:
    return f"{value >> 20} MiB" if value >= 1 << 20 else f"{value >> 10} KiB"


def table(head: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [head, *rows]
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path.cwd(), help="folder on the disk to use (default: this one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(Path(folder), arguments.store)
    result["processor"] = processor()
    result["processors"] = os.cpu_count()
    print(f"{result['processor']}, {result['processors']} processors\n")
    print(
        "Nanoseconds, best of five; few: 64 blocks a thread, spread over all that live; all: every one, random order\n"
    )
    print(
        table(
            ["live blocks", "threads", "pin + unpin, few", "pin + unpin, all", "cached allocate + free"],
            [
                [
                    f"{row['live_blocks']:,}",
                    str(row["threads"]),
                    f"{row['pin_unpin_few_ns']:.0f}",
                    f"{row['pin_unpin_all_ns']:.0f}",
                    f"{row['allocate_free_ns']:.0f}",
                ]
                for row in result["hot_paths"]
            ],
        )
    )
    print("\nPages, memory store, GB/s (a clean drop moves nothing: microseconds a block)\n")
    print(
        table(
            ["block", "out", "in", "memcpy", "clean drop"],
            [
                [
                    size(row["block_bytes"]),
                    f"{row['out_gbps']:.2f}",
                    f"{row['in_gbps']:.2f}",
                    f"{row['memcpy_gbps']:.2f}",
                    f"{row['clean_drop_us']:.1f}",
                ]
                for row in result["traffic"]
            ],
        )
    )
    print("\nStore in files, GB/s, by how many blocks are moved at a time, and with one without checksums\n")
    speeds = {(row["block_bytes"], row["threads"], row["checks"]): row for row in result["disk"]}
    ways = [(1, True), (2, True), (3, True), (4, True), (1, False)]
    print(
        table(
            ["block", "", "1", "2", "3", "4", "1, no checksum"],
            [
                [size(nbytes), way, *(f"{speeds[(nbytes, *each)][f'{way}_gbps']:.2f}" for each in ways)]
                for nbytes in sorted({row["block_bytes"] for row in result["disk"]})
                for way in ("out", "in")
            ],
        )
    )
    print(f"\nEight blocks of 64 KiB written together, GB/s: {result['gathered_out_gbps']:.2f}")
    print("\nChecksums, GB/s: {cached_gbps:.1f} in the cache, {uncached_gbps:.1f} beyond".format(**result["checksum"]))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Builds rows on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from lmsbuild import command
from lmsbuild.ending import signals
from lmsbuild.matrix import build_row
from lmsbuild.matrix.board import Board
from lmsbuild.matrix.build_row import Job, Outcome


def build(jobs: Sequence[Job], at_once: int, board: Board) -> Iterator[Outcome]:
    """Yields what became of each row, as it is known. An interruption ends what is running."""

    def run(job: Job) -> Outcome:
        board.begin(job.row)
        return build_row.run(job)

    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(run, job) for job in jobs]
        try:
            for future in signals.completed(futures):
                yield future.result()
        except BaseException as error:
            for future in futures:
                future.cancel()
            command.end_all(for_good=isinstance(error, KeyboardInterrupt))
            raise

"""Builds rows on the workers of a Dask cluster, which write to the same output folder as this machine.

The scheduler gives the row of a worker that is lost to another one, as often as its setting `allowed-failures` says. A row
that fails by itself has an outcome like any other, and is not tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lmsbuild import report
from lmsbuild.errors import NoCluster
from lmsbuild.matrix import build_row, remote
from lmsbuild.matrix.build_row import Job, Outcome

if TYPE_CHECKING:
    from distributed import Client, Future

PATIENCE = 30  # seconds for the scheduler to answer


def build(jobs: Sequence[Job], address: str) -> Iterator[Outcome]:
    """Yields what became of each row, as it is known. Raises NoCluster."""
    with _connect(address) as client:
        workers = len(client.nthreads())
        number = f"{workers} worker{'s' if workers > 1 else ''}"
        report.note(f"{number} at {address}" if workers else f"{address} has no worker yet: rows wait for one")
        yield from _collect(client, address, jobs)


def _connect(address: str) -> Client:
    try:
        from distributed import Client
    except ImportError as error:
        raise NoCluster("--dask needs Dask: `pip install 'lmsbuild[dask]'`, here and on every worker") from error
    except ValueError as error:  # of its files, which it reads as it is imported
        raise NoCluster(f"Dask cannot be configured as its files or variables say: {error}") from error
    if not address:  # Dask would start a cluster here
        raise NoCluster(
            "--dask has an empty address: give the one that `dask scheduler` prints, such as tcp://10.0.0.1:8786"
        )
    # It shows tracebacks of what is said here in a sentence.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        return Client(address, timeout=PATIENCE, name="lmsbuild")
    except (OSError, ValueError) as error:  # a timeout is an OSError
        raise NoCluster(
            f"no Dask scheduler answers at {address} ({error}): start one with `dask scheduler`, and give the address that "
            "it prints, such as tcp://10.0.0.1:8786"
        ) from error


def _collect(client: Client, address: str, jobs: Sequence[Job]) -> Iterator[Outcome]:
    from distributed import as_completed

    # The first in the list come first: the wheels, which packages are made from.
    futures = {}
    for i, job in enumerate(jobs):
        named = {"key": f"{job.row.name}-{uuid4().hex}", "priority": -i}
        futures[client.submit(eval, remote.EXPRESSION, {"job": remote.packed(job)}, pure=False, **named)] = job
    try:
        for future in as_completed(futures):
            yield _outcome(future, futures[future], address)
    except BaseException:
        client.cancel(list(futures), force=True)  # what runs already ends by itself, and leaves its stamp
        raise


def _outcome(future: Future, job: Job, address: str) -> Outcome:
    from distributed import KilledWorker

    if future.status == "finished":
        return verified(remote.outcome(future.result()), job)
    if future.status != "error":
        raise NoCluster(
            f"the scheduler at {address} went away: what is built stays; the same command goes on with the rest"
        )
    error: Any = future.exception()
    if isinstance(error, KilledWorker):
        reason = f"every worker that built it was lost, the last at {error.last_worker.address}: has it enough memory?"
        return build_row.failed(job.row, reason, 1)
    if isinstance(error, ImportError):
        return build_row.failed(job.row, f"a worker cannot import lmsbuild, install it there: {error}", 1)
    return build_row.failed(job.row, f"{type(error).__name__}: {error}", 1)


def verified(outcome: Outcome, job: Job) -> Outcome:
    """What a worker says that it built has to be here as well."""
    for product in outcome.products:
        if not product.is_in(job.output):
            return build_row.failed(
                job.row,
                f"{outcome.host} wrote {product.path}, which is not in {job.output} here, or is another file: --output has to "
                "be a folder that all machines share, under one path",
                1,
            )
    return outcome

"""Runs drive.py in forks of this process, which has imported the tool: a start of its own would import for most of a second.

Usage: drive_forks.py, with a socket for standard input. A request is a JSON object: the words of drive.py, its folder and its
variables; with it come the files for what it prints, and a socket for the answer, which are its process and then its exit status.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import socket
import sys
from typing import Any

import drive
import lmsbuild

LARGEST = 1 << 17  # bytes of a request


def import_tool() -> None:
    for module in pkgutil.walk_packages(lmsbuild.__path__, "lmsbuild."):
        if ".programs" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, "a process with threads cannot be forked"


def next_request(requests: socket.socket) -> dict[str, Any]:
    """Returns, in a process for it, what is to be run. Ends when nobody can ask any more."""
    while True:
        data, files, _, _ = socket.recv_fds(requests, LARGEST, 3)
        if not data:
            sys.exit()
        if os.fork() == 0:
            requests.close()
            output, errors, answer = files
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child = os.fork()
            if child == 0:
                os.dup2(output, 1)
                os.dup2(errors, 2)
                for file in files:
                    os.close(file)
                request: dict[str, Any] = json.loads(data)
                return request
            os.write(answer, f"{child}\n".encode())
            _, status = os.waitpid(child, 0)
            os.write(answer, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)
        for file in files:
            os.close(file)


def main() -> None:
    import_tool()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that answer
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    request = next_request(requests)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    drive.main(request["words"])


main()

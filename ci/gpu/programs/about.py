"""Says which torch this interpreter has, and which device: one JSON object. Needs no device."""

import ctypes
import json
import os
import platform
from pathlib import Path

import torch


def device() -> dict[str, object] | None:
    """The first CUDA device, or None when there is none."""
    if not torch.cuda.is_available():
        return None
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "gpu_memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver_cuda_version": f"{version.value // 1000}.{version.value % 1000 // 10}",
    }


print(
    json.dumps(
        {
            "version": str(torch.__version__),
            "commit": torch.version.git_version,
            "cuda": torch.version.cuda,
            "folder": str(Path(torch.__file__).parent),
            "new_strings": torch.compiled_with_cxx11_abi(),
            "python": platform.python_version(),
            "cpus": len(os.sched_getaffinity(0)),
            "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "device": device(),
        }
    )
)

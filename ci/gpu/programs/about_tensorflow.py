"""Says which TensorFlow this interpreter has, and which GPUs it sees: one JSON object. Makes no device."""

import json
import os
import platform

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

build = tf.sysconfig.get_build_info()
gpus = tf.config.list_physical_devices("GPU")
print(
    json.dumps(
        {
            "version": tf.__version__,
            "cuda": build.get("cuda_version"),
            "lms": hasattr(tf, "lms"),
            "python": platform.python_version(),
            "cpus": len(os.sched_getaffinity(0)),
            "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "gpus": [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus],
        }
    )
)

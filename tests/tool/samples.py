"""Where the tests run a sample of something large, LMS_TEST_FULL=1 has them run all of it."""

import os

FULL = os.environ.get("LMS_TEST_FULL", "0") != "0"

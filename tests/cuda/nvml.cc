// As much of libnvidia-ml.so.1 as TensorFlow 2.21 wants before it makes devices of the simulated GPUs. What else it
// asks for, the board behind a device, it does without.
extern "C" {
int nvmlInit_v2() { return 0; }   // NOLINT(readability-identifier-naming)
int nvmlShutdown() { return 0; }  // NOLINT(readability-identifier-naming)
}

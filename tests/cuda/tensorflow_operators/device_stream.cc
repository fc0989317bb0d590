#include "device_stream.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#if __has_include("tensorflow/compiler/xla/stream_executor/stream.h")
#include "tensorflow/compiler/xla/stream_executor/stream.h"
#if __has_include("tensorflow/compiler/xla/stream_executor/stream_executor_internal.h")
#include "tensorflow/compiler/xla/stream_executor/stream_executor_internal.h"
#endif
#else  // until 2.9
#include "tensorflow/stream_executor/stream.h"
#include "tensorflow/stream_executor/stream_executor_internal.h"
#endif
#include "sim.h"
#include "tensorflow/core/framework/device_base.h"

// The driver's, without its headers.
extern "C" {
int cuCtxGetDevice(int* device);  // NOLINT(readability-identifier-naming)
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument);  // NOLINT(readability-identifier-naming)
int cuStreamSynchronize(void* stream);  // NOLINT(readability-identifier-naming)
}

namespace stand_in {
namespace {

// The CUstream of a stream. Until 2.14 the executor shows where it keeps it.
template <typename Stream>
auto handle_of(Stream* stream, int /*preferred*/) -> decltype(stream->platform_specific_handle().stream) {
  return stream->platform_specific_handle().stream;
}
template <typename Stream>
void* handle_of(Stream* stream, long /*otherwise*/) {
  return *stream->implementation()->GpuStreamMemberHack();
}

Status checked(const char* function, int code) {
  return code == 0 ? Status() : internal(std::string(function) + " failed: " + std::to_string(code));
}

struct Work {
  std::string name;
  int device;
  std::function<Status()> function;
};

void run(void* argument) {
  const std::unique_ptr<Work> work(static_cast<Work*>(argument));
  const Status status = work->function();
  if (!status.ok()) {
    std::fprintf(stderr, "stand-in for %s: %s\n", work->name.c_str(), status.ToString().c_str());
    sim_illegal_access(work->device);
  }
}

}  // namespace

DeviceStream::DeviceStream(tensorflow::OpKernelContext* context)
    : handle_(handle_of(context->op_device_context()->stream(), 0)) {
  if (cuCtxGetDevice(&device_) != 0) {
    device_ = -1;
  }
}

Status DeviceStream::enqueue(const char* name, std::function<Status()> work) const {
  auto* argument = new Work{name, device_, std::move(work)};
  const int code = cuLaunchHostFunc(handle_, &run, argument);
  if (code != 0) {
    delete argument;  // otherwise run() has it
  }
  return checked("cuLaunchHostFunc", code);
}

Status DeviceStream::enqueue_copy(const DeviceTensor& from, const DeviceTensor& to) const {
  return enqueue("a copy", [from, to, device = device_] {
    if (from.bytes != to.bytes || !accessible(device, from, /*write=*/false) ||
        !accessible(device, to, /*write=*/true)) {
      return internal("an illegal address");
    }
    std::memcpy(to.address, from.address, to.bytes);
    return Status();
  });
}

Status DeviceStream::wait() const { return checked("cuStreamSynchronize", cuStreamSynchronize(handle_)); }

}  // namespace stand_in

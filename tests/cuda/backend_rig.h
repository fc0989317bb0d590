// What the tests of the CUDA backend share: a backend on the simulated device, a program's streams, and "kernels" whose
// contents can be told from each other. A kernel is a host function of the stream, so it runs when the simulation's
// schedule says so, and sees of the device what is mapped at that moment.
#ifndef LMS_TESTS_BACKEND_RIG_H
#define LMS_TESTS_BACKEND_RIG_H

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_chunks.h"
#include "check.h"
#include "sim.h"

// The driver's functions that a program calls.
extern "C" {
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxPushCurrent_v2(void* context);
int cuCtxPopCurrent_v2(void** context);
int cuCtxGetCurrent(void** context);
int cuStreamCreate(void** stream, unsigned flags);
int cuStreamDestroy_v2(void* stream);
int cuStreamSynchronize(void* stream);
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* data);
int cuStreamBeginCapture_v2(void* stream, int mode);
int cuStreamEndCapture(void* stream, void** graph);
}

namespace rig {

using check::mib;
using lms::Access;
using lms::Slot;
using lms::StreamId;
using lms::Uses;

constexpr std::uint64_t page = lms::cuda_page_bytes;
constexpr std::uint64_t large_chunk = lms::cuda_largest_chunk;

inline void require(int result, const char* what) {
  if (result != 0) {
    CHECK_FAIL("%s failed with %d", what, result);
  }
}

// The context that the framework's threads have.
inline void set_device() {
  void* context = nullptr;
  require(cuInit(0), "cuInit");
  require(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  require(cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
}

class Program {
 public:
  // `streams` streams as a framework makes them.
  explicit Program(unsigned streams, std::uint64_t address_space = std::uint64_t{8} << 30) {
    set_device();
    lms::Status status;
    backend = lms::make_cuda_backend(0, address_space, &status);
    if (backend == nullptr) {
      CHECK_FAIL("no backend: %s", status.message.c_str());
    }
    store = backend->make_memory_store();
    for (unsigned index = 0; index < streams; ++index) {
      void* handle = nullptr;
      require(cuStreamCreate(&handle, 1), "cuStreamCreate");
      handles.push_back(handle);
      ids.push_back(backend->stream(reinterpret_cast<std::uintptr_t>(handle), /*lasting=*/true));
    }
  }

  void launch(unsigned stream, std::function<void()> work) {
    auto* kept = new std::function<void()>(std::move(work));
    const int result = cuLaunchHostFunc(
        handles[stream],
        [](void* data) {
          std::unique_ptr<std::function<void()>> run(static_cast<std::function<void()>*>(data));
          (*run)();
        },
        kept);
    if (result != 0) {
      delete kept;
    }
    failed_launches += result != 0 ? 1 : 0;
  }

  // A kernel that writes contents which the seed determines: the start of every page, which is what the simulation
  // copies with its option "sample".
  void write(unsigned stream, char* address, std::uint64_t bytes, std::uint64_t seed) {
    launch(stream, [=] {
      for (std::uint64_t offset = 0; offset < bytes; offset += page) {
        if (std::uint64_t* words = at(address + offset, 3)) {
          words[0] = check::pattern_at(seed, offset);
          words[7] = check::pattern_at(seed, offset + 7);
        } else {
          sim_illegal_access(0);
          return;
        }
      }
    });
  }

  // A kernel that reads, and counts what is not as it was written.
  void read(unsigned stream, const char* address, std::uint64_t bytes, std::uint64_t seed) {
    launch(stream, [=] {
      for (std::uint64_t offset = 0; offset < bytes; offset += page) {
        const std::uint64_t* words = at(address + offset, 1);
        if (words == nullptr) {
          sim_illegal_access(0);
          return;
        }
        if (words[0] != check::pattern_at(seed, offset) || words[7] != check::pattern_at(seed, offset + 7)) {
          wrong.fetch_add(1);
          return;
        }
      }
    });
  }

  // The uses of what the stream was given so far.
  Uses uses(unsigned stream) const { return Uses{lms::stream_bit(ids[stream]), backend->now()}; }

  static std::uint64_t* at(const char* address, int access) {
    return static_cast<std::uint64_t*>(sim_pointer(0, reinterpret_cast<std::uintptr_t>(address), 64, access));
  }

  static bool accessible(const char* address, std::uint64_t bytes, int access = 1) {
    return sim_accessible(0, reinterpret_cast<std::uintptr_t>(address), bytes, access) != 0;
  }

  char* place(std::uint64_t offset) const { return backend->base() + offset; }

  // A range that a kernel on the stream fills.
  char* filled(unsigned stream, std::uint64_t offset, std::uint64_t bytes, std::uint64_t seed) {
    char* address = place(offset);
    CHECK(backend->map(address, bytes, ids[stream]));
    write(stream, address, bytes, seed);
    return address;
  }

  Slot slot(std::uint64_t bytes) {
    Slot result;
    CHECK(store->allocate(bytes, &result));
    return result;
  }

  std::unique_ptr<lms::CudaBackend> backend;
  std::unique_ptr<lms::Store> store;
  std::vector<void*> handles;
  std::vector<StreamId> ids;
  std::atomic<std::uint64_t> wrong{0};
  std::atomic<std::uint64_t> failed_launches{0};
};

}  // namespace rig

#endif  // LMS_TESTS_BACKEND_RIG_H

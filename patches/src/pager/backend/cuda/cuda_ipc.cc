#include "cuda_ipc.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "../../arena.h"

// The numbers are the same on every architecture; the C library of some build systems is older than the calls.
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace lms {

namespace {

// A descriptor of this process for the owner's `file`, or -1 with cuda_failure() set.
int cuda_ipc_fetch(int process, int file) {
  const int fetched = static_cast<int>(syscall(SYS_pidfd_getfd, process, file, 0));
  if (fetched < 0) {
    cuda_fail(std::string("the other process's memory handle cannot be fetched (pidfd_getfd: ") + std::strerror(errno) +
              "); it needs Linux 5.6 or later, and the permission to trace that process (kernel.yama.ptrace_scope)");
  }
  return fetched;
}

}  // namespace

std::unique_ptr<CudaImport> CudaImport::open(int device, std::int64_t process, const std::vector<CudaExport>& exports,
                                             std::string* error) {
  Status status;
  const std::shared_ptr<CudaDevice> opened = CudaDevice::open(device, &status);
  if (opened == nullptr) {
    *error = status.message;
    return nullptr;
  }
  const CudaScope scope(*opened);
  std::uint64_t bytes = 0;
  for (const CudaExport& one : exports) {
    bytes += one.bytes;
  }
  CudaAddress address = 0;
  if (!scope.ok() || !opened->check(opened->driver.mem_address_reserve(&address, bytes, Arena::large_block, 0, 0),
                                    "cuMemAddressReserve")) {
    *error = cuda_failure();
    return nullptr;
  }
  auto import = std::make_unique<CudaImport>(opened, address, bytes);
  if (!import->map(process, exports)) {
    *error = cuda_failure();
    return nullptr;
  }
  return import;
}

bool CudaImport::map(std::int64_t process, const std::vector<CudaExport>& exports) {
  const CudaDriver& driver = device_->driver;
  const int owner = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(process), 0));
  if (owner < 0) {
    return cuda_fail(std::string("the process that owns the memory cannot be found (pidfd_open: ") +
                     std::strerror(errno) + ")");
  }
  bool mapped = true;
  for (const CudaExport& one : exports) {
    const int file = cuda_ipc_fetch(owner, one.file);
    CudaMemory memory = 0;
    mapped = file >= 0 &&
             device_->check(driver.mem_import(&memory, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                                              cuda::handle_posix_file),
                            "cuMemImportFromShareableHandle");
    if (file >= 0) {
      close(file);
    }
    if (mapped) {
      mapped = device_->map(address_ + mapped_, one.bytes, memory);
      driver.mem_release(memory);  // the mapping keeps it
    }
    if (!mapped) {
      break;
    }
    mapped_ += one.bytes;
  }
  close(owner);
  const cuda::AccessDescription access = {{cuda::location_device, device_->id}, cuda::access_read_write};
  return mapped && device_->set_access(address_, bytes_, &access, 1);
}

CudaImport::~CudaImport() {
  const CudaScope scope(*device_);
  if (!scope.ok()) {
    return;
  }
  if (mapped_ > 0) {
    device_->unmap(address_, mapped_);
  }
  device_->driver.mem_address_free(address_, bytes_);
}

}  // namespace lms

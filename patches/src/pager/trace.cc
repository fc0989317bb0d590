#include "trace.h"

#include <cinttypes>

namespace lms {

void Trace::use(const Event& event, std::uint32_t thread) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (file_ == nullptr) {
    return;
  }
  if (event.block >= serials_.size()) {
    serials_.resize(event.block + 1, UINT64_MAX);
  }
  std::uint64_t& serial = serials_[event.block];
  const std::uint64_t now = nanoseconds();
  switch (event.use) {
    case Use::allocate:
      serial = next_serial_++;
      std::fprintf(file_, "a %" PRIu64 " %" PRIu32 " %" PRIu64 " %" PRIu64 "\n", now, thread, serial, event.bytes);
      break;
    case Use::read:
    case Use::write:
    case Use::free:
      if (serial == UINT64_MAX) {
        return;  // freed between the start of the trace and the listing of the blocks alive
      }
      std::fprintf(file_, "%c %" PRIu64 " %" PRIu32 " %" PRIu64 "\n",
                   event.use == Use::read ? 'r' : (event.use == Use::write ? 'w' : 'f'), now, thread, serial);
      break;
  }
}

bool Trace::close() {
  const std::lock_guard<std::mutex> guard(lock_);
  const bool written = std::ferror(file_) == 0;
  const bool closed = std::fclose(file_) == 0;
  file_ = nullptr;
  return written && closed;
}

void Trace::line(char what, std::uint32_t thread) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (file_ != nullptr) {
    std::fprintf(file_, "%c %" PRIu64 " %" PRIu32 "\n", what, nanoseconds(), thread);
  }
}

std::uint64_t Trace::nanoseconds() const {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count());
}

}  // namespace lms

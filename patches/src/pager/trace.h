// Writes the block trace that lms.h documents at lms_trace_start. Thread-safe.
#ifndef LMS_TRACE_H
#define LMS_TRACE_H

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <vector>

#include "event.h"

namespace lms {

class Trace {
 public:
  // Takes the open file over.
  explicit Trace(std::FILE* file) : file_(file), start_(std::chrono::steady_clock::now()) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  void begin(std::uint32_t thread) { line('b', thread); }
  void end(std::uint32_t thread) { line('e', thread); }
  void use(const Event& event, std::uint32_t thread);

  // Around a fork: the child must not write out again what the parent had buffered.
  void before_fork() {
    lock_.lock();
    if (file_ != nullptr) {
      std::fflush(file_);
    }
  }
  void after_fork() { lock_.unlock(); }

  // Flushes and closes. False when not every line could be written.
  bool close();

 private:
  void line(char what, std::uint32_t thread);
  std::uint64_t nanoseconds() const;

  std::mutex lock_;
  std::FILE* file_;
  std::chrono::steady_clock::time_point start_;
  std::vector<std::uint64_t> serials_;  // by block id: its number in the trace
  std::uint64_t next_serial_ = 0;
};

}  // namespace lms
#endif  // LMS_TRACE_H

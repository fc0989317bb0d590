// Virtual time (option "mode" timed): what a program takes on the machine that a file describes.
//
// A kernel takes max(FLOP / peak, bytes / bandwidth of the memory) and what the device needs to start it; a copy takes
// a latency and bytes / bandwidth of the link; a call takes the host what the file says. Every device has one engine
// for kernels and one for copies each way, each of which does one thing at a time. Every host thread has a clock of its
// own where libturns.so (turns.h) is preloaded, and the driver's lock lets one call run at a time; else all share one.
//
// What was enqueued runs at once, in the order of the calls, and when it would have ended is computed then: an
// operation begins when the host has enqueued it, what it waits for is over, and its engine has a gap that is long
// enough.
//
// A machine's file has lines "name = number # where from" in seconds, bytes and FLOP per second; machines/*.toml.
#ifndef SIM_CLOCK_H
#define SIM_CLOCK_H

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "settings.h"

namespace sim {

using Nanoseconds = std::uint64_t;

enum class Engine : std::uint8_t { none, compute, in, out };

// What an operation takes of its device.
struct Cost {
  Engine engine = Engine::none;
  Nanoseconds time = 0;
  std::uint64_t bytes = 0;
  std::string name;
  // Where set: given when the operation could begin, says when it does. May take real time, and is called unlocked.
  std::function<Nanoseconds(Nanoseconds)> agree = nullptr;
};

// Thread-safe.
class __attribute__((visibility("default"))) Clock {
 public:
  // Aborts, with a line on stderr, where the file cannot be read or lacks a number.
  explicit Clock(const std::string& path);

  Nanoseconds now() const;

  // The host's time for one call of a function; 0 where the file has none.
  Nanoseconds call_time(const std::string& function) const;
  // The host is in that function for so long: in the driver, or in the framework.
  void pass(Nanoseconds time, const char* function, bool in_driver);
  // The host waits.
  void wait_until(Nanoseconds moment, const char* function);

  // Between devices, or one of them and host_device. From one device to another takes as long as out to the host.
  Cost copy(int from, int to, std::uint64_t bytes) const;
  Cost fill(std::uint64_t bytes) const;
  // `peak`: the file's name for the speed, such as flops.float32.
  Cost kernel(const char* name, double flop, const std::string& peak, std::uint64_t bytes) const;
  // What the framework takes on the host to enqueue a kernel.
  Nanoseconds operator_time() const { return operator_time_; }

  // When an operation that may begin at `ready` ends; its engine is taken meanwhile.
  Nanoseconds place(int device, std::uint64_t stream, const Cost& cost, Nanoseconds ready);

  // Writes what happened since the last time, and forgets it. False where the file cannot be written.
  bool write(const std::string& path);

 private:
  struct Event {
    int device;  // -1: the host
    std::uint64_t stream;  // of the host: the thread
    const char* lane;
    Nanoseconds start;
    Nanoseconds end;
    std::uint64_t bytes;
    std::string name;
  };
  using Busy = std::vector<std::pair<Nanoseconds, Nanoseconds>>;  // in order

  double number(const std::string& name) const;

  std::string path_;
  std::map<std::string, double> numbers_;
  Nanoseconds operator_time_ = 0;

  mutable std::mutex lock_;
  Nanoseconds now_ = 0;
  std::map<std::pair<int, Engine>, Busy> busy_;  // the latest of them
  std::vector<Event> events_;
};

// Null but in the mode timed.
__attribute__((visibility("default"))) Clock* timed();

// The function of CUDA's that the thread is in.
__attribute__((visibility("default"))) const char*& current_call();

}  // namespace sim
#endif  // SIM_CLOCK_H

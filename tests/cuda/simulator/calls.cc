#include "calls.h"

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "clock.h"
#include "streams.h"

namespace sim {

class Function {
 public:
  std::atomic<std::uint64_t> calls{0};
  std::atomic<bool> may_fail{false};
  std::atomic<bool> held{false};
  struct Failure {
    std::uint64_t at;  // number of the call; 0: every one
    int code;
  };
  std::vector<Failure> failures;  // guarded by the table's lock
};

namespace {

struct Table {
  std::mutex lock;
  std::map<std::string, std::unique_ptr<Function>> functions;

  Function& of(const std::string& name) {
    std::unique_ptr<Function>& function = functions[plain_name(name)];
    if (function == nullptr) {
      function = std::make_unique<Function>();
    }
    return *function;
  }
};

Table& table() {
  static Table* const all = new Table;
  return *all;
}

Function& find(const std::string& name) {
  const std::lock_guard<std::mutex> guard(table().lock);
  return table().of(name);
}

std::atomic<bool> forked{false};

}  // namespace

std::string plain_name(const std::string& name) {
  const std::size_t size = name.size();
  if (size > 3 && name[size - 3] == '_' && name[size - 2] == 'v' && name[size - 1] >= '2' && name[size - 1] <= '9') {
    return name.substr(0, size - 3);
  }
  return name;
}

bool& in_callback() {
  static thread_local bool inside = false;
  return inside;
}

void set_forked() { forked = true; }

int& last_error() {
  static thread_local int error = success;
  return error;
}

Site::Site(const char* name, unsigned needs) : name_(name), function_(find(name)), needs_(needs) {
  if (timed() != nullptr) {
    time_ = timed()->call_time(plain_name(name));
  }
}

int Site::enter() {
  const std::uint64_t number = ++function_.calls;
  if (forked) {
    return not_initialized;
  }
  if (in_callback()) {
    return not_permitted;
  }
  if (timed() != nullptr) {
    current_call() = name_;
    if (time_ != 0) {
      timed()->pass(time_, name_, true);
    }
  }
  while (function_.held.load(std::memory_order_acquire)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (function_.may_fail.load(std::memory_order_relaxed)) {
    const std::lock_guard<std::mutex> guard(table().lock);
    for (const Function::Failure& failure : function_.failures) {
      if (failure.at == 0 || failure.at == number) {
        return failure.code;
      }
    }
  }
  if ((needs_ & (need_init | need_context)) != 0 && !machine().initialized()) {
    return not_initialized;
  }
  if ((needs_ & (need_context | need_sound)) != 0) {
    Device* device = current_device();
    if (device == nullptr && (needs_ & need_context) != 0) {
      return invalid_context;
    }
    if (device != nullptr && (needs_ & need_context) != 0 && !device->active()) {
      return invalid_context;
    }
    if (device != nullptr && (needs_ & need_sound) != 0) {
      return device->error.load();
    }
  }
  return success;
}

}  // namespace sim

extern "C" {

__attribute__((visibility("default"))) void sim_fail(const char* function, uint64_t nth, int code) {
  const std::lock_guard<std::mutex> guard(sim::table().lock);
  sim::Function& found = sim::table().of(function);
  found.failures.push_back(sim::Function::Failure{nth == 0 ? 0 : found.calls + nth, code});
  found.may_fail = true;
}

__attribute__((visibility("default"))) void sim_fail_clear(void) {
  const std::lock_guard<std::mutex> guard(sim::table().lock);
  for (auto& entry : sim::table().functions) {
    entry.second->failures.clear();
    entry.second->may_fail = false;
  }
}

__attribute__((visibility("default"))) void sim_hold(const char* function, int held) {
  sim::find(function).held.store(held != 0, std::memory_order_release);
}

__attribute__((visibility("default"))) uint64_t sim_calls(const char* function) { return sim::find(function).calls; }
}

#include "clock.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "memory.h"
#include "turns.h"

namespace sim {

namespace {

constexpr double ns_per_s = 1e9;
constexpr std::ptrdiff_t most_busy = 20000;

Nanoseconds rounded(double seconds) { return static_cast<Nanoseconds>(std::llround(seconds * ns_per_s)); }

const char* lane_of(Engine engine) {
  switch (engine) {
    case Engine::compute:
      return "kernel";
    case Engine::in:
      return "in";
    case Engine::out:
      return "out";
    case Engine::none:
      break;
  }
  return "none";
}

constexpr const char* clock_numbers[] = {"memory.bandwidth", "link.in",        "link.out",
                                         "link.latency",     "kernel.latency", "host.operator"};

// Peaks have the names that operators/cost.cc asks for; calls those of functions.
bool is_known(const std::string& name) {
  const std::string call = "call.";
  if (name.rfind(call, 0) == 0) {
    const std::string function = name.substr(call.size());
    const bool runtime_absent = dlsym(RTLD_DEFAULT, "cudaMalloc") == nullptr;
    return (runtime_absent && function.rfind("cuda", 0) == 0) || dlsym(RTLD_DEFAULT, function.c_str()) != nullptr ||
           dlsym(RTLD_DEFAULT, (function + "_v2").c_str()) != nullptr;
  }
  return name == "memory.bytes" || name.rfind("flops.", 0) == 0 ||
         std::find(std::begin(clock_numbers), std::end(clock_numbers), name) != std::end(clock_numbers);
}

[[noreturn]] void give_up(const std::string& path, const std::string& why) {
  std::fprintf(stderr, "simulated CUDA: the machine's file %s %s\n", path.c_str(), why.c_str());
  std::abort();
}

}  // namespace

Clock::Clock(const std::string& path) : path_(path) {
  std::ifstream file(path);
  if (!file) {
    give_up(path, "cannot be read: say which with SIM_CUDA_MACHINE");
  }
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name;
    if (!(words >> name) || name == "device") {
      continue;
    }
    std::string equals;
    std::string rest;
    double value = 0;
    if (!(words >> equals >> value) || equals != "=" || (words >> rest)) {
      give_up(path, "has a line that is not \"name = number\": " + line);
    }
    // A call may take no time.
    if (!std::isfinite(value) || value < 0 || (value == 0 && name.rfind("call.", 0) != 0)) {
      give_up(path, "has a number that is not positive: " + line);
    }
    if (!is_known(name)) {
      give_up(path, "has a number that nothing reads: " + line);
    }
    numbers_[name] = value;
  }
  for (const char* name : clock_numbers) {
    number(name);
  }
  operator_time_ = rounded(number("host.operator"));
}

double Clock::number(const std::string& name) const {
  const auto found = numbers_.find(name);
  if (found == numbers_.end()) {
    give_up(path_, "has no number " + name);
  }
  return found->second;
}

Nanoseconds Clock::now() const {
  if (sim_turns_now != nullptr) {
    return sim_turns_now();
  }
  const std::lock_guard<std::mutex> guard(lock_);
  return now_;
}

Nanoseconds Clock::call_time(const std::string& function) const {
  const auto found = numbers_.find("call." + function);
  return found == numbers_.end() ? 0 : rounded(found->second);
}

void Clock::pass(Nanoseconds time, const char* function, bool in_driver) {
  const bool turns = sim_turns_pass != nullptr;
  const Nanoseconds turn = turns ? sim_turns_pass(time, in_driver ? 1 : 0) : 0;
  const std::lock_guard<std::mutex> guard(lock_);
  const Nanoseconds began = turns ? turn : now_;
  const char* const lane = in_driver ? "call" : "operator";
  events_.push_back({-1, turns ? sim_turns_thread() : 0, lane, began, began + time, 0, function});
  now_ = began + time;
}

void Clock::wait_until(Nanoseconds moment, const char* function) {
  const bool turns = sim_turns_wait != nullptr;
  const Nanoseconds turn = turns ? sim_turns_wait(moment) : 0;
  const std::lock_guard<std::mutex> guard(lock_);
  const Nanoseconds began = turns ? turn : now_;
  if (moment > began) {
    events_.push_back({-1, turns ? sim_turns_thread() : 0, "wait", began, moment, 0, function});
    now_ = moment;
  }
}

Cost Clock::copy(int from, int to, std::uint64_t bytes) const {
  if (from == to && from != host_device) {
    Cost cost = fill(2 * bytes);  // read and written
    cost.name = "copy";
    return cost;
  }
  const bool comes = from == host_device;
  const Engine engine = comes ? Engine::in : Engine::out;
  const double bandwidth = number(comes ? "link.in" : "link.out");
  return {engine, rounded(number("link.latency") + static_cast<double>(bytes) / bandwidth), bytes, "copy"};
}

Cost Clock::fill(std::uint64_t bytes) const {
  const double time = number("kernel.latency") + static_cast<double>(bytes) / number("memory.bandwidth");
  return {Engine::compute, rounded(time), bytes, "fill"};
}

Cost Clock::kernel(const char* name, double flop, const std::string& peak, std::uint64_t bytes) const {
  const double moving = static_cast<double>(bytes) / number("memory.bandwidth");
  const double computing = flop > 0 ? flop / number(peak) : 0;
  return {Engine::compute, rounded(number("kernel.latency") + std::max(moving, computing)), bytes, name};
}

Nanoseconds Clock::place(int device, std::uint64_t stream, const Cost& cost, Nanoseconds ready) {
  ready = std::max(ready, now());
  const std::lock_guard<std::mutex> guard(lock_);
  if (cost.engine == Engine::none) {
    return ready;
  }
  Busy& busy = busy_[{device, cost.engine}];
  if (static_cast<std::ptrdiff_t>(busy.size()) > most_busy) {
    busy.erase(busy.begin(), busy.begin() + most_busy / 2);  // long over
  }
  auto next =
      std::partition_point(busy.begin(), busy.end(), [&](const auto& interval) { return interval.second <= ready; });
  Nanoseconds start = ready;
  for (; next != busy.end() && next->first < start + cost.time; ++next) {
    start = std::max(start, next->second);
  }
  const Nanoseconds end = start + cost.time;
  busy.insert(next, {start, end});
  events_.push_back({device, stream, lane_of(cost.engine), start, end, cost.bytes, cost.name});
  return end;
}

bool Clock::write(const std::string& path) {
  const std::lock_guard<std::mutex> guard(lock_);
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    return false;
  }
  std::fputs("device,stream,lane,start_ns,end_ns,bytes,name\n", file);
  for (const Event& event : events_) {
    std::fprintf(file, "%d,%llu,%s,%llu,%llu,%llu,%s\n", event.device, static_cast<unsigned long long>(event.stream),
                 event.lane, static_cast<unsigned long long>(event.start), static_cast<unsigned long long>(event.end),
                 static_cast<unsigned long long>(event.bytes), event.name.c_str());
  }
  events_.clear();
  return std::fclose(file) == 0;
}

Clock* timed() {
  static Clock* const clock = settings().timed ? new Clock(settings().machine) : nullptr;
  return clock;
}

const char*& current_call() {
  static thread_local const char* name = "";
  return name;
}

}  // namespace sim

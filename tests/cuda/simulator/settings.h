// The options of sim.h, read from the environment when the library is first used.
#ifndef SIM_SETTINGS_H
#define SIM_SETTINGS_H

#include <atomic>
#include <cstdint>
#include <string>

namespace sim {

constexpr std::uint64_t granule = std::uint64_t{2} << 20;
#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer leaves little address space to the program.
constexpr std::uint64_t usual_address_space = std::uint64_t{256} << 30;
#else
constexpr std::uint64_t usual_address_space = std::uint64_t{8} << 40;
#endif

struct Settings {
  int devices = 1;
  std::uint64_t memory = std::uint64_t{1} << 30;
  std::uint64_t address_space = usual_address_space;
  bool threads = false;
  bool timed = false;
  std::string machine;
  std::string shared;
  bool work = true;
  bool host_access = true;
  std::atomic<std::uint64_t> seed{1};
  std::atomic<int> driver_version{13020};
  std::atomic<int> capability{80};
  std::atomic<bool> vmm{true};
  std::atomic<bool> host_vmm{true};
  std::atomic<std::uint64_t> pinned_limit{UINT64_MAX};
  std::atomic<std::uint64_t> sample{0};
  std::atomic<std::uint64_t> drop_waits{0};
  std::atomic<std::uint64_t> early_events{0};
  std::atomic<std::uint64_t> queue{400};
  std::atomic<bool> lazy{false};
  std::atomic<std::uint64_t> patience{100};

  // Whether what would move or change so many bytes does nothing. Less is done: programs read numbers back.
  bool leaves_out(std::uint64_t bytes) const { return !work && bytes > 4096; }

  Settings();
  bool set(const std::string& option, const std::string& value, bool from_environment);
};

__attribute__((visibility("default"))) Settings& settings();

}  // namespace sim
#endif  // SIM_SETTINGS_H

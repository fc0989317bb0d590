#include "settings.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "calls.h"

namespace sim {

namespace {

bool parse(const std::string& text, std::uint64_t* value) {
  char* end = nullptr;
  errno = 0;
  *value = std::strtoull(text.c_str(), &end, 0);
  return !text.empty() && text[0] != '-' && *end == '\0' && errno == 0;
}

// NAME:NTH:CODE[,...]
bool parse_failures(const std::string& text) {
  std::size_t start = 0;
  while (start < text.size()) {
    std::size_t end = text.find(',', start);
    end = end == std::string::npos ? text.size() : end;
    const std::string one = text.substr(start, end - start);
    const std::size_t first = one.find(':');
    const std::size_t second = first == std::string::npos ? first : one.find(':', first + 1);
    std::uint64_t nth = 0;
    std::uint64_t code = 0;
    if (second == std::string::npos || !parse(one.substr(first + 1, second - first - 1), &nth) ||
        !parse(one.substr(second + 1), &code)) {
      return false;
    }
    sim_fail(one.substr(0, first).c_str(), nth, static_cast<int>(code));
    start = end + 1;
  }
  return true;
}

}  // namespace

Settings::Settings() {
  static const char* const options[] = {
      "devices",    "memory",       "address_space", "mode",           "host_access", "seed",  "vmm",
      "sample",     "host_vmm",     "pinned_limit",  "driver_version", "capability",  "queue", "fail",
      "drop_waits", "early_events", "lazy",          "patience",       "machine",     "work",  "shared"};
  std::set<std::string> known;
  for (const char* option : options) {
    std::string name = "SIM_CUDA_";
    for (const char* c = option; *c != '\0'; ++c) {
      name += *c == '_' ? '_' : static_cast<char>(*c - 'a' + 'A');
    }
    const char* value = std::getenv(name.c_str());
    if (value != nullptr && !set(option, value, true)) {
      std::fprintf(stderr, "simulated CUDA: %s cannot be '%s'\n", name.c_str(), value);
      std::abort();
    }
    known.insert(name);
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string name(*variable, std::strcspn(*variable, "="));
    if (name.rfind("SIM_CUDA_", 0) == 0 && known.count(name) == 0) {
      std::fprintf(stderr, "simulated CUDA: there is no option %s\n", name.c_str());
      std::abort();
    }
  }
}

bool Settings::set(const std::string& option, const std::string& value, bool from_environment) {
  std::uint64_t number = 0;
  const bool is_number = parse(value, &number);
  if (from_environment) {
    if (option == "mode") {
      threads = value == "threads";
      timed = value == "timed";
      return threads || timed || value == "deterministic";
    }
    if (option == "fail") {
      return parse_failures(value);
    }
    if (option == "devices") {
      devices = static_cast<int>(number);
      return is_number && number <= 16;
    }
    if (option == "memory") {
      memory = (number + granule - 1) / granule * granule;
      return is_number && number > 0 && number <= std::uint64_t{1} << 40;
    }
    if (option == "address_space") {
      address_space = (number + granule - 1) / granule * granule;
      return is_number && number >= std::uint64_t{1} << 30 && number <= usual_address_space;
    }
    if (option == "machine") {
      machine = value;
      return true;
    }
    if (option == "shared") {
      shared = value;
      return true;
    }
    if (option == "work") {
      work = number != 0;
      return is_number;
    }
    if (option == "host_access") {
      host_access = number != 0;
      return is_number;
    }
  }
  if (!is_number) {
    return false;
  }
  if (option == "seed") {
    seed = number;
  } else if (option == "driver_version") {
    driver_version = static_cast<int>(number);
  } else if (option == "capability") {
    capability = static_cast<int>(number);
  } else if (option == "vmm") {
    vmm = number != 0;
  } else if (option == "host_vmm") {
    host_vmm = number != 0;
  } else if (option == "pinned_limit") {
    pinned_limit = number;
  } else if (option == "sample" && (number & (number - 1)) == 0 && (number == 0 || number >= 128)) {
    sample = number;
  } else if (option == "drop_waits") {
    drop_waits = number;
  } else if (option == "early_events") {
    early_events = number;
  } else if (option == "patience" && number > 0) {
    patience = number;
  } else if (option == "lazy") {
    lazy = number != 0;
  } else if (option == "queue" && number > 0) {
    queue = number;
  } else {
    return false;
  }
  return true;
}

Settings& settings() {
  static Settings* const all = new Settings;  // never destroyed: threads of streams outlive main
  return *all;
}

}  // namespace sim

#include "tensorflow/core/common_runtime/lms/lms_resident.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <sstream>
#include <unordered_set>
#include <vector>

#include "tensorflow/core/common_runtime/lms/lms_tensorflow.h"

namespace lms_tensorflow {
namespace {

std::vector<std::string> lines_of(const char* text) {
  std::vector<std::string> lines;
  std::istringstream stream(text != nullptr ? text : "");
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

using Names = std::unordered_set<std::string>;

Names set_of(const char* text) {
  const std::vector<std::string> lines = lines_of(text);
  return Names(lines.begin(), lines.end());
}

struct Operations {
  std::vector<std::string> scopes;  // names begin with one of these
  Names types;
  Names names;

  bool has(const std::string& name, const std::string& type) const {
    return types.count(type) != 0 || names.count(name) != 0 ||
           std::any_of(scopes.begin(), scopes.end(),
                       [&name](const std::string& scope) { return name.compare(0, scope.size(), scope) == 0; });
  }
};

std::mutex& asking() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

// What follows is guarded by asking().
Operations& excluded() {
  static Operations& all = *new Operations;
  return all;
}
Operations& included() {  // empty: all
  static Operations& all = *new Operations;
  return all;
}

std::atomic<std::uint64_t> version{0};

}  // namespace

std::uint64_t resident_version() { return version.load(std::memory_order_acquire); }

bool stays_resident(const std::string& name, const std::string& type) {
  if (resident_version() == 0) {
    return false;
  }
  const std::lock_guard<std::mutex> guard(asking());
  const bool all = included().scopes.empty() && included().types.empty();
  return excluded().has(name, type) || (!all && !included().has(name, type));
}

}  // namespace lms_tensorflow

void lms_tensorflow_keep_resident(const char* scopes, const char* types, const char* names, const char* paged_scopes,
                                  const char* paged_types) {
  using namespace lms_tensorflow;  // NOLINT(google-build-using-namespace): this file's own
  const std::lock_guard<std::mutex> guard(asking());
  excluded() = Operations{lines_of(scopes), set_of(types), set_of(names)};
  included() = Operations{lines_of(paged_scopes), set_of(paged_types), {}};
  version.fetch_add(1, std::memory_order_release);
}

// Functions that libraries import from one another, replaced: the entry for each in an importing library's table of
// addresses, through which that library makes every call, gets another address. The function itself stays as it is.
#ifndef ATEN_CUDA_LMS_IMPORTS_H
#define ATEN_CUDA_LMS_IMPORTS_H

#include <atomic>
#include <cstddef>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace lms_cuda {

class Imports {
 public:
  // Before the first call of redirect(). `original` is a function that some library exports, under that name.
  void add(void* original, void* replacement);
  void add(const char* name, void* original, void* replacement);

  // From now on calls of the originals reach their replacements, from every library that is loaded, except from the one
  // that exports them. Does nothing for libraries that were seen before. Thread-safe, and cheap when nothing was loaded
  // in between. Throws std::runtime_error when a table cannot be written.
  void redirect();

  // How many entries were written.
  size_t count() const { return count_.load(); }

 private:
  struct Function {
    std::string name;  // as the linker knows it
    const void* home;  // where the library that exports it begins
    void* replacement;
  };
  using Library = std::pair<std::string, const void*>;  // its name, and where it begins

  void redirect_in(const Library& library);
  const Function* find(const char* name) const;

  std::vector<Function> functions_;
  std::atomic<unsigned long long> loads_{0};  // how many libraries had been loaded, ever, when they were last looked at
  std::atomic<size_t> count_{0};
  std::mutex lock_;
  // Guarded by lock_.
  std::set<Library> seen_;
  unsigned long long unloads_ = 0;
};

}  // namespace lms_cuda
#endif  // ATEN_CUDA_LMS_IMPORTS_H

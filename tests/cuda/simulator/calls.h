// What every exported function does first: count the call, and refuse it where it has to be refused.
#ifndef SIM_CALLS_H
#define SIM_CALLS_H

#include <atomic>
#include <cstdint>
#include <string>

#include "codes.h"
#include "sim.h"

namespace sim {

enum Need : unsigned {
  need_nothing = 0,
  need_init = 1,     // cuInit was called
  need_context = 2,  // the thread has a current context; implies need_init
  need_sound = 4,    // the current context was not lost
};

class Function;  // what is known of one name

// One exported function, a static object in it.
class __attribute__((visibility("default"))) Site {
 public:
  Site(const char* name, unsigned needs);
  // The code to return at once, or 0.
  int enter();

 private:
  const char* name_;
  Function& function_;
  unsigned needs_;
  std::uint64_t time_ = 0;  // of the host for a call, in the mode timed
};

// True while the thread runs a host function.
__attribute__((visibility("default"))) bool& in_callback();

// After a fork, in the child.
__attribute__((visibility("default"))) void set_forked();

// cudaGetLastError's.
__attribute__((visibility("default"))) int& last_error();

// "cuMemFree_v2" -> "cuMemFree"
__attribute__((visibility("default"))) std::string plain_name(const std::string& name);

}  // namespace sim

#define ENTER(needs)                              \
  static ::sim::Site sim_site(__func__, needs);   \
  if (const int sim_refused = sim_site.enter()) { \
    return sim_refused;                           \
  }

#endif  // SIM_CALLS_H

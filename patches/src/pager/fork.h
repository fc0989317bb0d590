// What happens around a fork of the process: every lock is taken before it and let go on both sides, so that the child
// finds everything whole.
#ifndef LMS_FORK_H
#define LMS_FORK_H

namespace lms {
namespace fork {

// From now on forks of this process are safe for every registered pager. Thread-safe; once is enough.
void install();

}  // namespace fork
}  // namespace lms
#endif  // LMS_FORK_H

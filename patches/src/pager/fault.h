// The process-wide fault handler: an access to a block that is away, which nothing announced (a raw pointer kept across
// operations, a NumPy view), becomes a page-in. A fault that belongs to no pager goes to the handler that was there
// before.
#ifndef LMS_FAULT_H
#define LMS_FAULT_H

#include "status.h"

namespace lms {
namespace fault {

// Installs the handler for the faults of every registered pager. A handler that the program sets from then on comes
// behind it, and is what the program reads back. Thread-safe; nothing must be locked (imports.h).
Status install();

// Installs the handler again where it was replaced without libc; what replaced it then counts as the one before.
// Thread-safe.
void stay_in_front();

// Around a fork, so that the child finds the installation whole.
void before_fork();
void after_fork();

}  // namespace fault
}  // namespace lms
#endif  // LMS_FAULT_H

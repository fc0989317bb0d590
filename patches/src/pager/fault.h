// The process-wide fault handler: an access to a block that is away, which nothing announced (a raw pointer kept across
// operations, a NumPy view), becomes a page-in. A fault that belongs to no pager goes to the handler that was there
// before.
#ifndef LMS_FAULT_H
#define LMS_FAULT_H

namespace lms {
namespace fault {

// Installs the handler for the faults of every registered pager, again if it was replaced since; what replaced it then
// counts as the one before. Thread-safe.
void install();

// Around a fork, so that the child finds the installation whole.
void before_fork();
void after_fork();

}  // namespace fault
}  // namespace lms
#endif  // LMS_FAULT_H

// The process-wide fault handler: an access to a block that is away, which nothing announced (a raw pointer kept across
// operations, a NumPy view), becomes a page-in. A fault that belongs to no pager goes to the handler that was there
// before.
#ifndef LMS_FAULT_H
#define LMS_FAULT_H

namespace lms {

class Pager;

namespace fault {

// Makes faults in this pager's address space be served from now on. False when too many pagers exist.
bool serve(Pager* pager);

// Installs the handler, again if somebody replaced it since; theirs then counts as the one before.
void install();

}  // namespace fault
}  // namespace lms
#endif  // LMS_FAULT_H

// System calls on blocks. The kernel does not fault on memory that it is handed: a call fails with EFAULT where a block
// is away, or clean and to be written. So the functions of libc that hand a buffer to the kernel are replaced by some
// that keep the buffer's blocks resident during the call. A buffer that is no block costs them two comparisons.
#ifndef LMS_SYSTEM_CALLS_H
#define LMS_SYSTEM_CALLS_H

#include "status.h"

namespace lms {
namespace system_calls {

// From now on every library's system calls work on the blocks of every registered pager, but for those that it makes
// without libc. Thread-safe; nothing must be locked (imports.h). Does nothing when it has succeeded before.
Status install();

}  // namespace system_calls
}  // namespace lms
#endif  // LMS_SYSTEM_CALLS_H

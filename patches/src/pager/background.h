// Threads of LMS's own in the program's process.
#ifndef LMS_BACKGROUND_H
#define LMS_BACKGROUND_H

#include <functional>

namespace lms {

// Starts a thread that nobody waits for and that gets none of the program's signals. False when there is no thread to
// be had.
bool start_in_background(const std::function<void()>& run);

}  // namespace lms
#endif  // LMS_BACKGROUND_H

// Which operations' outputs stay resident because the program asks for it, by their names and types. All functions are
// thread-safe; the one for programs is lms_tensorflow_keep_resident.
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_RESIDENT_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_RESIDENT_H_

#include <cstdint>
#include <string>

namespace lms_tensorflow {

// Another one whenever the program asks for something else.
std::uint64_t resident_version();

bool stays_resident(const std::string& name, const std::string& type);

}  // namespace lms_tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_RESIDENT_H_

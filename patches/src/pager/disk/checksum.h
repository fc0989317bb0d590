// A checksum of what a slot holds: Fletcher's (J. G. Fletcher, "An Arithmetic Checksum for Serial Transmissions",
// 1982), over words of 32 bits with sums of 64, as file systems use it. Each sum is of every eighth word, so that a
// processor computes several at once, about as fast as it can read memory (docs/performance.md).
//
// It finds what a disk, its driver or its cable got wrong: in up to 1 MiB the sums cannot overflow, so any change of
// two words is found, and of others all but those that happen to keep sixteen sums. It is no protection against
// somebody who means to deceive.
#ifndef LMS_CHECKSUM_H
#define LMS_CHECKSUM_H

#include <cstddef>
#include <cstdint>

namespace lms {

// `bytes` is a multiple of 32, as whole pages are. Thread-safe.
std::uint64_t checksum(const void* from, std::size_t bytes);

}  // namespace lms
#endif  // LMS_CHECKSUM_H

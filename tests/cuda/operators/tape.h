// What a program allocates, frees and computes on the device, in its order: a text that policies are played with
// (predictions/tape.py). A library function, operators_tape(path), begins it; null ends it. operators_step() marks the
// end of a training step. Lines:
//   alloc ADDRESS BYTES        of PyTorch's own caching allocator
//   free ADDRESS
//   kernel NANOSECONDS NAME [r|w]ADDRESS:BYTES...
//   step
// One thread at a time may begin and end it.
#ifndef TAPE_H
#define TAPE_H

#include <cstdint>
#include <string>
#include <vector>

#include "operands.h"

namespace operators {

// Nothing happens where there is no tape, or no virtual time.
void record_kernel(const std::string& name, std::uint64_t nanoseconds, const std::vector<Span>& spans);

}  // namespace operators

#endif  // TAPE_H

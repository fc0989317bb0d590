#include "checksum.h"

#include <cstring>
#include <initializer_list>

namespace lms {

namespace {

using ChecksumPair = std::uint64_t __attribute__((vector_size(16)));  // GCC and Clang have it on every processor

constexpr std::uint64_t checksum_half = 0xFFFFFFFF;
// Odd, from the golden ratio, so that a sum counts with all its bits wherever it stands.
constexpr std::uint64_t checksum_spread = 0x9E3779B97F4A7C15;

struct ChecksumSums {
  ChecksumPair words = {};
  ChecksumPair sums = {};

  void add(ChecksumPair more) {
    words += more;
    sums += words;
  }
};

}  // namespace

std::uint64_t checksum(const void* from, std::size_t bytes) {
  // Each by its name, so that they stay in registers.
  ChecksumSums a;
  ChecksumSums b;
  ChecksumSums c;
  ChecksumSums d;
  const char* next = static_cast<const char*>(from);
  for (const char* end = next + bytes; next != end; next += 2 * sizeof(ChecksumPair)) {
    ChecksumPair first;
    ChecksumPair second;
    std::memcpy(&first, next, sizeof first);
    std::memcpy(&second, next + sizeof first, sizeof second);
    a.add(first & checksum_half);
    b.add(first >> 32);
    c.add(second & checksum_half);
    d.add(second >> 32);
  }
  std::uint64_t mixed = bytes;
  for (const ChecksumSums& sums : {a, b, c, d}) {
    for (const std::uint64_t sum : {sums.words[0], sums.words[1], sums.sums[0], sums.sums[1]}) {
      mixed = (mixed ^ sum) * checksum_spread;
      mixed ^= mixed >> 32;
    }
  }
  return mixed;
}

}  // namespace lms

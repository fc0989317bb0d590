// Device memory that several processes share (option "shared"): what each has taken of it, in a file that all map.
//
// What a process that was killed had taken is free again: each holds a lock on a byte of the file for as long as it
// lives. Not thread-safe: Memory's lock guards it.
#ifndef SIM_SHARERS_H
#define SIM_SHARERS_H

#include <cstdint>
#include <string>

namespace sim {

class Sharers {
 public:
  // Null where each process has all of a device's memory for itself. Ends the process when the file cannot be used.
  static Sharers* of(const std::string& path);

  // False when all processes together would have more than `capacity` bytes of the device then.
  bool take(int device, std::uint64_t bytes, std::uint64_t capacity);
  void give(int device, std::uint64_t bytes);
  std::uint64_t used(int device);  // by all processes

  // A forked child has no device memory.
  void forget();

 private:
  struct Table;
  Sharers(int file, Table* table) : file_(file), table_(table) {}
  bool lock(std::int64_t byte, short type, bool wait) const;
  std::uint64_t sum(int device) const;

  int file_;
  Table* table_;
  int place_ = -1;
};

}  // namespace sim
#endif  // SIM_SHARERS_H

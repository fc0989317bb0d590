// Functions that libraries import from one another, replaced for the whole process. A library calls what it imports
// through a table of addresses that the loader fills in, by the symbol of the library that exports the function. So the
// entries of all libraries that are loaded get another address, and so does the symbol, for those that come later. The
// function itself stays as it is, and so do calls within the library that has it.
#ifndef LMS_IMPORTS_H
#define LMS_IMPORTS_H

#include <atomic>
#include <cstddef>

#include "status.h"

namespace lms {
namespace imports {

struct Replacement {
  const char* name;  // of the function, as the loader knows it
  void* function;  // what is called instead
  // Gets the address that was called before, which nothing that is imported by name leads to any more. Stays null where
  // no library has the function.
  std::atomic<void*>* original;
};

// Replaces these functions. Thread-safe, but nothing must be locked that a library's initialiser may want: the loader
// lets only one thread in. On failure some may be replaced; all of them work in either case.
Status redirect(const Replacement* replacements, std::size_t count);

}  // namespace imports
}  // namespace lms
#endif  // LMS_IMPORTS_H
